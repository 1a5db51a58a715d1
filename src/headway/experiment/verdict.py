"""What a comparison comes to, in a sentence or two that claim no more than the figures do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headway.experiment.notes import note
from headway.results.compare import Named
from headway.types import Json
from headway.wording import listed

LEVEL = 0.02  # a difference of the deciding latency that is not worth a claim
ENOUGH = 0.5  # below this share within the SLO nobody serves the workload
SHOWN = 4  # names of level policies; the rest are counted


def verdict(ranked: Sequence[Named], scenario: Json, oracles: Collection[str] = ()) -> str:
    """Who won, by what, and against whom; or that several are level, or that nobody meets the SLO."""
    fair = [pair for pair in ranked if pair[0] not in oracles] or list(ranked)
    (best, summary), *others = fair
    empty = [note(found, scenario["warmup"]) for _, found in fair]
    if empty[0] is not None:
        return empty[0]
    slo = has_slo(scenario)
    level = [pair for pair in others if _level(summary, pair[1], slo)]
    rest = [pair for pair in others if pair not in level]
    figures = _reason([summary, *(found for _, found in level)], slo)
    # The plainest policy of the field is the one to measure against; failing that, the next one down.
    against = next((pair for pair in rest if pair[0] == "round-robin"), rest[0] if rest else None)
    beside = "" if against is None else f" ({against[0]}: {_reason([against[1]], slo)})"
    who = _names([best, *(name for name, _ in level)])
    if slo and _share(summary) < ENOUGH:
        said = f"No policy serves this within the SLO: {who} {'come' if level else 'comes'} closest, {figures}{beside}."
    elif not others:
        said = f"{best} ran alone: {figures}."
    elif level:
        said = f"{who} are level: {figures}{beside}."
    else:
        said = f"{best} serves this best: {figures}{beside}."
    ahead = [pair for pair in ranked[: ranked.index((best, summary))] if pair[0] in oracles]
    if ahead:
        said += f" {ahead[0][0]}, an oracle, shows what more there is: {_reason([ahead[0][1]], slo)}."
    return said


def has_slo(scenario: Json) -> bool:
    return any(target is not None for target in scenario["slo"].values())


def _names(names: list[str]) -> str:
    if len(names) <= SHOWN + 1:
        return listed(names)
    return f"{', '.join(names[:SHOWN])} and {len(names) - SHOWN} others"


def _share(summary: Json) -> float:
    return summary["slo"]["goodput_ratio"] or 0.0


def _lost(summary: Json) -> int:
    requests = summary["requests"]
    return int(requests["rejected"] + requests["timed_out"] + requests["failed"])


def _latency(summary: Json, slo: bool) -> float | None:
    """What decides between policies that serve equally many requests."""
    found = summary["latency"]["ttft"]["p99"] if slo else summary["latency"]["e2e"]["mean"]
    return None if found is None else float(found)


def _level(best: Json, other: Json, slo: bool) -> bool:
    same = round(_share(best), 3) == round(_share(other), 3) if slo else _lost(best) == _lost(other)
    mine, its = _latency(best, slo), _latency(other, slo)
    return same and mine is not None and its is not None and abs(its - mine) <= LEVEL * mine


def _reason(summaries: list[Json], slo: bool) -> str:
    """The figures that decided, as a range where several policies share them."""
    latencies = [value for value in (_latency(summary, slo) for summary in summaries) if value is not None]
    if not latencies:
        return "nothing completed"
    digits = 1 if slo else 0
    low, high = f"{min(latencies):,.{digits}f}", f"{max(latencies):,.{digits}f}"
    span = low if low == high else f"{low} to {high}"
    if not slo:
        return f"E2E {span} ms on average"
    return f"{100 * _share(summaries[0]):.1f} % within the SLO, TTFT p99 {span} ms"
