"""The sequential test of a check: when it looks, how wide its intervals are, and what it concludes.

The test looks after 4, 8, 16, ... pairs of runs, up to the greatest number. At each look it forms a t-interval of the
mean. The intervals of all looks together may miss the true mean with a probability of at most `error`: each look
spends a part of this error in proportion to its new pairs (a linear spending function), and the probabilities of the
parts add up at most (Bonferroni). So it is allowed to stop at any look. With several conditions, each gets its part of
the error.

When to look never depends on the figures. If the time ends the test early, its last look spends all that is left.
"""

from collections.abc import Iterator, Sequence
from math import ceil, sqrt
from typing import Final, Literal

from msgspec import Struct

from headway.regression.conditions import Condition
from headway.results.statistics import deviation, mean_of, quantile

Outcome = Literal["pass", "fail", "cannot tell"]
FIRST: Final = 4  # pairs of runs before the first look
# If all differences are equal, they say nothing about their variance. After 16 of them, fewer than one pair in six
# differs, with 95 % confidence.
EQUAL: Final = 16
LEAST: Final = 2  # fewest pairs that have an interval


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
        share = self.error - self.spent if last else self.error * count / self.most - self.spent
        self.spent += share
        return share


class Estimate(Struct, frozen=True):
    """The mean of a condition's numbers with its interval."""

    mean: float
    low: float
    high: float
    count: int
    needed: int | None = None  # pairs that would decide, if the mean and the variance stay as they are

    @property
    def half(self) -> float:
        return self.high - self.mean


def paired(values: Sequence[float], error: float, bound: float) -> Estimate:
    """Return the estimate from paired differences, or from levels."""
    mean = mean_of(values, 1 - error)
    low, high = (mean.mean if end is None else end for end in (mean.low, mean.high))
    count = len(values)
    return Estimate(mean.mean, low, high, count, _needed(mean.mean - bound, deviation(values), error, count))


def unpaired(base: Sequence[float], candidate: Sequence[float], error: float, bound: float) -> Estimate:
    """Return the estimate of the difference between two independent samples (Welch's t-interval)."""
    parts = [(deviation(side) ** 2 / len(side), len(side)) for side in (base, candidate)]
    variance = sum([part for part, _ in parts])
    mean = mean_of(candidate).mean - mean_of(base).mean
    count = min(len(base), len(candidate))
    if not variance:
        return Estimate(mean, mean, mean, count)
    freedom = max(1, int(variance**2 / sum([part**2 / (many - 1) for part, many in parts])))
    half = quantile(freedom, 1 - error) * sqrt(variance)
    needed = _needed(mean - bound, sqrt(variance * count), error, count)
    return Estimate(mean, mean - half, mean + half, count, needed)


def _needed(distance: float, spread: float, error: float, count: int) -> int | None:
    """Return how many pairs would make the interval exclude the limit; None if the mean is on the limit."""
    if not spread:
        return EQUAL
    if not distance:
        return None
    many = (quantile(max(count - 1, EQUAL), 1 - error) * spread / distance) ** 2
    return None if many > 1e9 else max(LEAST, ceil(many))


def judge(condition: Condition, estimate: Estimate, whole: bool) -> Outcome:
    """Return what an interval says. `whole` says that there can be no further pairs: without it, equal differences
    decide only if there are enough of them."""
    if estimate.low == estimate.high and estimate.count < EQUAL and not whole:
        return "cannot tell"
    above, below = estimate.low > condition.bound, estimate.high < condition.bound
    if condition.sign == ">":
        return "fail" if above else "pass" if estimate.high <= condition.bound else "cannot tell"
    return "fail" if below else "pass" if estimate.low >= condition.bound else "cannot tell"
