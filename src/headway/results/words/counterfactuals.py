"""The effect of other routing decisions: what the latency model estimates, and what repeated simulations show."""

from msgspec import Struct

from headway.results.ranking import direction
from headway.results.records import Counterfactual, best_alternatives
from headway.results.survey import Survey
from headway.results.words.issues import explain_no_decisions
from headway.results.words.material import Material
from headway.results.words.phrases import Line, Parts, Section, phrase
from headway.types import PS_PER_SECOND

TITLE: tuple[str] = ("## Counterfactual Analysis",)


class Again(Struct, frozen=True):
    """A decision that was simulated again with other targets: its best alternative, the index of that alternative, and
    how much TTFT the alternative saves."""

    place: int
    best: Counterfactual
    regret_ps: int

    @property
    def source(self) -> str:
        return f"counterfactual.{self.place}"


def simulated_again(run: Material) -> list[Again]:
    """Return the alternative with the lowest TTFT for each decision that was simulated again, highest regret first.
    Decisions whose request got no first token are left out."""
    tried = run.result.counterfactuals
    best = [Again(place, tried[place], tried[place].regret_ps or 0) for place in best_alternatives(tried).values()]
    return sorted(best, key=lambda again: (-again.regret_ps, again.best.at_ps, again.best.request))


def write_counterfactuals(run: Material) -> Section:
    lines = [Line(explain_no_decisions(run), 16)] if run.survey is None else _write_estimates(run.survey)
    if again := simulated_again(run):
        lines += _write_simulations(run, again)
    else:
        text = "No decision was simulated again: to do so, use `headway run --counterfactuals N`."
        lines.append(Line((text,), 33))
    return Section(TITLE, lines)


def _write_estimates(survey: Survey) -> list[Line]:
    if not survey.estimated:
        return [Line(("The latency model has no estimates for these decisions.",), 16)]
    regret = {
        "regret_ms_mean": survey.regret_ps / survey.estimated / 1e9,
        "regret_s_sum": survey.regret_ps / PS_PER_SECOND,
        "estimated": survey.estimated,
        "regretted": survey.regretted,
    }
    text = (
        "Estimated regret: {regret_ms_mean:ms} per decision on average, {regret_s_sum:amount} s over {estimated:count}"
        " decisions; {regretted:count} did not choose the instance with the earliest first token by the latency model."
    )
    lines = [Line(phrase(text, of=regret, source="decisions"), 7)]
    if survey.hit_elsewhere:
        text = (
            "{hit_elsewhere:count} decisions led to a cache miss while another instance was believed to cache more of"
            " the prompt."
        )
        lines.append(Line(phrase(text, of=survey, source="decisions"), 9))
    if survey.compared:
        times = {
            "expected_ms_mean": survey.expected_ps / survey.compared / 1e9,
            "waited_ms_mean": survey.waited_ps / survey.compared / 1e9,
        }
        text = (
            "From decision to first token, the model expected {expected_ms_mean:ms} on average; the actual mean was"
            " {waited_ms_mean:ms}."
        )
        lines.append(Line(phrase(text, of=times, source="decisions"), 17))
    return lines


def _write_simulations(run: Material, again: list[Again]) -> list[Line]:
    figures: dict[str, float] = {
        "decisions": len(again),
        "better": sum(decision.regret_ps > 0 for decision in again),
        "regret_ms_mean": mean_regret_ms(again),
    }
    text = (
        "True regret: of {decisions:count} decisions simulated again, {better:count} had an alternative with an earlier"
        " first token; {regret_ms_mean:ms} per decision on average."
    )
    lines = [Line(phrase(text, of=figures, source="counterfactuals"), 7)]
    gains = objective_gains(run)
    if gains:
        place = gains[0][1]
        counts = {"objective_better": sum(gain > 0 for gain, _ in gains), "objective_known": len(gains)}
        text = "would have been better in {objective_better:count} of {objective_known:count} alternatives"
        parts = phrase(
            "The run's {objective:name} {}, at best {alternative_value:amount} instead of {value:amount} (request"
            " {request:number}).",
            phrase(text, of=counts, source="counterfactuals"),
            of=run.result.counterfactuals[place],
            source=f"counterfactual.{place}",
        )
        lines.append(Line(parts, 15))
    return lines


def mean_regret_ms(again: list[Again]) -> float:
    return sum(max(0, decision.regret_ps) for decision in again) / len(again) / 1e9


def objective_gains(run: Material) -> list[tuple[float, int]]:
    """Return how much each alternative improves the objective of the whole run, best first, with the index of the
    alternative."""
    gains = []
    for place, tried in enumerate(run.result.counterfactuals):
        if tried.value is not None and tried.alternative_value is not None:
            sign = -1.0 if direction(tried.objective) == "low" else 1.0
            gains.append((sign * (tried.alternative_value - tried.value), place))
    return sorted(gains, key=lambda gain: (-gain[0], gain[1]))


def describe_alternative(run: Material, again: Again) -> Parts:
    best, source = again.best, again.source
    parts = phrase(
        "If request {request:number} had gone to {} instead of {} at {at_ps:at}, its first token would have come"
        " {regret_ps:ms_of} sooner (TTFT {alternative_ttft_ps:ms_of} instead of {ttft_ps:ms_of})",
        _where(run, best.alternative, best.alternative_prefill),
        _where(run, best.chosen, best.chosen_prefill),
        of=best,
        source=source,
    )
    if best.value is not None and best.value == best.alternative_value:
        parts += phrase("; {objective:name} would have been the same", of=best, source=source)
    elif best.value is not None and best.alternative_value is not None:
        text = "; {objective:name} would have been {alternative_value:amount} instead of {value:amount}"
        parts += phrase(text, of=best, source=source)
    return (*parts, ".")


def _where(run: Material, target: int, prefill: int) -> Parts:
    if prefill < 0:
        return (run.instance(target),)
    return phrase("{} (prompt on {})", run.instance(target), run.instance(prefill))
