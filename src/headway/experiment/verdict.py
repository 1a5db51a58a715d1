"""The verdict of a comparison: one or two sentences that claim only what the figures show."""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import floor, log10
from typing import Any

from headway.config.wording import join_words
from headway.experiment.notes import note_no_figures
from headway.experiment.paired import SHARE, Noise
from headway.results.groups import promises
from headway.results.ranking import Named, direction, value
from headway.types import Json

LEVEL = 0.02  # policies tie if their deciding figures differ by no more than this fraction
ENOUGH = 0.5  # if a smaller fraction of requests meets the SLO, no policy serves the workload
SHOWN = 4  # maximum number of tied policies to name; the rest are counted


def verdict(
    ranked: Sequence[Named],
    scenario: Json,
    oracles: Collection[str] = (),
    by: str | None = None,
    plain: str = "round-robin",
    noise: Noise | None = None,
) -> str:
    """Name the best policy, or the policies that tie for the best, with their figures. For comparison, also show the
    figures of `plain`. If `plain` did not run, or is itself among the best, show the next policy in the ranking
    instead. With several seeds, `ranked` has means, and `noise` tells which differences are more than noise."""
    fair = [pair for pair in ranked if pair[0] not in oracles] or list(ranked)
    (best, summary), *others = fair
    nothing = note_no_figures(summary, scenario["warmup"])
    if nothing is not None and (by is None or value(summary, by) is None):
        return nothing
    slo = has_slo(scenario)
    level = [pair for pair in others if _level((best, summary), pair, slo, by, noise)]
    rest = [pair for pair in others if pair not in level]
    figures = _reason([summary, *(its for _, its in level)], slo, by)
    against = next((pair for pair in rest if pair[0] == plain), rest[0] if rest else None)
    beside = "" if against is None else f" ({against[0]}: {_reason([against[1]], slo, by)})"
    names = _names([best, *(name for name, _ in level)])
    if slo and by is None and _share(summary) < ENOUGH:
        closest = f"{names} {'come' if level else 'comes'} closest, {figures}{beside}"
        sentence = f"No policy serves this within the SLO: {closest}."
    elif not others:
        sentence = f"{best} ran alone: {figures}."
    elif level and noise is not None and not any(noise.shows(best, name) for name, _ in level):
        sentence = f"There is no difference between {names}: {figures}{beside}."
    elif level:
        hidden = noise is not None and any(
            noise.hides(best, name, _between(summary, its, slo, by)) for name, its in level
        )
        tie = "within noise" if hidden else f"within {100 * LEVEL:.0f} %"
        sentence = f"{names} are {tie} of each other: {figures}{beside}."
    elif by is None:
        sentence = f"{best} serves this best: {figures}{beside}."
    else:
        sentence = f"{best} is {'highest' if direction(by) == 'high' else 'lowest'}: {figures}{beside}."
    ahead = [pair for pair in ranked[: ranked.index((best, summary))] if pair[0] in oracles]
    if noise is not None:
        ahead = [pair for pair in ahead if not _level((best, summary), pair, slo, by, noise)]
    if ahead:
        sentence += f" {ahead[0][0]}, an oracle, shows what is still possible: {_reason([ahead[0][1]], slo, by)}."
    if noise is None:
        return sentence
    if noise.seeds_agree():
        return f"{sentence} All {noise.seeds} seeds gave the same figures: nothing is random, so one seed is enough."
    return f"{sentence} Means over {noise.seeds} seeds."


