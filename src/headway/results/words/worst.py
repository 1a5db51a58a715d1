"""The decisions with the highest regret: for each, what the router knew, what resulted, and what another choice would
have given."""

from msgspec import Struct

from headway.results.decisions import Decision
from headway.results.sample import MISSED, UNCOUNTED
from headway.results.survey import Survey, best_estimate, best_holder
from headway.results.words.counterfactuals import Again, describe_alternative, simulated_again
from headway.results.words.issues import explain_no_decisions
from headway.results.words.material import Material
from headway.results.words.phrases import Line, Parts, Section, count, ms_of, name, phrase
from headway.types import Json


class Case(Struct, frozen=True):
    """A decision to describe: its index in the log, and its simulated alternative, if there is one."""

    place: int
    decision: Decision
    again: Again | None = None

    @property
    def source(self) -> str:
        return f"decision.{self.place}"

    @property
    def chosen_seat(self) -> int:
        """The position of the chosen candidate in the decision's lists."""
        return self.decision.place(self.decision.judged)

    @property
    def better(self) -> int:
        """The position in the decision's lists of the candidate that would have been better."""
        if self.again is None:
            return best_estimate(self.decision)
        other = self.again.best.changed
        return self.decision.place(other) if other in self.decision.candidates else best_holder(self.decision)

    @property
    def regret_ps(self) -> int:
        """The estimated regret; 0 if the latency model has no estimate."""
        return self.decision.estimated_regret_ps() or 0


def write_worst(run: Material, examples: int) -> Section | None:
    if not examples or run.survey is None:
        return None
    cases = worst(run, examples)
    if not cases:
        text = "None: every request went to the instance with the earliest known first token."
        return Section(("## Worst Decisions",), [Line((text,), 16)])
    lines = []
    for turn, case in enumerate(cases):
        weight = 8 + 5 * turn
        lines.append(Line(describe_decision(run, case), weight, bound=3))
        lines += [Line(write(run, case), weight, 1) for write in (context, result, regret)]
    return Section(_title(len(cases)), lines, numbered=True, titled=_title)


def _title(entries: int) -> Parts:
    noun = "example" if entries == 1 else "examples"
    return phrase(f"## Worst Decisions ({{}} {noun})", count("worst.count", entries))


def worst(run: Material, examples: int) -> list[Case]:
    """Return first the decisions with a better simulated alternative, then those with the most estimated regret."""
    decisions = run.result.decisions
    if run.survey is None or decisions is None:
        return []
    cases: dict[int, Case] = {}
    for again in simulated_again(run):
        if again.regret_ps <= 0 or len(cases) == examples:
            break
        known = decisions.find(again.best.at_ps, again.best.request)
        if known is not None:
            cases[known] = Case(known, decisions[known], again)
    for _, place in run.survey.worst:
        if len(cases) >= examples:
            break
        cases.setdefault(place, Case(place, decisions[place]))
    return list(cases.values())


def describe_decision(run: Material, case: Case) -> Parts:
    """Write the time, the request and the target."""
    decision, (codes, words) = case.decision, run.tenants
    row, source = decision.request, f"request.{decision.request}"
    tenant = phrase("tenant {}, ", name(f"{source}.tenant", words[codes[row]])) if len(set(words) - {""}) > 1 else ()
    prefill = phrase(", its prompt to {}", run.instance(decision.prefill)) if decision.prefill >= 0 else ()
    return phrase(
        "{at_ps:at}: request {request:number} ({}{} prompt tokens) went to {}{}.",
        tenant,
        count(f"{source}.prompt_tokens", run.column("prompt_tokens")[row]),
        run.instance(decision.target),
        prefill,
        of=decision,
        source=case.source,
    )


def context(run: Material, case: Case) -> Parts:
    """Write what the router knew about the chosen candidate and about the better one."""
    parts = phrase("Context: {}", candidate(run, case, case.chosen_seat))
    if case.better != case.chosen_seat:
        parts += phrase("; {}", candidate(run, case, case.better))
    return (*parts, ".")


def candidate(run: Material, case: Case, seat: int) -> Parts:
    index = case.decision.candidates[seat]
    text = (
        "{} was believed to cache {believed_tokens:count} of its tokens, with {queued:count} requests queued and"
        " {running:count} running"
    )
    values = {key: getattr(case.decision, key)[seat] for key in ("believed_tokens", "queued", "running")}
    return phrase(text, run.instance(index), of=values, source=f"{case.source}.{index}")


def result(run: Material, case: Case) -> Parts:
    estimate = case.decision.estimated_ttft_ps[case.chosen_seat]
    source = f"{case.source}.{case.decision.judged}.estimated_ttft_ps"
    expected = phrase("; the latency model expected {}", ms_of(source, estimate)) if estimate >= 0 else ()
    return phrase("Result: {}{}.", describe_outcome(run, case.decision.request), expected)


