"""Statistics of samples: percentiles, and means over seeds with 95 % confidence intervals."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from math import atan, fsum, pi, sqrt
from typing import Final

from msgspec import Struct

from headway.types import PS_PER_SECOND

PS_PER_MS: Final = PS_PER_SECOND // 1000
PERCENTS: Final = (50, 75, 90, 95, 99)
NAMES: Final = ("mean", *(f"p{percent}" for percent in PERCENTS), "min", "max")

Spread = dict[str, float | None]


def ranks(count: int) -> list[int]:
    """Return which ranks `spread` needs of a sample of `count` values, in ascending order. The smallest value has rank
    0."""
    places = {0, count - 1}
    for percent in PERCENTS:
        below = (count - 1) * percent // 100
        places.update((below, min(below + 1, count - 1)))
    return sorted(places)


def spread(count: int, total: float, at: Callable[[int], float]) -> Spread:
    """Return the statistics of a sample in milliseconds; `at` returns the value of a rank in picoseconds. Percentiles
    interpolate linearly between two order statistics (numpy's default; Hyndman and Fan's type 7)."""
    if not count:
        return dict.fromkeys(NAMES)
    statistics: Spread = {"mean": float(Fraction(total) / (count * PS_PER_MS))}
    for percent in PERCENTS:
        below, share = divmod((count - 1) * percent, 100)
        above = min(below + 1, count - 1)
        value = Fraction(at(below)) * (100 - share) + Fraction(at(above)) * share
        statistics[f"p{percent}"] = float(value / (100 * PS_PER_MS))
    statistics["min"] = float(Fraction(at(0)) / PS_PER_MS)
    statistics["max"] = float(Fraction(at(count - 1)) / PS_PER_MS)
    return statistics


def spread_of(values: Sequence[float]) -> Spread:
    """Return the statistics of integers or floats. Sums of integers are exact."""
    ordered = sorted(values)
    whole = not ordered or isinstance(ordered[0], int)
    return spread(len(ordered), sum(ordered) if whole else fsum(ordered), ordered.__getitem__)


CONFIDENCE: Final = 0.95
DECIMALS: Final = 9  # number of decimals of a quantile, because further decimals differ between machines


class Interval(Struct, frozen=True):
    """A mean with its confidence interval. With a single seed, the bounds are None."""

    mean: float
    low: float | None
    high: float | None


@cache
def quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Return t such that a variable of Student's t-distribution is within ±t with this probability."""
    low, high = 0.0, 16.0
    while within(high, freedom) < confidence:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, freedom) < confidence else (low, middle)
    return round(high, DECIMALS)


def within(t: float, freedom: int) -> float:
    """Return the probability that a variable of Student's t-distribution is between -t and t. The finite sums are those
    for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    square = freedom / (freedom + t * t)  # cos² of the angle whose tangent is t / sqrt(freedom)
    sine = t / sqrt(freedom + t * t)
    odd = freedom % 2
    terms = [sqrt(square)] if odd else [1.0]
    for step in range(2 + odd, freedom - 1, 2):
        terms.append(terms[-1] * square * (step - 1) / step)
    if not odd:
        return sine * fsum(terms)
    angle = atan(t / sqrt(freedom))
    return 2 / pi * (angle if freedom == 1 else angle + sine * fsum(terms))


def mean_of(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of independent values with its t-interval, mean ± t(n - 1) · s / √n."""
    count = len(values)
    mean = fsum(values) / count
    if count == 1:
        return Interval(mean, None, None)
    half = quantile(count - 1, confidence) * deviation(values) / sqrt(count)
    return Interval(mean, mean - half, mean + half)


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation s of two or more values. If all values are equal, it is exactly 0."""
    if all(value == values[0] for value in values):
        return 0.0
    mean = fsum(values) / len(values)
    return sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def interval(values: Sequence[float | None], share: bool = False) -> Interval | None:
    """Return the mean over seeds with its t-interval, clipped at 0 and, with `share`, also at 1. If a seed has no
    value, return None."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    whole = mean_of(known)
    if whole.low is None or whole.high is None:
        return whole
    return Interval(whole.mean, max(0.0, whole.low), min(1.0, whole.high) if share else whole.high)