def saving(ranked: Sequence[Named], scenario: Json, plain: str, noise: Noise | None = None) -> str:
    """Name the cheapest policy that serves as many requests as the best policy, and its savings relative to `plain`.
    Return an empty string if no policy costs less, or if the difference is noise."""
    slo = has_slo(scenario)
    best = ranked[0][1]
    good = [pair for pair in ranked if _as_many(best, pair[1], slo)]
    name, cheapest = min(good, key=lambda pair: pair[1]["cost"]["usd"])
    usd = cheapest["cost"]["usd"]
    beside = next((summary["cost"]["usd"] for known, summary in ranked if known == plain), 0.0)
    if name == plain or usd >= max(beside, *(summary["cost"]["usd"] for _, summary in good)):
        return ""
    rivals = [other for other, _ in ranked if other != name and (other == plain or other in dict(good))]
    if noise is not None and any(noise.hides(name, other, "cost.usd") for other in rivals):
        return ""
    lead = f"Of the policies that {'meet the SLO as often' if slo else 'lose as few requests'}, {name} costs the least,"
    less = "" if usd >= beside else f", {100 * (1 - usd / beside):.0f} % less than {plain}"
    return f" {'It costs' if len(good) == 1 else lead} {f'{usd:,.2f}' if usd >= 1 else format_figure(usd)} USD{less}."


def has_slo(scenario: Mapping[str, Any]) -> bool:
    """Return whether the scenario or one of its tenants has an SLO."""
    return promises(scenario).any


def _names(names: list[str]) -> str:
    if len(names) <= SHOWN + 1:
        return join_words(names)
    return f"{', '.join(names[:SHOWN])} and {len(names) - SHOWN} others"


def _share(summary: Json) -> float:
    return summary["slo"]["goodput_ratio"] or 0.0


def _lost(summary: Json) -> float:
    requests = summary["requests"]
    return float(requests["rejected"] + requests["timed_out"] + requests["failed"])


def _decisive(slo: bool, by: str | None) -> str:
    """Return the path of the figure that ranks policies which serve equally many requests: `by` if it is set, otherwise
    TTFT p99 with an SLO, and the mean E2E without one."""
    return by or ("latency.ttft.p99" if slo else "latency.e2e.mean")


def _between(best: Json, other: Json, slo: bool, by: str | None) -> str:
    return _decisive(slo, by) if by is not None or _as_many(best, other, slo) else SHARE


def _level(best: Named, other: Named, slo: bool, by: str | None, noise: Noise | None) -> bool:
    figure = _between(best[1], other[1], slo, by)
    if noise is not None and noise.hides(best[0], other[0], figure):
        return True
    if figure == SHARE and by != SHARE:
        return False
    mine, its = value(best[1], figure), value(other[1], figure)
    return mine is not None and its is not None and abs(its - mine) <= LEVEL * abs(mine)


def _as_many(best: Json, other: Json, slo: bool) -> bool:
    """Return whether two policies serve equally many requests, rounded to the digits that a table shows."""
    if slo:
        return round(_share(best), 3) == round(_share(other), 3)
    return _lost(best) == _lost(other)


def _reason(summaries: list[Json], slo: bool, by: str | None) -> str:
    """Return the deciding figures in words, as a range if there are several policies."""
    numbers = [number for number in (value(summary, _decisive(slo, by)) for summary in summaries) if number is not None]
    if not numbers:
        return "nothing completed" if by is None else f"no {by}"
    if by is not None:
        return f"{by} {_span(numbers, format_figure)}"
    if not slo:
        return f"E2E {_span(numbers, '{:,.0f}'.format)} ms on average"
    apart = any(round(_share(summary), 3) != round(_share(summaries[0]), 3) for summary in summaries)
    shares = _span([100 * _share(summary) for summary in (summaries if apart else summaries[:1])], "{:.1f}".format)
    return f"{shares} % within the SLO, TTFT p99 {_span(numbers, '{:,.1f}'.format)} ms"


def _span(numbers: list[float], write: Callable[[float], str]) -> str:
    low, high = write(min(numbers)), write(max(numbers))
    return low if low == high else f"{low} to {high}"


def format_figure(number: float) -> str:
    """Return a figure with four significant digits. If its integer part is longer, keep all digits of that part."""
    decimals = 0 if number == int(number) else max(0, 3 - floor(log10(abs(number))))
    return f"{number:,.{decimals}f}"
