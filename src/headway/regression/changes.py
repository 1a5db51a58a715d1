"""What else changed between the two sides: the figures that changed most, and findings that appeared or went."""

from collections.abc import Mapping, Sequence
from math import exp
from typing import Final

from msgspec import Struct

from headway.regression.conditions import Condition
from headway.regression.measure import Evidence, measure_known
from headway.regression.pairs import Pair
from headway.results.ranking import direction, paths
from headway.results.statistics import NAMES

SHOWN: Final = 3
STATISTICS: Final = ("mean", "p50", "p99")  # of each distribution, only these
# A ratio of two other figures, which would hide them: it is better if the median gets worse.
DERIVED: Final = "pathology.tail_latency_blowup"
# Error of the interval that must exclude 0. It is small because there are more than a hundred figures.
ERROR: Final = 0.001


class Change(Struct, frozen=True):
    """A figure that changed by more than noise. `relative` is None if the base is 0."""

    figure: str
    base: float
    candidate: float
    relative: float | None
    better: bool


class Turn(Struct, frozen=True):
    """A kind of finding that most runs of one side have and most runs of the other side do not have."""

    kind: str
    workload: str
    base: int  # runs with such a finding
    candidate: int
    runs: int  # runs of each side
    title: str


def largest(evidence: Evidence) -> list[Change]:
    """Return the figures that changed most, at most one of each distribution or section."""
    first = next((pairs[0] for pairs in evidence.values() if pairs), None)
    if first is None or len(next(iter(evidence.values()))) < 2:
        return []
    names = dict.fromkeys(path for summary in first for path in paths(summary))
    found: dict[str, tuple[float, Change]] = {}
    for path in names:
        stem, _, last = path.rpartition(".")
        if direction(path) is None or stem == DERIVED or (last in NAMES and last not in STATISTICS):
            continue
        change = _change(path, evidence)
        family = stem if last in NAMES else path.partition(".")[0]
        if change is not None and change[0] > found.get(family, (0.0, change[1]))[0]:
            found[family] = change
    return [change for _, change in sorted(found.values(), key=lambda each: -each[0])[:SHOWN]]


def _change(path: str, evidence: Evidence) -> tuple[float, Change] | None:
    """Return the change of a figure and its size from 0 to 1; None if the change may be noise."""
    relative = measured = measure_known(Condition("", path, ">", "relative", 0.0), evidence, ERROR, whole=True)
    if relative is not None and relative.estimate is None:
        measured = measure_known(Condition("", path, ">", "change", 0.0), evidence, ERROR, whole=True)
    if relative is None or measured is None:
        return None
    estimate, base, candidate = measured.estimate, measured.base, measured.candidate
    if estimate is None or base is None or candidate is None or estimate.low <= 0 <= estimate.high:
        return None
    if relative.estimate is None:
        size = abs(estimate.mean) / max(abs(base), abs(candidate))
        change = (candidate - base) / base if base else None
    else:
        size, change = 1 - exp(-abs(estimate.mean)), relative.change
    return size, Change(path, base, candidate, change, (estimate.mean > 0) == (direction(path) == "high"))


def turned(pairs: Mapping[str, Sequence[Pair]]) -> tuple[list[Turn], list[Turn]]:
    """Return the findings that appeared, and those that went."""
    appeared, gone = [], []
    for workload, runs in pairs.items():
        told = [(base.findings, mine.findings) for base, mine in runs]
        known = [(base, mine) for base, mine in told if base is not None and mine is not None]
        titles = {kind: title for pair in known for side in pair for kind, title in side.items()}
        for kind, title in titles.items():
            before, after = (sum(kind in pair[side] for pair in known) for side in (0, 1))
            turn = Turn(kind, workload, before, after, len(known), title)
            if 2 * after > len(known) >= 2 * before:
                appeared.append(turn)
            elif 2 * before > len(known) >= 2 * after:
                gone.append(turn)
    return appeared, gone
