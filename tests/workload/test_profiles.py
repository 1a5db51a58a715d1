"""Load profiles: the exact expected count, the change of time that gives a process this rate, and every wrong figure.

Tolerances are derived, not guessed: a Poisson count of mean m may miss it by `Z` of its deviations, sqrt(m); the sum
over k windows of (count - m)^2 / m has mean k and variance 2k + sum(1 / m). The rest is exact.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from fractions import Fraction
from itertools import islice, takewhile
from math import cos, fsum, pi, sqrt
from time import thread_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from headway.errors import HeadwayError
from headway.streams import stream
from headway.types import PS_PER_SECOND
from headway.workload import arrivals, profiles
from headway.workload.curve import Curve, Piece

Z = 4.5
PS_PER_US = 1_000_000
HOUR = 3600 * PS_PER_SECOND

STEP = {"type": "step", "levels": [{"at": "0s", "multiplier": 1}, {"at": "10m", "multiplier": 3}]}
RAMP = {"type": "ramp", "from": 0.5, "to": 2, "start": "5m", "end": "15m"}
DIURNAL = {"type": "diurnal", "period": "24m", "low": 0.3, "high": 1.0, "peak_at": "14m"}
SPIKE = {"type": "spike", "at": "5m", "multiplier": 5, "duration": "30s", "recovery": "60s"}
SEGMENTS = {
    "segments": [
        {"start": "0s", "end": "60s", "multiplier": 0.5},
        {"start": "5m", "end": "10m", "multiplier": 0},
        {"start": "10m", "end": "12m", "multiplier": 4},
    ]
}
ALL: dict[str, Any] = {
    "constant": "constant",
    "step": STEP,
    "ramp": RAMP,
    "falling ramp": {"type": "ramp", "from": 2, "to": 0.25, "end": "20m"},
    "diurnal": DIURNAL,
    "spike": SPIKE,
    "segments": SEGMENTS,
    "repeated step": STEP | {"repeat": "15m"},
    "repeated ramp": RAMP | {"repeat": "15m"},
    "repeated spike": SPIKE | {"repeat": "8m"},
    "repeated segments": SEGMENTS | {"repeat": "13m"},
}

every = pytest.mark.parametrize("spec", ALL.values(), ids=ALL)


def multiplier(curve: Curve, at_ps: int) -> Fraction:
    """Return the multiplier at a time; at a jump, the new one."""
    index, since, _ = curve._at(at_ps)
    length, first, slope = curve._piece(index)
    return (first + slope * since / length) / curve.scale


def times(spec: Any, rate: int, until_ps: int, process: object = "poisson") -> list[int]:
    profile = profiles.parse(spec, "p")
    drawn = arrivals.microseconds(arrivals.parse(process, "w"), Fraction(rate), stream(7, "t"), profile)
    return list(takewhile(lambda at: at * PS_PER_US < until_ps, drawn))


@pytest.mark.parametrize(
    ("spec", "seconds", "area"),
    [
        ("constant", 100, 100),
        (STEP, 600, 600),
        (STEP, 700, 600 + 3 * 100),
        (RAMP, 300, 150),
        (RAMP, 900, 150 + 600 * Fraction(5, 4)),
        (RAMP, 600, 150 + 300 * Fraction(7, 8)),  # 1.25 at the middle
        (RAMP, 1000, 900 + 2 * 100),
        (DIURNAL, 24 * 60, 24 * 60 * Fraction(65, 100)),
        (DIURNAL, 72 * 60, 72 * 60 * Fraction(65, 100)),
        ("diurnal", 86400, 86400),
        (SPIKE, 300, 300),
        (SPIKE, 330, 300 + 150),
        (SPIKE, 390, 450 + 60 * 3),
        (SPIKE, 400, 630 + 10),
        (SEGMENTS, 60, 30),
        (SEGMENTS, 300, 30 + 240),
        (SEGMENTS, 600, 270),
        (SEGMENTS, 720, 270 + 480),
        (SEGMENTS, 730, 760),
        (SEGMENTS | {"repeat": "12m"}, 7200, 7500),
        (SPIKE | {"repeat": "8m"}, 960, 2 * (630 + 90)),
    ],
)
def test_a_profile_integrates_to_the_right_count(spec: Any, seconds: int, area: Fraction) -> None:
    assert profiles.parse(spec, "p").arrivals_before(Fraction(4), seconds * PS_PER_SECOND) == 4 * area


@every
def test_the_expected_count_is_the_sum_of_the_rate_over_time(spec: Any) -> None:
    profile = profiles.parse(spec, "p")
    curve = profile.curve()
    # every break of these profiles is on a multiple of 15 s, so the value amid each 15 s is the mean over it
    grid, total = 15 * PS_PER_SECOND, Fraction(0)
    for number in range(200):
        assert profile.arrivals_before(Fraction(7, 3), number * grid) == Fraction(7, 3) * total
        total += 15 * multiplier(curve, number * grid + grid // 2)


@pytest.mark.parametrize("peak", [0, 5, 14, 14.3, 23.99, 40])
def test_a_day_is_a_cosine_with_its_peak_where_asked(peak: float) -> None:
    spec = {"type": "diurnal", "low": 0.3, "high": 1.7, "peak_at": f"{peak}h"}
    profile = profiles.parse(spec, "p")
    curve = profile.curve()
    # linear between samples a 48th of pi apart: off by their square over 8 at most, and by the rounding to millionths
    bound = 0.7 * (pi / 48) ** 2 / 8 + 1e-6
    for minute in range(0, 2880, 7):
        expected = 1 + 0.7 * cos(2 * pi * (minute / 60 - peak) / 24)
        assert abs(float(multiplier(curve, minute * HOUR // 60)) - expected) <= bound
    for day in (1, 2, 10):
        assert profile.arrivals_before(Fraction(11), 24 * day * HOUR) == 11 * 86400 * day
    # against the integral of the cosine itself, at every hour of the day
    summed = fsum((1 + 0.7 * cos(2 * pi * ((second + 5) / 3600 - peak) / 24)) * 10 for second in range(0, 36000, 10))
    assert abs(float(profile.arrivals_before(Fraction(1), 10 * HOUR)) - summed) <= bound * 36000


def test_a_day_of_any_length_has_the_mean_of_low_and_high_exactly() -> None:
    for period in ("1ms", "1s", "7h", "1234567us"):
        profile = profiles.parse({"type": "diurnal", "period": period, "low": 0.1, "high": 0.8}, "p")
        curve = profile.curve()
        assert curve.integral(curve.times[-1] * PS_PER_US) == Fraction(curve.times[-1], 10**6) * Fraction(45, 100)


@every
def test_drawn_counts_follow_the_profile_window_by_window(spec: Any) -> None:
    profile, rate, window, windows = profiles.parse(spec, "p"), 20, 60 * PS_PER_SECOND, 30
    instants = times(spec, rate, windows * window)
    ends = [profile.arrivals_before(Fraction(rate), number * window) for number in range(windows + 1)]
    total = float(ends[-1])
    assert abs(len(instants) - total) <= Z * sqrt(total)
    square, spread, used = [], [], 0
    for number in range(windows):
        low, high = (bisect_left(instants, (number + at) * window // PS_PER_US) for at in (0, 1))
        mean = float(ends[number + 1] - ends[number])
        assert abs(high - low - mean) <= Z * sqrt(mean)
        if mean:
            square.append((high - low - mean) ** 2 / mean)
            spread.append(1 / mean)
            used += 1
    assert abs(fsum(square) - used) <= Z * sqrt(2 * used + fsum(spread))


@every
@pytest.mark.parametrize("process", ["constant", "poisson", "gamma", "weibull", "bursty", "periodic", "adversarial"])
def test_every_process_composes_with_every_profile(spec: Any, process: str) -> None:
    """In the profile's own time, the expected count, a process is what it is without: to the rounding of instants."""
    curve, rate, count = profiles.parse(spec, "p").curve(), Fraction(3), 150
    process_ = arrivals.parse(process, "w")
    plain = islice(arrivals.microseconds(process_, Fraction(1), stream(3, "t")), count)
    instants = islice(arrivals.microseconds(process_, rate, stream(3, "t"), profiles.parse(spec, "p")), count)
    last = 0
    for at, expected in zip(instants, plain, strict=True):
        assert at >= last
        last = at
        steepest = 5 * rate  # arrivals a second, at the highest multiplier here
        low, high = (rate * curve.integral(max(at + side, 0) * PS_PER_US) for side in (-1, 1))
        assert low - steepest / 10**6 <= Fraction(expected, 10**6) <= high + steepest / 10**6


