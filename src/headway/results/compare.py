"""Ranking several runs of one scenario by their summaries, best first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from headway.types import HeadwayError, Json
from headway.wording import suggest

Best = Literal["low", "high"]
Named = tuple[str, Json]

# The longest matching beginning of a path decides.
BEST: dict[str, Best] = {
    "duration_s": "low",
    "preemptions": "low",
    "requests.completed": "high",
    "requests.rejected": "low",
    "requests.timed_out": "low",
    "requests.failed": "low",
    "requests.in_flight": "low",
    "latency": "low",
    "throughput": "high",
    "cache": "high",
    "balance.cv": "low",
    "balance.jain": "high",
    "slo": "high",
    "cost": "low",
}


def rank(results: Iterable[Named], by: str | None = None, best: Best | None = None) -> list[Named]:
    """Best first; equals keep the order given, and a run without the figure comes last.

    `by` is a dotted path of the summary, such as `latency.ttft.p99`; which way is better follows from the path, or
    from `best`. Without `by`: with an SLO the most goodput per planned request, then the lowest p99 of TTFT; without
    one the fewest requests lost, so that shedding does not pay, then the lowest mean of E2E.
    """
    named = list(results)
    if by is not None:
        way = best or direction(by)
        return sorted(named, key=lambda pair: _key(value(pair[1], by), way))
    return sorted(named, key=lambda pair: _default(pair[1]))


def direction(path: str) -> Best:
    """Whether a low or a high value of this metric is better."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        found = BEST.get(".".join(parts[:length]))
        if found is not None:
            return found
    raise HeadwayError(f"{path}: say whether low or high is best; nothing is known of this metric.")


def value(summary: Json, path: str) -> float | None:
    """The number at a dotted path of a summary; None where the run had no sample."""
    found: Any = summary
    for part in path.split("."):
        if not isinstance(found, dict) or part not in found:
            raise HeadwayError(f"{path}: the summary has no such figure.{suggest(path, paths(summary))}")
        found = found[part]
    if found is not None and (isinstance(found, bool) or not isinstance(found, (int, float))):
        raise HeadwayError(f"{path}: is not a single number.{suggest(path, paths(summary))}")
    return found


def paths(summary: Json, prefix: str = "") -> list[str]:
    """All dotted paths of a summary that lead to a number (or to None)."""
    found = []
    for name, inner in summary.items():
        if isinstance(inner, dict):
            found += paths(inner, f"{prefix}{name}.")
        elif not isinstance(inner, (list, str)):
            found.append(prefix + name)
    return found


def _key(number: float | None, way: Best) -> tuple[bool, float]:
    if number is None or number != number:
        return True, 0.0
    return False, number if way == "low" else -number


def _default(summary: Json) -> tuple[tuple[bool, float], ...]:
    slo, latency, requests = summary["slo"], summary["latency"], summary["requests"]
    if slo["ttft_attainment"] is not None or slo["tpot_attainment"] is not None:
        return _key(slo["goodput_ratio"], "high"), _key(latency["ttft"]["p99"], "low")
    lost = requests["rejected"] + requests["timed_out"] + requests["failed"]
    return _key(lost, "low"), _key(latency["e2e"]["mean"], "low")
