"""What other choices would have given: by the latency model when they were made, and by simulating them again."""

from __future__ import annotations

from msgspec import Struct

from headway.results.ranking import direction
from headway.results.records import Counterfactual, best_alternatives
from headway.results.survey import Survey
from headway.results.words.issues import undecided
from headway.results.words.material import Material
from headway.results.words.phrases import Line, Parts, Section, amount, at, count, ms, ms_of, name, number, said
from headway.types import PS_PER_SECOND

TITLE: tuple[str] = ("## Counterfactual Analysis",)


class Again(Struct, frozen=True):
    """A decision that was simulated again: the place of its best alternative, and by how much sooner that was."""

    place: int
    one: Counterfactual
    regret_ps: int


def simulated_again(run: Material) -> list[Again]:
    """The best alternative of each decision that was simulated again, by the time to first token; most regret first.
    Those are left out where a first token never came."""
    tried = run.result.counterfactuals
    best = [Again(place, tried[place], tried[place].regret_ps or 0) for place in best_alternatives(tried).values()]
    return sorted(best, key=lambda again: (-again.regret_ps, again.one.at_ps, again.one.request))


def write_counterfactuals(run: Material) -> Section:
    lines: list[Line] = []
    if run.survey is None:
        lines.append(Line(undecided(run), 16))
    else:
        lines += _estimated(run.survey)
    again = simulated_again(run)
    if again:
        lines += _simulated(run, again)
    else:
        lines.append(Line(("No decision was simulated again: `headway run --counterfactuals N` does so.",), 33))
    return Section(TITLE, lines)


def _estimated(survey: Survey) -> list[Line]:
    if not survey.estimated:
        return [Line(("The latency model had no estimates for these decisions.",), 16)]
    regret = said(
        "Estimated regret: {} a decision on average, {} s over {} decisions; {} went where the first token would not"
        " come soonest by the latency model.",
        ms("decisions.regret_ms_mean", survey.regret_ps / survey.estimated / 1e9),
        amount("decisions.regret_s_sum", survey.regret_ps / PS_PER_SECOND),
        count("decisions.estimated", survey.estimated),
        count("decisions.regretted", survey.regretted),
    )
    lines = [Line(regret, 7)]
    if survey.hit_elsewhere:
        elsewhere = count("decisions.hit_elsewhere", survey.hit_elsewhere)
        text = (
            "{} decisions found nothing cached where the request went, while another was believed to hold more of it."
        )
        lines.append(Line(said(text, elsewhere), 9))
    if survey.compared:
        expected = said(
            "From decision to first token the model expected {} on average; it took {}.",
            ms("decisions.expected_ms_mean", survey.expected_ps / survey.compared / 1e9),
            ms("decisions.waited_ms_mean", survey.waited_ps / survey.compared / 1e9),
        )
        lines.append(Line(expected, 17))
    return lines


def _simulated(run: Material, again: list[Again]) -> list[Line]:
    better = sum(one.regret_ps > 0 for one in again)
    gained = sum(max(0, one.regret_ps) for one in again)
    parts = said(
        "True regret: of {} decisions simulated again, {} had an alternative that gave the first token sooner; {} a"
        " decision on average.",
        count("counterfactuals.decisions", len(again)),
        count("counterfactuals.better", better),
        ms("counterfactuals.regret_ms_mean", gained / len(again) / 1e9),
    )
    lines = [Line(parts, 7)]
    gains = objective_gains(run)
    if gains:
        place = gains[0][1]
        one = run.result.counterfactuals[place]
        text = "The run's {} would have been better in {} of {} alternatives, at best {} instead of {} (request {})."
        parts = said(
            text,
            name(f"counterfactual.{place}.objective", one.objective),
            count("counterfactuals.objective_better", sum(gain > 0 for gain, _ in gains)),
            count("counterfactuals.objective_known", len(gains)),
            amount(f"counterfactual.{place}.alternative_value", one.alternative_value or 0.0),
            amount(f"counterfactual.{place}.value", one.value or 0.0),
            number(f"counterfactual.{place}.request", one.request),
        )
        lines.append(Line(parts, 15))
    return lines


def objective_gains(run: Material) -> list[tuple[float, int]]:
    """By how much each alternative would have been better for the whole run, the best first, with its place."""
    found = []
    for place, one in enumerate(run.result.counterfactuals):
        if one.value is not None and one.alternative_value is not None:
            sign = -1.0 if direction(one.objective) == "low" else 1.0
            found.append((sign * (one.alternative_value - one.value), place))
    return sorted(found, key=lambda gain: (-gain[0], gain[1]))


def simulated_phrase(run: Material, again: Again) -> Parts:
    one, place = again.one, f"counterfactual.{again.place}"
    where, was = _where(run, one.alternative, one.alternative_prefill), _where(run, one.chosen, one.chosen_prefill)
    parts = said(
        "If request {} had gone to {} instead of {} at {}, its first token would have come {} sooner (TTFT {} instead"
        " of {})",
        number(f"{place}.request", one.request),
        where,
        was,
        at(f"{place}.at_ps", one.at_ps),
        ms_of(f"{place}.regret_ps", again.regret_ps),
        ms_of(f"{place}.alternative_ttft_ps", one.alternative_ttft_ps),
        ms_of(f"{place}.ttft_ps", one.ttft_ps),
    )
    if one.value is not None and one.value == one.alternative_value:
        parts += said("; {} would have been the same", name(f"{place}.objective", one.objective))
    elif one.value is not None and one.alternative_value is not None:
        parts += said(
            "; {} would have been {} instead of {}",
            name(f"{place}.objective", one.objective),
            amount(f"{place}.alternative_value", one.alternative_value),
            amount(f"{place}.value", one.value),
        )
    return (*parts, ".")


def _where(run: Material, target: int, prefill: int) -> Parts:
    if prefill < 0:
        return (run.instance(target),)
    return said("{} (prompt on {})", run.instance(target), run.instance(prefill))