@every
def test_constant_arrivals_count_as_expected_at_every_time(spec: Any) -> None:
    profile, until = profiles.parse(spec, "p"), 40 * 60 * PS_PER_SECOND
    instants = times(spec, 4, until, "constant")
    for number in range(0, 2400, 7):
        at = number * PS_PER_SECOND
        assert abs(bisect_left(instants, number * 10**6) - profile.arrivals_before(Fraction(4), at)) <= 1


# --- the change of time, exactly --------------------------------------------------------------------------------------

LEVELS = st.one_of(st.just(Fraction(0)), st.fractions(0, 50, max_denominator=1000))


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    pieces, at = [], 0
    for length in draw(st.lists(st.one_of(st.integers(1, 30), st.integers(1, 10**9)), min_size=1, max_size=6)):
        first = draw(LEVELS)
        last = first if draw(st.booleans()) else draw(LEVELS)
        pieces.append(Piece(at, at + length, first, last))
        at += length
    return Curve(pieces, None if draw(st.booleans()) else draw(LEVELS))


@given(
    curve=curves(),
    rate=st.one_of(st.fractions(Fraction(1, 100), 100, max_denominator=100), st.fractions(10**5, 10**7)),
    unit=st.sampled_from([1, 7, 1 << 20]),
    steps=st.lists(st.integers(0, 1 << 22), min_size=1, max_size=30),
)
def test_an_arrival_is_the_nearest_microsecond_to_where_the_integral_gets(
    curve: Curve, rate: Fraction, unit: int, steps: list[int]
) -> None:
    totals = [sum(steps[: number + 1]) for number in range(len(steps))]
    instants = list(curve.change(totals, unit, rate))
    assert instants == sorted(instants)
    half = PS_PER_US // 2
    for total, at in zip(totals, instants, strict=False):
        expected = Fraction(total, unit) / rate
        at_ps = at * PS_PER_US
        assert multiplier(curve, at_ps) or curve.integral(at_ps + PS_PER_US) > curve.integral(at_ps)
        reached = curve.integral((at + 1) * PS_PER_US - half)
        if reached <= expected:  # rounded down, since it would fall into a stretch without arrivals
            assert curve.integral((at + 1) * PS_PER_US) == curve.integral((at + 2) * PS_PER_US)
            assert expected < curve.integral((at + 1) * PS_PER_US)
        assert at == 0 or curve.integral(at * PS_PER_US - half) <= expected
    if len(instants) < len(totals):  # the integral never gets there
        assert curve.level in (None, 0)
        end = curve.integral(curve.times[-1] * PS_PER_US)
        assert end * rate * unit <= totals[len(instants)]
        assert curve.level == 0 or end == 0


