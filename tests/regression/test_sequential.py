"""The sequential test: its looks, the error it spends, and how often its intervals are wrong."""

from __future__ import annotations

from math import exp
from random import Random
from statistics import mean, stdev

import pytest

from headway.regression.conditions import read_conditions
from headway.regression.sequential import EQUAL, Spending, judge, looks, paired, unpaired
from headway.results.statistics import mean_of, quantile

(WORSE,) = read_conditions("ttft.p99>+0ms")
(BETTER,) = read_conditions("ttft.p99<+0ms")


def test_the_test_looks_after_twice_as_many_pairs_each_time() -> None:
    assert list(looks(64)) == [8, 16, 32, 64]
    assert list(looks(50)) == [8, 16, 32, 50]
    assert list(looks(5)) == [5]


@pytest.mark.parametrize("most", [2, 8, 50, 1000])
def test_the_looks_spend_the_whole_error_and_no_more(most: int) -> None:
    spending = Spending(0.05, most)
    shares = [spending.take(count, count == most) for count in looks(most)]
    assert sum(shares) == pytest.approx(0.05) and min(shares) > 0


def test_a_last_look_before_its_time_spends_all_that_is_left() -> None:
    spending = Spending(0.05, 64)
    early = spending.take(8, last=False)
    assert early < 0.005
    assert early + spending.take(20, last=True) == pytest.approx(0.05)


def test_quantiles_of_any_level_agree_with_the_tables() -> None:
    table = {(9, 0.95): 2.262157, (3, 0.99): 5.840909, (30, 0.999): 3.645959, (63, 0.9): 1.669402, (1, 0.99): 63.656741}
    for (freedom, level), value in table.items():
        assert quantile(freedom, level) == pytest.approx(value, abs=1e-6)


def test_an_interval_contains_the_t_interval_and_leans_towards_the_tail() -> None:
    rng = Random(1)
    values = [rng.expovariate(1) for _ in range(40)]
    plain, found = mean_of(values, 0.95), paired(values, 0.05, 0.0)
    assert plain.low is not None and plain.high is not None
    assert found.low <= plain.low and found.high > plain.high
    assert found.high - found.mean > found.mean - found.low
    mirrored = paired([-value for value in values], 0.05, 0.0)
    assert (mirrored.low, mirrored.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


def test_an_interval_beyond_the_limit_decides_and_one_across_it_does_not() -> None:
    rng = Random(2)
    values = [rng.gauss(3, 1) for _ in range(16)]
    worse, better = paired(values, 0.05, 0.0), paired([-value for value in values], 0.05, 0.0)
    assert (judge(WORSE, worse, False), judge(WORSE, better, False)) == ("fail", "pass")
    assert (judge(BETTER, worse, False), judge(BETTER, better, False)) == ("pass", "fail")
    across = paired([value - 3 for value in values], 0.05, 0.0)
    assert judge(WORSE, across, True) == judge(BETTER, across, True) == "cannot tell"


def test_equal_differences_decide_only_if_there_are_enough_of_them() -> None:
    few, many = paired([0.0] * (EQUAL - 1), 0.05, 0.0), paired([0.0] * EQUAL, 0.05, 0.0)
    assert judge(WORSE, few, False) == "cannot tell" and few.needed == EQUAL
    assert judge(WORSE, few, True) == judge(WORSE, many, False) == "pass"
    # 0.1 * 3 is not 0.3: equal numbers must not get a variance from rounding.
    assert paired([0.1] * 20, 0.05, 0.0).low == paired([0.1] * 20, 0.05, 0.0).high


def test_the_pairs_that_would_be_needed_decide_if_the_variance_stays() -> None:
    rng = Random(7)
    noise = [rng.gauss(0, 1) for _ in range(400)]
    values = [0.2 + (value - mean(noise)) / stdev(noise) for value in noise]
    first = paired(values[:16], 0.05, 0.0)
    assert judge(WORSE, first, False) == "cannot tell" and first.needed is not None
    assert 16 < first.needed < 400
    assert judge(WORSE, paired(values, 0.05, 0.0), False) == "fail"


def test_independent_samples_have_a_wider_interval_than_pairs() -> None:
    rng = Random(4)
    common = [rng.gauss(10, 3) for _ in range(20)]
    worse = [value + 1 + rng.gauss(0, 0.1) for value in common]
    pairs = paired([one - other for one, other in zip(worse, common, strict=True)], 0.05, 0.0)
    apart = unpaired(common, worse, 0.05, 0.0)
    assert pairs.mean == pytest.approx(apart.mean)
    assert pairs.low > 0 > apart.low


@pytest.mark.full
@pytest.mark.parametrize("tail", ["normal", "heavy", "skewed"])
def test_at_most_one_verdict_in_twenty_is_wrong(tail: str) -> None:
    """The mean is the limit, so every verdict is wrong. 800 trials of a rate of 5 % stay below 7 %."""
    wrong = 0
    for number in range(800):
        rng = Random(number)
        draw = {
            "normal": lambda rng=rng: rng.gauss(0, 1),
            "heavy": lambda rng=rng: rng.gauss(0, 1) / (rng.gammavariate(1.5, 2) / 3) ** 0.5,
            "skewed": lambda rng=rng: exp(rng.gauss(0, 0.5)) - exp(0.125),
        }[tail]
        values, spending = [draw() for _ in range(64)], Spending(0.05, 64)
        for count in looks(64):
            if judge(WORSE, paired(values[:count], spending.take(count, count == 64), 0.0), False) != "cannot tell":
                wrong += 1
                break
    assert 0 < wrong < 56
