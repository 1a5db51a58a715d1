"""The decisions that cost most, each with what was known when it was taken, what came of it and what else there was."""

from __future__ import annotations

from msgspec import Struct

from headway.results.decisions import Decision
from headway.results.survey import Survey, best_estimate, best_holder
from headway.results.words.counterfactuals import Again, simulated_again, simulated_phrase
from headway.results.words.issues import undecided
from headway.results.words.material import MISSED, UNCOUNTED, Material
from headway.results.words.phrases import Fact, Line, Parts, Section, at, count, ms_of, name, number, percent, said


class Case(Struct, frozen=True):
    """A decision worth a look: its place, and how it was simulated again where it was."""

    place: int
    decision: Decision
    again: Again | None = None


def write_worst(run: Material, examples: int) -> Section | None:
    if not examples:
        return None
    cases = worst(run, examples)
    if run.survey is None:
        return None  # which is said already
    if not cases:
        text = "None: every request went where the first token would come soonest, as far as anybody can tell."
        return Section(("## Worst Decisions",), [Line((text,), 16)])
    lines = []
    for turn, case in enumerate(cases):
        weight = 8 + 5 * turn
        lines.append(Line(taken(run, case.place, case.decision), weight, bound=3))
        lines += [Line(told(run, case), weight, 1) for told in (context, result, regret)]
    return Section(_title(len(cases)), lines, numbered=True, titled=_title)


def _title(shown: int) -> Parts:
    return said(f"## Worst Decisions ({{}} {'example' if shown == 1 else 'examples'})", count("worst.count", shown))


def worst(run: Material, examples: int) -> list[Case]:
    """Those that were simulated again and would have been better otherwise first, then those with the most regret by
    the latency model."""
    decisions = run.result.decisions
    if run.survey is None or decisions is None:
        return []
    found: dict[int, Case] = {}
    for again in simulated_again(run):
        if again.regret_ps <= 0 or len(found) == examples:
            break
        known = decisions.find(again.one.at_ps, again.one.request)
        if known is not None:
            found[known] = Case(known, decisions[known], again)
    for _, place in run.survey.worst:
        if len(found) >= examples:
            break
        found.setdefault(place, Case(place, decisions[place]))
    return list(found.values())


def taken(run: Material, place: int, one: Decision) -> Parts:
    """When it was, on what, and where it went."""
    codes, words = run.tenants
    whose = f"request.{one.request}"
    parts = said(
        "{}: request {} ({}{} prompt tokens) went to {}",
        at(f"decision.{place}.at_ps", one.at_ps),
        number(f"decision.{place}.request", one.request),
        said("tenant {}, ", name(f"{whose}.tenant", words[codes[one.request]])) if len(set(words) - {""}) > 1 else (),
        count(f"{whose}.prompt_tokens", run.column("prompt_tokens")[one.request]),
        run.instance(one.target),
    )
    return (*parts, *(said(", its prompt to {}", run.instance(one.prefill)) if one.prefill >= 0 else ()), ".")


def context(run: Material, case: Case) -> Parts:
    """What the router saw of the one chosen, and of that which would have been better."""
    one = case.decision
    chosen, other = one.place(one.judged), _other(case)
    parts = said("Context: {}", candidate(run, case.place, one, chosen))
    if other != chosen:
        parts += said("; {}", candidate(run, case.place, one, other))
    return (*parts, ".")


def candidate(run: Material, place: int, one: Decision, seat: int) -> Parts:
    source = f"decision.{place}.{one.candidates[seat]}"
    return said(
        "{} was believed to hold {} tokens of it, with {} queued and {} running",
        run.instance(one.candidates[seat]),
        count(f"{source}.believed_tokens", one.believed_tokens[seat]),
        count(f"{source}.queued", one.queued[seat]),
        count(f"{source}.running", one.running[seat]),
    )


def result(run: Material, case: Case) -> Parts:
    """What came of it."""
    one = case.decision
    seat = one.place(one.judged)
    estimate = _estimate(case.place, one, seat)
    expected = said("; the latency model expected {}", estimate) if estimate is not None else ()
    return said("Result: {}{}.", happened(run, one.request), expected)


def happened(run: Material, row: int) -> Parts:
    """What became of a request."""
    source, ttft = f"request.{row}", run.ttft_ps(row)
    if row in run.moved:
        return said("it was sent more than once, and ended {}", name(f"{source}.outcome", _outcome(run, row)))
    if ttft < 0:
        return said("no first token, {}", name(f"{source}.outcome", _outcome(run, row)))
    parts = said(
        "{} tokens found cached, TTFT {}",
        count(f"{source}.cached_tokens", run.column("cached_tokens")[row]),
        ms_of(f"{source}.ttft_ps", ttft),
    )
    if run.has_slo and run.missed[row] != UNCOUNTED:
        parts += (", SLO missed" if run.missed[row] == MISSED else ", SLO met",)
    return parts


def _outcome(run: Material, row: int) -> str:
    return str(run.column("outcome")[row]).replace("_", " ")