@pytest.mark.parametrize(("first", "last"), [(4, 1), (4, 0), (3, 2), (1, 4), (0, 3), (2, 2)])
def test_every_small_total_gets_to_its_nearest_microsecond(first: int, last: int) -> None:
    """Where roots come out whole and ties are common; the greatest of the microseconds whose half before is reached."""
    rate, unit = Fraction(10**6), 8
    for length in range(1, 10):
        curve = Curve([Piece(0, length, Fraction(first), Fraction(last))], Fraction(1))
        halves = [rate * unit * curve.integral(PS_PER_US * at + PS_PER_US // 2) for at in range(2 * length)]
        totals = range((first + last) * length * unit // 2)
        expected = [bisect_right(halves, total) for total in totals]
        assert list(curve.change(totals, unit, rate)) == expected


def test_nothing_comes_in_a_stretch_at_zero() -> None:
    silent = {"segments": [{"start": f"{at}s", "end": f"{at + 1}s", "multiplier": 0} for at in range(0, 20, 2)]}
    for process in ("poisson", "constant", "adversarial", "bursty"):
        for rate in (7, 100, 50_000):
            instants = times(silent, rate, 6 * PS_PER_SECOND, process)
            assert instants and all(at // 10**6 % 2 == 1 for at in instants)


def test_what_falls_on_the_edge_of_a_silent_stretch_comes_after_it() -> None:
    spec = {"segments": [{"start": "0s", "end": "1s", "multiplier": 0}, {"start": "2s", "end": "5s", "multiplier": 0}]}
    assert times(spec, 2, 7 * PS_PER_SECOND, "constant") == [
        1_000_000,
        1_500_000,
        5_000_000,
        5_500_000,
        6_000_000,
        6_500_000,
    ]


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "step", "levels": [{"at": "1s", "multiplier": 0}]},
        {"type": "ramp", "from": 2, "to": 0, "end": "1s"},
    ],
)
def test_a_profile_that_stays_at_zero_ends_the_arrivals(spec: Any) -> None:
    profile = profiles.parse(spec, "p")
    for process in ("poisson", "constant"):
        instants = list(arrivals.microseconds(arrivals.parse(process, "w"), Fraction(100), stream(7, "t"), profile))
        assert abs(len(instants) - 100) <= Z * 10 and instants[-1] < 1_000_000
    assert profile.arrivals_before(Fraction(100), HOUR) == 100


def test_a_profile_of_nothing_but_zeros_has_no_arrivals() -> None:
    never = {"type": "step", "levels": [{"at": "0s", "multiplier": 0}]}
    for spec in (never, never | {"repeat": "1s"}, {"type": "diurnal", "low": 0, "high": 0}):
        profile = profiles.parse(spec, "p")
        assert list(arrivals.microseconds(arrivals.parse("poisson", "w"), Fraction(9), stream(7, "t"), profile)) == []
        assert profile.arrivals_before(Fraction(9), HOUR) == 0


def test_levels_that_do_not_differ_change_no_arrival() -> None:
    even = {"type": "step", "levels": [{"at": f"{at}s", "multiplier": 1} for at in range(5)], "repeat": "9s"}
    assert times(even, 1000, 30 * PS_PER_SECOND) == times("constant", 1000, 30 * PS_PER_SECOND)


def test_a_gap_over_billions_of_turns_is_one_step() -> None:
    profile = profiles.parse({"type": "diurnal", "period": "1ms"}, "p")
    before = thread_time()
    drawn = arrivals.microseconds(arrivals.parse("constant", "w"), Fraction(1, 3_600_000), stream(7, "t"), profile)
    # a thousand hours each, to where the mean falls in a period that starts low
    assert [round(at / 3.6e12, 9) for at in islice(drawn, 4)] == [0, 1, 2, 3]
    assert thread_time() - before < 30


# --- as written, and wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "plain"),
    [
        ("constant", {"type": "constant"}),
        ("diurnal", {"type": "diurnal", "period": "24h", "low": 0.3, "high": 1.7, "peak_at": "43200s"}),
        (DIURNAL, DIURNAL),
        (STEP, STEP),
        (RAMP | {"repeat": "1h"}, RAMP | {"repeat": "1h"}),
        (
            {"type": "ramp", "from": 1, "to": 2, "end": "1m"},
            {"type": "ramp", "from": 1.0, "to": 2.0, "end": "1m", "start": "0s"},
        ),
        (
            {"type": "spike", "at": "5m", "multiplier": 5, "duration": "30s"},
            {"type": "spike", "at": "5m", "multiplier": 5.0, "duration": "30s", "recovery": "0s"},
        ),
        (SEGMENTS, SEGMENTS | {"type": "segments"}),
    ],
)
def test_a_profile_is_written_with_its_defaults_and_reads_back(spec: Any, plain: Any) -> None:
    profile = profiles.parse(spec, "p")
    assert to_builtins(profile) == plain
    assert profiles.parse(plain, "p") == profile


