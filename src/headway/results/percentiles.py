"""Mean, percentiles and extremes of a sample of durations, from picoseconds to milliseconds in one rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import fsum
from typing import Final

from headway.types import PS_PER_SECOND

PS_PER_MS: Final = PS_PER_SECOND // 1000
PERCENTS: Final = (50, 75, 90, 95, 99)
NAMES: Final = ("mean", *(f"p{percent}" for percent in PERCENTS), "min", "max")

Spread = dict[str, float | None]


def ranks(count: int) -> list[int]:
    """The ranks that the spread of so many values is read from, in ascending order."""
    wanted = {0, count - 1}
    for percent in PERCENTS:
        below = (count - 1) * percent // 100
        wanted.update((below, min(below + 1, count - 1)))
    return sorted(wanted)


def spread(count: int, total: float, at: Callable[[int], float]) -> Spread:
    """The statistics of a sample, in milliseconds; `at` gives its value of a rank, in picoseconds. A percentile lies
    linearly between its two order statistics (numpy's default; Hyndman and Fan's type 7)."""
    if not count:
        return dict.fromkeys(NAMES)
    found: Spread = {"mean": float(Fraction(total) / (count * PS_PER_MS))}
    for percent in PERCENTS:
        below, share = divmod((count - 1) * percent, 100)
        above = min(below + 1, count - 1)
        value = Fraction(at(below)) * (100 - share) + Fraction(at(above)) * share
        found[f"p{percent}"] = float(value / (100 * PS_PER_MS))
    found["min"] = float(Fraction(at(0)) / PS_PER_MS)
    found["max"] = float(Fraction(at(count - 1)) / PS_PER_MS)
    return found


def spread_of(values: Sequence[float]) -> Spread:
    """The statistics of integers (exact) or of floats."""
    ordered = sorted(values)
    whole = not ordered or isinstance(ordered[0], int)
    return spread(len(ordered), sum(ordered) if whole else fsum(ordered), ordered.__getitem__)
