"""Arrival processes: rate, burstiness, order, and exactness where it can be had."""

from __future__ import annotations

from fractions import Fraction
from itertools import islice, pairwise
from math import fsum, sqrt

import pytest

from headway.streams import stream
from headway.workload import arrivals

COUNT = 40_000


def gaps(spec: object, rate: Fraction, count: int = COUNT) -> list[int]:
    times = list(islice(arrivals.microseconds(arrivals.parse(spec, "w"), rate, stream(5, "t")), count))
    return [later - earlier for earlier, later in pairwise([0, *times])]


def cv(values: list[int]) -> float:
    mean = fsum(values) / len(values)
    return sqrt(fsum((value - mean) ** 2 for value in values) / len(values)) / mean


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("poisson", 1.0),
        ({"process": "poisson"}, 1.0),
        ("gamma", 2.0),
        ({"process": "gamma", "cv": 0.5}, 0.5),
        ({"process": "gamma", "cv": 3}, 3.0),
    ],
)
def test_gaps_have_the_mean_of_the_rate_and_the_cv_asked_for(spec: object, expected: float) -> None:
    found = gaps(spec, Fraction(40))
    assert all(gap >= 0 for gap in found)
    assert fsum(found) / COUNT == pytest.approx(25_000, rel=5 * expected / sqrt(COUNT))
    # the sampling error of a cv grows with the fourth moment; 5 % is several of its deviations here
    assert cv(found) == pytest.approx(expected, rel=0.05)


def test_constant_arrivals_start_at_zero_and_never_drift() -> None:
    process = arrivals.parse("constant", "w")
    times = list(islice(arrivals.microseconds(process, Fraction(3), stream(1, "t")), 3_000_001))
    assert times[:4] == [0, 333_333, 666_667, 1_000_000]
    assert times[-1] == 1_000_000 * 1_000_000


def test_rates_beyond_one_a_microsecond_keep_their_mean() -> None:
    times = list(islice(arrivals.microseconds(arrivals.parse("poisson", "w"), Fraction(10**7), stream(2, "t")), COUNT))
    assert times == sorted(times)
    assert times[-1] == pytest.approx(COUNT / 10, rel=5 / sqrt(COUNT))


def test_twice_the_rate_halves_every_arrival() -> None:
    slow = islice(arrivals.microseconds(arrivals.parse("poisson", "w"), Fraction(5), stream(2, "t")), 1000)
    fast = islice(arrivals.microseconds(arrivals.parse("poisson", "w"), Fraction(10), stream(2, "t")), 1000)
    assert all(abs(late - 2 * early) <= 2 for late, early in zip(slow, fast, strict=True))