LEVEL = {"at": "1s", "multiplier": 2}
SEGMENT = {"start": "1s", "end": "2s", "multiplier": 2}
WRONG_MULTIPLIERS = (-1, 1e7, 1e-7, float("nan"), float("inf"))
A_MULTIPLIER = "a multiplier is 0 or lies between 0.000001 and 1000000, got"


@pytest.mark.parametrize(
    ("spec", "start"),
    [
        (3, "p: expected a profile's name or a mapping with 'type', got 3"),
        ([STEP], "p: expected a profile's name or a mapping"),
        ("diurnl", "p: no load profile is called 'diurnl'. Did you mean 'diurnal'?"),
        ({"type": "weekly"}, "p.type: no load profile is called 'weekly'. Known: constant, diurnal"),
        ({"type": ["ramp"]}, "p.type: no load profile is called ['ramp']"),
        ({"low": 1}, "p: 'type' is missing; use one of constant, step, ramp"),
        ("step", "p: 'levels' is missing"),
        ("ramp", "p: 'from', 'to' and 'end' are missing"),
        ({"type": "constant", "low": 1}, "p.low: there is no such key"),
        ({"type": "constant", "repeat": "1s"}, "p.repeat: there is no such key"),
        (DIURNAL | {"repeat": "1h"}, "p.repeat: there is no such key"),
        ({"type": "step", "levels": []}, "p.levels: list at least one entry."),
        ({"type": "step", "levels": 3}, "p.levels: expected a list"),
        ({"type": "step", "levels": [3]}, "p.levels[0]: expected a mapping, got 3"),
        ({"type": "step", "levels": [{"at": "1s"}]}, "p.levels[0]: 'multiplier' is missing"),
        ({"type": "step", "levels": [LEVEL | {"at": 1}]}, "p.levels[0].at: 1 is not a duration"),
        ({"type": "step", "levels": [LEVEL, LEVEL]}, "p.levels[1].at: must be later than the previous level, got '1s'"),
        ({"type": "step", "levels": [LEVEL, LEVEL | {"at": "0s"}]}, "p.levels[1].at: must be later"),
        ({"type": "step", "levels": [LEVEL | {"multiplier": "2"}]}, "p.levels[0].multiplier: expected a number"),
        (
            {"type": "step", "levels": [LEVEL], "repeat": "0s"},
            "p.repeat: must be at least 1s, the length of the profile",
        ),
        (
            {"type": "step", "levels": [LEVEL | {"at": "0s"}], "repeat": "0s"},
            "p.repeat: must be greater than zero, got '0s'",
        ),
        ({"type": "step", "levels": [LEVEL], "repeat": 5}, "p.repeat: 5 is not a duration"),
        (RAMP | {"end": "5m"}, "p.end: must be later than 'start' (5m), got '5m'"),
        (RAMP | {"end": 5}, "p.end: 5 is not a duration"),
        (RAMP | {"start": "-5s"}, "p.start: '-5s' is not a duration"),
        (RAMP | {"repeat": "14m"}, "p.repeat: must be at least 900s, the length of the profile, got '14m'"),
        (DIURNAL | {"period": "1us"}, "p.period: must be at least 1ms, got '1us'"),
        (DIURNAL | {"period": "101d"}, "p.period: must be at most 100d"),
        (DIURNAL | {"high": 0.2}, "p.high: must be at least 'low' (0.3), got 0.2"),
        ({"type": "diurnal", "low": 1.5}, "p.high: is missing. Set the highest multiplier if 'low' is above 1."),
        (DIURNAL | {"peak_at": 14}, "p.peak_at: 14 is not a duration"),
        (SPIKE | {"at": None}, "p.at: None is not a duration"),
        (SPIKE | {"duration": "0s", "recovery": "0s"}, "p.duration: must be greater than zero, got '0s'"),
        (SPIKE | {"recovery": "soon"}, "p.recovery: 'soon' is not a duration"),
        ({"segments": []}, "p.segments: list at least one entry."),
        ({"segments": [SEGMENT | {"end": "1s"}]}, "p.segments[0].end: must be later than 'start' (1s), got '1s'"),
        (
            {"segments": [SEGMENT, SEGMENT]},
            "p.segments[1].start: must not be before the end of the previous segment (2s), got '1s'",
        ),
        ({"segments": [SEGMENT | {"to": 2}]}, "p.segments[0].to: there is no such key"),
        *(
            (case, f"{place}: {A_MULTIPLIER}")
            for value in WRONG_MULTIPLIERS
            for case, place in (
                ({"type": "step", "levels": [LEVEL | {"multiplier": value}]}, "p.levels[0].multiplier"),
                (RAMP | {"from": value}, "p.from"),
                (RAMP | {"to": value}, "p.to"),
                (DIURNAL | {"low": value}, "p.low"),
                (DIURNAL | {"high": value}, "p.high"),
                (SPIKE | {"multiplier": value}, "p.multiplier"),
                ({"segments": [SEGMENT | {"multiplier": value}]}, "p.segments[0].multiplier"),
            )
        ),
    ],
)
def test_a_wrong_figure_is_told_at_its_place(spec: Any, start: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        profiles.parse(spec, "p")
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith((".", "?"))
    assert sentence.startswith(start)