def describe_outcome(run: Material, row: int) -> Parts:
    """Write the outcome of a request."""
    values: Json = {
        "outcome": str(run.column("outcome")[row]).replace("_", " "),
        "cached_tokens": run.column("cached_tokens")[row],
        "ttft_ps": run.ttft_ps(row),
    }
    if row in run.moved:
        text = "dispatched more than once, {outcome:name}"
    elif values["ttft_ps"] < 0:
        text = "no first token, {outcome:name}"
    else:
        text = "{cached_tokens:count} tokens cached, TTFT {ttft_ps:ms_of}"
        if run.has_slo and run.missed[row] != UNCOUNTED:
            text += ", SLO missed" if run.missed[row] == MISSED else ", SLO met"
    return phrase(text, of=values, source=f"request.{row}")


def regret(run: Material, case: Case) -> Parts:
    if case.again is not None:
        best = case.again.best
        text = "Regret: simulated again, {} gave a TTFT of {alternative_ttft_ps:ms_of}, {regret_ps:ms_of} less."
        return phrase(text, run.instance(best.changed), of=best, source=case.again.source)
    index, estimate = case.decision.candidates[case.better], case.decision.estimated_ttft_ps[case.better]
    return phrase(
        "Regret: by the latency model, {} would have given a TTFT of {}, {regret_ps:ms_of} less.",
        run.instance(index),
        ms_of(f"{case.source}.{index}.estimated_ttft_ps", estimate),
        of=case,
        source=case.source,
    )


def describe_estimate(run: Material, case: Case) -> Parts:
    """Write the effect of another choice according to the latency model."""
    decision = case.decision
    return phrase(
        "If request {request:number} had gone to {} instead of {} at {at_ps:at}, its first token would have come"
        " {regret_ps:ms_of} sooner, by the latency model (actual result: {}).",
        run.instance(decision.candidates[case.better]),
        run.instance(decision.judged),
        describe_outcome(run, decision.request),
        of={"request": decision.request, "at_ps": decision.at_ps, "regret_ps": case.regret_ps},
        source=case.source,
    )


def write_alternatives(run: Material, examples: int) -> Section:
    """Write lines such as `If request X had gone to Y`: first simulated alternatives by gain, then estimated ones."""
    again, most = simulated_again(run), 4 * examples
    better = [decision for decision in again if decision.regret_ps > 0][:most]
    lines = [Line(describe_alternative(run, decision), 7 + turn) for turn, decision in enumerate(better)]
    simulated = {(decision.best.request, decision.best.at_ps) for decision in again}
    decisions = run.result.decisions
    if run.survey is not None and decisions is not None:
        for turn, (_, place) in enumerate(run.survey.worst[:most]):
            case = Case(place, decisions[place])
            if (case.decision.request, case.decision.at_ps) not in simulated:
                lines.append(Line(describe_estimate(run, case), 9 + turn))
    if not lines:
        lines.append(Line(("No decision is known to have had a better alternative.",), 16))
    return Section(("## If Decided Otherwise",), lines)


def write_audit(run: Material, examples: int) -> Section:
    title = ("## Decision Audit",)
    decisions = run.result.decisions
    if run.survey is None or decisions is None:
        return Section(title, [Line(explain_no_decisions(run), 8)])
    size = min(len(decisions), 4 * examples)
    lines = [Line(parts, 6) for parts in _totals(run.survey, size)]
    for turn in range(size):
        place = turn * len(decisions) // size
        case = Case(place, decisions[place])
        # The weight grows from the middle decision to both ends. Lines of high weight are dropped first.
        weight = 7 + abs(2 * turn - size) // 2
        lines.append(Line(describe_decision(run, case), weight, bound=1))
        lines.append(Line(_describe_beliefs(run, case), weight, 1))
    return Section(title, lines)


def _totals(survey: Survey, size: int) -> list[Parts]:
    totals = phrase(
        "{} of {count:count} decisions, evenly spaced, with {} candidates on average.",
        count("audit.count", size),
        count("decisions.candidates_mean", round(survey.candidates / survey.count)),
        of=survey,
        source="decisions",
    )
    if not survey.estimated:
        return [totals]
    text = (
        "{soonest_share:percent} chose the instance with the earliest first token by the latency model,"
        " {most_cached_share:percent} the instance believed to cache most of the prompt."
    )
    shares = {
        "soonest_share": (survey.estimated - survey.regretted) / survey.estimated,
        "most_cached_share": 1 - survey.away.count / survey.count,
    }
    return [totals, phrase(text, of=shares, source="decisions")]


def _describe_beliefs(run: Material, case: Case) -> Parts:
    decision, chosen = case.decision, case.chosen_seat
    holder, soonest = best_holder(decision), best_estimate(decision)
    parts = phrase("Context: {}", candidate(run, case, chosen))
    if holder != chosen:
        index = decision.candidates[holder]
        tokens = count(f"{case.source}.{index}.believed_tokens", decision.believed_tokens[holder])
        parts += phrase("; most on {}, {} tokens", run.instance(index), tokens)
    if soonest != chosen and decision.estimated_ttft_ps[soonest] < decision.estimated_ttft_ps[chosen]:
        parts += phrase("; {} had an earlier estimate", run.instance(decision.candidates[soonest]))
    return parts + phrase(". Actual: {}.", describe_outcome(run, decision.request))
