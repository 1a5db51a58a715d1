"""The sequential test of a check: when it looks, how wide its intervals are, and what it concludes.

The test looks after 8, 16, 32, ... pairs of runs, up to the greatest number N. At each look it forms an interval of the
mean. The intervals of all looks together may miss the true mean with a probability of at most `error`: until the look
after n pairs, the looks spend error · (n / N)^1.5 (a power-family spending function), and the probabilities of the
looks add up at most (Bonferroni). So it is allowed to stop at any look. With several conditions, each gets its part of
the error.

The interval covers both the t-interval and Hall's interval, which corrects for skewness: a t-interval of few skewed
numbers, such as the p99 of runs, misses the mean far more often than it should. `benchmarks/check_errors.py` measures
the rates that remain.

When to look never depends on the figures. If the time ends the test early, its last look spends all that is left.
"""

from collections.abc import Iterator, Sequence
from math import ceil, copysign, fsum, sqrt
from typing import Final, Literal

from msgspec import Struct

from headway.regression.conditions import Condition
from headway.results.statistics import deviation, mean_of, quantile

Outcome = Literal["pass", "fail", "cannot tell"]
FIRST: Final = 8  # pairs of runs before the first look
POWER: Final = 1.5  # the larger, the less error the early looks spend
# If all differences are equal, they say nothing about their variance. After 16 of them, fewer than one pair in six
# differs, with 95 % confidence.
EQUAL: Final = 16
LEAST: Final = 2  # fewest pairs that have an interval
FLAT: Final = 1e-9  # skewness below which Hall's interval is the t-interval


def looks(most: int) -> Iterator[int]:
    """Yield the numbers of pairs after which the test looks."""
    count = min(FIRST, most)
    while count < most:
        yield count
        count = min(2 * count, most)
    yield most


class Spending:
    """How much of the error the looks of one condition have spent."""

    def __init__(self, error: float, most: int) -> None:
        self.error, self.most = error, most
        self.spent = 0.0

    def take(self, count: int, last: bool) -> float:
        """Return the error for the look after `count` pairs. The last look takes all that is left."""
        share = (self.error if last else self.error * (count / self.most) ** POWER) - self.spent
        self.spent += share
        return share


class Estimate(Struct, frozen=True):
    """The mean of a condition's numbers with its interval."""

    mean: float
    low: float
    high: float
    count: int
    needed: int | None = None  # pairs that would decide, if the mean and the variance stay; None: the mean is the limit


def paired(values: Sequence[float], error: float, bound: float) -> Estimate:
    """Return the estimate from paired differences, or from levels."""
    mean = mean_of(values, 1 - error)
    low, high = (mean.mean if end is None else end for end in (mean.low, mean.high))
    skewed = _skewed_ends(values, mean.mean, error)
    return _estimate(mean.mean, min(low, *skewed), max(high, *skewed), len(values), bound)


def _skewed_ends(values: Sequence[float], mean: float, error: float) -> tuple[float, float]:
    """Return the ends of Hall's interval (1992): a cubic function makes the t-statistic of skewed numbers symmetric,
    and its inverse makes the interval skewed."""
    count = len(values)
    spread = deviation(values)
    if count < 3 or not spread:
        return mean, mean
    third = fsum([((value - mean) / spread) ** 3 for value in values])
    skewness = third * count / ((count - 1) * (count - 2))
    slope = skewness / (3 * sqrt(count))
    if abs(slope) < FLAT:
        return mean, mean
    t = quantile(count - 1, 1 - error)

    def inverse(t: float) -> float:
        cube = 1 + 3 * slope * (t - skewness / (6 * sqrt(count)))
        return float((copysign(abs(cube) ** (1 / 3), cube) - 1) / slope)

    width = spread / sqrt(count)
    return mean - inverse(t) * width, mean - inverse(-t) * width


def unpaired(base: Sequence[float], candidate: Sequence[float], error: float, bound: float) -> Estimate:
    """Return the estimate of the difference between two independent samples (Welch's t-interval)."""
    parts = [(deviation(side) ** 2 / len(side), len(side)) for side in (base, candidate)]
    variance = fsum([part for part, _ in parts])
    mean = mean_of(candidate).mean - mean_of(base).mean
    count = min(len(base), len(candidate))
    half = 0.0
    if variance:
        freedom = max(1, int(variance**2 / fsum([part**2 / (many - 1) for part, many in parts])))
        half = quantile(freedom, 1 - error) * sqrt(variance)
    return _estimate(mean, mean - half, mean + half, count, bound)


def _estimate(mean: float, low: float, high: float, count: int, bound: float) -> Estimate:
    """Return an estimate with the number of pairs that would be needed: an interval shrinks with their square root."""
    if low == high:
        return Estimate(mean, low, high, count, EQUAL)
    half = mean - low if mean > bound else high - mean
    many = (half / (mean - bound)) ** 2 * count if mean != bound else None
    return Estimate(mean, low, high, count, None if many is None or many > 1e9 else ceil(many))


def judge(condition: Condition, estimate: Estimate, whole: bool) -> Outcome:
    """Return what an interval says. `whole` says that there can be no further pairs: without it, equal differences
    decide only if there are enough of them."""
    if estimate.low == estimate.high and estimate.count < EQUAL and not whole:
        return "cannot tell"
    above, below = estimate.low > condition.bound, estimate.high < condition.bound
    if condition.sign == ">":
        return "fail" if above else "pass" if estimate.high <= condition.bound else "cannot tell"
    return "fail" if below else "pass" if estimate.low >= condition.bound else "cannot tell"