def regret(run: Material, case: Case) -> Parts:
    if case.again is None:
        seat = best_estimate(case.decision)
        chosen = case.decision.place(case.decision.judged)
        best, mine = case.decision.estimated_ttft_ps[seat], case.decision.estimated_ttft_ps[chosen]
        source = f"decision.{case.place}"
        return said(
            "Regret: by the latency model {} would have given TTFT {}, {} sooner.",
            run.instance(case.decision.candidates[seat]),
            ms_of(f"{source}.{case.decision.candidates[seat]}.estimated_ttft_ps", best),
            ms_of(f"{source}.regret_ps", mine - best),
        )
    one, source = case.again.one, f"counterfactual.{case.again.place}"
    return said(
        "Regret: simulated again, {} gave TTFT {}, {} sooner.",
        run.instance(one.changed),
        ms_of(f"{source}.alternative_ttft_ps", one.alternative_ttft_ps),
        ms_of(f"{source}.regret_ps", case.again.regret_ps),
    )


def estimated_phrase(run: Material, place: int, one: Decision) -> Parts:
    """The same as a supposition, by the latency model."""
    seat, chosen = best_estimate(one), one.place(one.judged)
    source = f"decision.{place}"
    return said(
        "If request {} had gone to {} instead of {} at {}, its first token would by the latency model have come {}"
        " sooner (it came: {}).",
        number(f"{source}.request", one.request),
        run.instance(one.candidates[seat]),
        run.instance(one.candidates[chosen]),
        at(f"{source}.at_ps", one.at_ps),
        ms_of(f"{source}.regret_ps", one.estimated_ttft_ps[chosen] - one.estimated_ttft_ps[seat]),
        happened(run, one.request),
    )


def _other(case: Case) -> int:
    """Where the better candidate stands."""
    one = case.decision
    if case.again is None:
        return best_estimate(one)
    other = case.again.one.changed
    return one.place(other) if other in one.candidates else best_holder(one)


def _estimate(place: int, one: Decision, seat: int) -> Fact | None:
    estimate = one.estimated_ttft_ps[seat]
    return ms_of(f"decision.{place}.{one.candidates[seat]}.estimated_ttft_ps", estimate) if estimate >= 0 else None


def imagined(run: Material, examples: int) -> Section:
    """`If request X had gone to Y`: the simulated ones by gain, then those that the latency model speaks of."""
    lines: list[Line] = []
    again = simulated_again(run)
    shown = [one for one in again if one.regret_ps > 0][: 4 * examples]
    for turn, one in enumerate(shown):
        lines.append(Line(simulated_phrase(run, one), 7 + turn))
    seen = {(one.one.request, one.one.at_ps) for one in again}
    decisions = run.result.decisions
    if run.survey is not None and decisions is not None:
        for turn, (_, place) in enumerate(run.survey.worst[: 4 * examples]):
            decision = decisions[place]
            if (decision.request, decision.at_ps) not in seen:
                lines.append(Line(estimated_phrase(run, place, decision), 9 + turn))
    if not lines:
        lines.append(Line(("Nobody can tell: no decision is known to have had a better alternative.",), 16))
    return Section(("## If Decided Otherwise",), lines)


def write_audit(run: Material, examples: int) -> Section:
    title = ("## Decision Audit",)
    decisions = run.result.decisions
    if run.survey is None or decisions is None:
        return Section(title, [Line(undecided(run), 8)])
    wanted = min(len(decisions), 4 * examples)
    lines = [Line(parts, 6) for parts in _totals(run.survey, wanted)]
    for turn in range(wanted):
        place = turn * len(decisions) // wanted
        one = decisions[place]
        # Those in the middle go before the first and the last: what is left still spans the run.
        weight = 7 + abs(2 * turn - wanted) // 2
        lines.append(Line(taken(run, place, one), weight, bound=1))
        lines.append(Line(_believed(run, place, one), weight, 1))
    return Section(title, lines)


def _totals(survey: Survey, wanted: int) -> list[Parts]:
    agreed = survey.estimated - survey.regretted
    found = [
        said(
            "{} of {} decisions, at even distances, with {} to choose from on average.",
            count("audit.count", wanted),
            count("decisions.count", survey.count),
            count("decisions.candidates_mean", round(survey.candidates / survey.count)),
        )
    ]
    if survey.estimated:
        found.append(
            said(
                "{} went where the first token would come soonest by the latency model, {} where most of the prompt"
                " was believed cached.",
                percent("decisions.soonest_share", agreed / survey.estimated),
                percent("decisions.most_cached_share", 1 - survey.away.count / survey.count),
            )
        )
    return found


def _believed(run: Material, place: int, one: Decision) -> Parts:
    chosen, holder, soonest = one.place(one.judged), best_holder(one), best_estimate(one)
    parts = said("Believed: {}", candidate(run, place, one, chosen))
    if holder != chosen:
        source = f"decision.{place}.{one.candidates[holder]}.believed_tokens"
        parts += said(
            "; most on {}, {} tokens", run.instance(one.candidates[holder]), count(source, one.believed_tokens[holder])
        )
    if soonest != chosen and one.estimated_ttft_ps[soonest] < one.estimated_ttft_ps[chosen]:
        parts += said("; {} was expected to be sooner", run.instance(one.candidates[soonest]))
    return parts + said(". Happened: {}.", happened(run, one.request))
