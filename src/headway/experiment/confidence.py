"""What several seeds say of a figure: its mean, and where the mean of all seeds lies with 95 % confidence."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt
from typing import Final

from msgspec import Struct

# Student's t, two-sided 95 %, by degrees of freedom from 1 on.
# fmt: off
QUANTILES: Final = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)
# fmt: on
NORMAL: Final = 1.959964


class Interval(Struct, frozen=True):
    """A mean; the bounds are None where one seed alone says nothing of them."""

    mean: float
    low: float | None
    high: float | None


def quantile(freedom: int) -> float:
    if freedom <= len(QUANTILES):
        return QUANTILES[freedom - 1]
    z = NORMAL  # and the first terms of its expansion about the normal law
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def interval(values: Sequence[float | None], share: bool = False) -> Interval | None:
    """The mean over seeds with its t-interval, cut to what is possible: none is below 0, no share above 1. None where
    a seed has no such figure."""
    found = [value for value in values if value is not None]
    if not found or len(found) < len(values):
        return None
    count = len(found)
    mean = fsum(found) / count
    if count == 1:
        return Interval(mean, None, None)
    spread = sqrt(fsum((value - mean) ** 2 for value in found) / (count - 1))
    half = quantile(count - 1) * spread / sqrt(count)
    high = mean + half
    return Interval(mean, max(0.0, mean - half), min(1.0, high) if share else high)
