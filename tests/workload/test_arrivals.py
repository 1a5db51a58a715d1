"""Arrival processes: moments and laws within sampling error, exactness where it can be had, every wrong figure told.

Tolerances are derived, not guessed. A sample mean of n draws may miss by `Z` of its standard errors, sigma / sqrt(n);
the mean square about the true mean likewise, its error being sqrt((mu4 - sigma^4) / n) with the law's fourth moment
mu4. A sample's distribution may miss the law by `DKW` / sqrt(n) anywhere: the bound of Dvoretzky, Kiefer and Wolfowitz
at the probability that a normal deviate exceeds `Z`, 7 in a million.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from hashlib import sha256
from itertools import groupby, islice, pairwise
from math import erfc, exp, fsum, gamma, log, sqrt
from pathlib import Path
from time import thread_time
from typing import Any

import pytest
from msgspec import to_builtins

from headway.errors import HeadwayError
from headway.streams import stream
from headway.workload import arrivals, profiles

COUNT = 40_000
Z = 4.5
DKW = sqrt(log(2 / erfc(Z / sqrt(2))) / 2)
ROUNDING = 2e-6  # of a gap of one second: its ends are whole microseconds
SHARED = Path(__file__).parents[3] / "shared" / "traces"

Spec = str | dict[str, Any]


def times(spec: Spec, rate: Fraction | None, count: int = COUNT, profile: object = None) -> list[int]:
    shape = None if profile is None else profiles.parse(profile, "p")
    return list(islice(arrivals.microseconds(arrivals.parse(spec, "w"), rate, stream(5, "t"), shape), count))


def gaps(spec: Spec) -> list[float]:
    """Drawn gaps in seconds, at a rate of one a second."""
    return [(later - earlier) / 1e6 for earlier, later in pairwise([0, *times(spec, Fraction(1))])]


def weibull_moment(shape: float, order: int) -> float:
    return gamma(1 + order / shape) / gamma(1 + 1 / shape) ** order


def pareto_moment(alpha: float, order: int) -> float:
    return alpha / (alpha - order) * ((alpha - 1) / alpha) ** order


def central(moment: Callable[[int], float]) -> tuple[float, float]:
    """Variance and fourth central moment of a law with mean 1 from its raw moments."""
    second, third, fourth = (moment(order) for order in (2, 3, 4))
    return second - 1, fourth - 4 * third + 6 * second - 3


def test_the_tolerance_of_a_distribution_is_that_of_a_normal_deviate() -> None:
    assert pytest.approx(2.51, abs=0.01) == DKW


@pytest.mark.parametrize(
    ("spec", "variance", "fourth"),
    [
        ("poisson", 1, 9),
        ({"process": "poisson"}, 1, 9),
        ("gamma", 4, 16 * (3 + 6 * 4)),  # a gamma law of shape k has the excess kurtosis 6 / k, and k = cv^-2
        ({"process": "gamma", "cv": 0.5}, 0.25, 0.0625 * (3 + 6 * 0.25)),
        ({"process": "gamma", "cv": 3}, 9, 81 * (3 + 6 * 9)),
        ({"process": "weibull", "cv": 1}, 1, 9),
        ({"process": "weibull", "cv": sqrt(5)}, *central(lambda order: weibull_moment(0.5, order))),
        ({"process": "weibull", "cv": sqrt(4 / 3.141592653589793 - 1)}, *central(lambda at: weibull_moment(2, at))),
        ({"process": "bursty", "alpha": 6}, *central(lambda order: pareto_moment(6, order))),
        ({"process": "bursty", "alpha": 9}, *central(lambda order: pareto_moment(9, order))),
    ],
)
def test_gaps_have_the_mean_of_the_rate_and_the_variance_asked_for(spec: Spec, variance: float, fourth: float) -> None:
    values = gaps(spec)
    assert all(gap >= 0 for gap in values)
    assert abs(fsum(values) / COUNT - 1) <= Z * sqrt(variance / COUNT) + ROUNDING
    square = fsum((gap - 1) ** 2 for gap in values) / COUNT
    assert abs(square - variance) <= Z * sqrt((fourth - variance**2) / COUNT) + ROUNDING


@pytest.mark.parametrize("spec", ["poisson", "gamma", "weibull", {"process": "bursty", "alpha": 6}])
def test_one_gap_says_nothing_of_the_next(spec: Spec) -> None:
    values = gaps(spec)
    square = fsum((gap - 1) ** 2 for gap in values)
    together = fsum((earlier - 1) * (other - 1) for earlier, other in pairwise(values))
    assert abs(together / square) <= Z / sqrt(COUNT)  # the error of a correlation that is none


def erlang(gap: float) -> float:
    """The gamma law of shape 4 and mean 1."""
    return 1 - exp(-4 * gap) * fsum((1.0, 4 * gap, (4 * gap) ** 2 / 2, (4 * gap) ** 3 / 6))


def pareto(alpha: float) -> Callable[[float], float]:
    least = (alpha - 1) / alpha
    return lambda gap: 1 - (least / gap) ** alpha if gap > least else 0.0


@pytest.mark.parametrize(
    ("spec", "law"),
    [
        ("poisson", lambda gap: 1 - exp(-gap)),
        ({"process": "gamma", "cv": 0.5}, erlang),
        ({"process": "weibull", "cv": sqrt(5)}, lambda gap: 1 - exp(-sqrt(2 * gap))),
        ("bursty", pareto(1.5)),
        ({"process": "bursty", "alpha": 1.05}, pareto(1.05)),
        ({"process": "bursty", "alpha": 3}, pareto(3)),
    ],
)
def test_gaps_are_distributed_as_asked(spec: Spec, law: Callable[[float], float]) -> None:
    # rounding moves a gap by at most a microsecond; the steepest of these laws is at its start, sqrt(2 gap)
    check_law(gaps(spec), law, slack=sqrt(2 * ROUNDING))


def check_law(values: list[float], law: Callable[[float], float], slack: float) -> None:
    count = len(values)
    for rank, value in enumerate(sorted(values)):
        expected = law(value)
        assert rank / count - expected <= DKW / sqrt(count) + slack
        assert expected - (rank + 1) / count <= DKW / sqrt(count) + slack


@pytest.mark.parametrize(("cv", "shape", "mean"), [(1, 1.0, 1.0), (sqrt(5), 0.5, 2.0), (0.5227232008770633, 2.0, None)])
def test_a_weibull_shape_is_found_from_its_cv(cv: float, shape: float, mean: float | None) -> None:
    law = arrivals.weibull(cv)
    assert law[0] == shape
    assert law[1] == pytest.approx(gamma(1 + 1 / shape) if mean is None else mean, rel=1e-9)


@pytest.mark.parametrize("cv", [0.01, 0.1, 0.7, 1.5, 2, 10, 100])
def test_a_weibull_shape_has_its_cv_over_the_whole_range(cv: float) -> None:
    shape, mean = arrivals.weibull(cv)
    assert mean == pytest.approx(gamma(1 + 1 / shape), rel=1e-9)
    # the shape is rounded by at most 5 in 10^7, and the cv is no steeper than its sixth power
    assert sqrt(weibull_moment(shape, 2) - 1) == pytest.approx(cv, rel=6 * 5e-7)


@pytest.mark.parametrize("jitter", [0.1, 0.5, 1])
def test_periodic_requests_are_late_by_an_even_share_of_the_gap(jitter: float) -> None:
    instants = times({"process": "periodic", "jitter": jitter}, Fraction(1))
    late = [at / 1e6 - number for number, at in enumerate(instants)]
    assert instants == sorted(instants)
    assert all(-ROUNDING <= value <= jitter + ROUNDING for value in late)
    check_law(late, lambda value: min(max(value / jitter, 0.0), 1.0), slack=ROUNDING / jitter)
    variance, fourth = jitter**2 / 12, jitter**4 / 80
    assert abs(fsum(late) / COUNT - jitter / 2) <= Z * sqrt(variance / COUNT) + ROUNDING
    square = fsum((value - jitter / 2) ** 2 for value in late) / COUNT
    assert abs(square - variance) <= Z * sqrt((fourth - variance**2) / COUNT) + ROUNDING


def test_periodic_without_jitter_is_constant() -> None:
    assert times({"process": "periodic", "jitter": 0}, Fraction(3), 1000) == times("constant", Fraction(3), 1000)


def test_constant_arrivals_start_at_zero_and_never_drift() -> None:
    instants = times("constant", Fraction(3), 3_000_001)
    assert instants[:4] == [0, 333_333, 666_667, 1_000_000]
    assert instants[-1] == 1_000_000 * 1_000_000


def test_adversarial_requests_come_together_every_interval() -> None:
    instants = times({"process": "adversarial", "size": 20, "interval": "5s"}, None, 60)
    assert [(at, len(list(group))) for at, group in groupby(instants)] == [(0, 20), (5_000_000, 20), (10_000_000, 20)]
    assert instants == times({"process": "adversarial", "size": 20}, Fraction(4), 60)
    thirds = times({"process": "adversarial", "size": 2, "interval": "333333333ns"}, None, 600_001)
    assert thirds[2::2][:3] == [333_333, 666_667, 1_000_000]
    assert thirds[-1] == 333_333_333 * 300


def test_rates_beyond_one_a_microsecond_keep_their_mean() -> None:
    instants = times("poisson", Fraction(10**7))
    assert instants == sorted(instants)
    assert abs(instants[-1] - COUNT / 10) <= Z * sqrt(COUNT) / 10 + 1


@pytest.mark.parametrize("process", ["poisson", "gamma", "weibull", "bursty", "periodic", "adversarial", "constant"])
def test_twice_the_rate_halves_every_arrival(process: str) -> None:
    slow, fast = times(process, Fraction(5), 1000), times(process, Fraction(10), 1000)
    assert all(abs(late - 2 * early) <= 2 for late, early in zip(slow, fast, strict=True))


def digest(instants: list[int]) -> str:
    return sha256(",".join(map(str, instants)).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("spec", "rate", "expected"),
    [
        ("poisson", Fraction(40), "4cba8ec6a1e4a87f"),
        ("poisson", Fraction(7, 3), "907fea728d1baab3"),
        ("constant", Fraction(40), "8478241b37fe55d0"),
        ("constant", Fraction(7, 3), "90fb9c3ae39d884f"),
        ("gamma", Fraction(40), "86c2389f34f74279"),
        ({"process": "gamma", "cv": 0.5}, Fraction(7, 3), "5768add33ef99341"),
        ("weibull", Fraction(40), "83bae0eee5aa8d33"),
        ("bursty", Fraction(40), "794987d250730a1e"),
        ("periodic", Fraction(40), "28f41be6a3e470e6"),
    ],
)
def test_a_seed_gives_the_same_arrivals_for_good(spec: Spec, rate: Fraction, expected: str) -> None:
    process = arrivals.parse(spec, "w")
    assert digest(list(islice(arrivals.microseconds(process, rate, stream(11, "t")), 20_000))) == expected
    # a profile that changes nothing changes no number
    flat = profiles.parse("constant", "p")
    assert digest(list(islice(arrivals.microseconds(process, rate, stream(11, "t"), flat), 20_000))) == expected


PROGRAM = """
import json, sys
from fractions import Fraction
from itertools import islice
from headway.streams import stream
from headway.workload import arrivals, profiles
found = []
for spec, profile in json.loads(sys.argv[1]):
    shape = None if profile is None else profiles.parse(profile, "p")
    times = arrivals.microseconds(arrivals.parse(spec, "w"), Fraction(7), stream(5, "t"), shape)
    found.append(list(islice(times, 500)))
print(json.dumps(found))
"""


def test_every_process_gives_the_same_arrivals_in_any_python_process() -> None:
    varied = [None, "diurnal", {"type": "ramp", "from": 0, "to": 3, "end": "1m"}]
    processes = [name for name in arrivals.PROCESSES if name != "trace"]
    cases = [(process, profile) for process in processes for profile in varied]
    here = [times(spec, Fraction(7), 500, profile) for spec, profile in cases]
    environment = os.environ | {"PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PROGRAM, json.dumps(cases)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(ended.stdout) == here


# --- recorded instants ------------------------------------------------------------------------------------------------


def write_times(folder: Path, text: str, name: str = "times.txt") -> dict[str, Any]:
    (folder / name).write_text(text)
    return {"process": "trace", "path": str(folder / name)}


def test_a_trace_without_a_rate_is_played_once_as_recorded_from_its_first_instant_on(tmp_path: Path) -> None:
    spec = write_times(tmp_path, "1700000000.5\n\n1700000000.75\n1700000000.75\n1.70000000350000049e9\n")
    assert times(spec, None) == [0, 250_000, 250_000, 3_000_000]


def test_a_trace_with_a_rate_is_stretched_to_it_and_repeated_end_to_end(tmp_path: Path) -> None:
    spec = write_times(tmp_path, "0\n1\n1\n4\n6\n")  # five instants, mean gap 1.5 s
    assert times(spec, Fraction(2, 3), 11) == [
        *(0, 1_000_000, 1_000_000, 4_000_000, 6_000_000),
        *(7_500_000, 8_500_000, 8_500_000, 11_500_000, 13_500_000),
        15_000_000,
    ]
    assert times(spec, Fraction(7), 500_001)[-1] == 71_428_571_429  # 500,000 / 7 s: exact after 100,000 turns


def test_a_long_pattern_is_read_again_at_every_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_times(tmp_path, "0\n1\n1\n4\n6\n")
    stored = times(spec, Fraction(40), 1000)
    monkeypatch.setattr(arrivals, "HELD", 4)
    assert times(spec, Fraction(40), 1000) == stored


def test_a_trace_as_recorded_composes_with_a_profile(tmp_path: Path) -> None:
    spec = write_times(tmp_path, "0\n1\n2\n4\n6\n")
    doubled = {"type": "step", "levels": [{"at": "2s", "multiplier": 2}, {"at": "3s", "multiplier": 0}]}
    assert times(spec, None, profile=doubled) == [0, 1_000_000, 2_000_000]
    doubled["levels"].append({"at": "10s", "multiplier": 1})  # type: ignore[attr-defined]
    assert times(spec, None, profile=doubled) == [0, 1_000_000, 2_000_000, 10_000_000, 12_000_000]


def test_instants_may_be_packed_or_come_from_any_trace(tmp_path: Path) -> None:
    (tmp_path / "times.gz").write_bytes(gzip.compress(b"0\n0.5\n2\n"))
    assert times({"process": "trace", "path": str(tmp_path / "times.gz")}, None) == [0, 500_000, 2_000_000]
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += [f"2023-11-16 18:17:0{second}.0000000,10,20" for second in (3, 4, 6)]
    spec = write_times(tmp_path, "\n".join(rows), "azure.csv")
    assert times(spec, None) == times(spec | {"format": "azure"}, None) == [0, 1_000_000, 3_000_000]


def test_a_recorded_burstiness_survives_the_stretching() -> None:
    path = SHARED / "azure-llm-2023" / "AzureLLMInferenceTrace_code.csv"
    if not path.exists():
        pytest.skip("the real traces are not beside the repository (../shared/traces)")
    instants = times({"process": "trace", "path": str(path)}, Fraction(40), 8820)
    assert instants[0] == 0 and instants[-1] == 8819 * 25_000  # one turn, to the next one's first
    between = [later - earlier for earlier, later in pairwise(instants[:-1])]
    spread = sqrt(fsum((gap - 25_000) ** 2 for gap in between) / len(between)) / 25_000
    assert spread == pytest.approx(13.15, abs=0.006)  # its README's cv, to the last digit given


def test_a_trace_is_read_only_as_far_as_it_is_needed(tmp_path: Path) -> None:
    spec = write_times(tmp_path, "0\n1\n2\nthree\n")
    process = arrivals.parse(spec, "w")
    drawn = arrivals.microseconds(process, None, stream(1, "t"))
    assert list(islice(drawn, 3)) == [0, 1_000_000, 2_000_000]
    with pytest.raises(HeadwayError, match=r"^times\.txt line 4: expected a time in seconds, as in 12\.5, got 'three'"):
        next(drawn)


def test_every_other_process_starts_at_once() -> None:
    before = thread_time()
    for process in arrivals.PROCESSES:
        if process != "trace":
            next(arrivals.microseconds(arrivals.parse(process, "w"), Fraction(1), stream(1, "t")))
    assert thread_time() - before < 10


# --- as written, and wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "plain"),
    [
        ("poisson", "poisson"),
        ({"process": "constant"}, "constant"),
        ("gamma", {"process": "gamma", "cv": 2.0}),
        ({"process": "weibull", "cv": 3}, {"process": "weibull", "cv": 3.0}),
        ("bursty", {"process": "bursty", "alpha": 1.5}),
        ("periodic", {"process": "periodic", "jitter": 0.1}),
        ({"process": "trace", "path": "t.txt"}, {"process": "trace", "path": "t.txt"}),
        ("adversarial", {"process": "adversarial", "size": 20}),
        (
            {"process": "adversarial", "size": 3, "interval": "5s"},
            {"process": "adversarial", "size": 3, "interval": "5s"},
        ),
    ],
)
def test_a_process_is_written_with_its_defaults_and_reads_back(spec: Spec, plain: Spec) -> None:
    process = arrivals.parse(spec, "w")
    assert arrivals.explicit(process) == plain
    assert arrivals.parse(plain, "w") == arrivals.parse(to_builtins(process), "w") == process


def error_of(act: Callable[[], object]) -> str:
    with pytest.raises(HeadwayError) as caught:
        act()
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith((".", "?"))
    return sentence


@pytest.mark.parametrize(
    ("spec", "start"),
    [
        ("poison", "w: no arrival process is called 'poison'. Did you mean 'poisson'?"),
        ({"process": "weird"}, "w.process: no arrival process is called 'weird'. Known: adversarial, bursty"),
        ({"cv": 2}, "w: 'process' is missing"),
        (3, "w: expected a mapping, got 3"),
        ({"process": "gamma", "shape": 2}, "w.shape: there is no such key"),
        (
            {"process": "poisson", "cv": 2},
            "w.cv: only the gamma process or the weibull process has this key, not poi",
        ),
        ({"process": "gamma", "alpha": 2}, "w.alpha: only the bursty process has this key, not gamma. Remove it."),
        ({"process": "gamma", "jitter": 1}, "w.jitter: only the periodic process"),
        ({"process": "gamma", "path": "a"}, "w.path: only the trace process"),
        ({"process": "gamma", "size": 2}, "w.size: only the adversarial process"),
        ({"process": "gamma", "interval": "2s"}, "w.interval: only the adversarial process"),
        *(
            ({"process": process, "cv": cv}, "w.cv: must lie between 0.01 and 100 (for equal gaps use constant)")
            for process in ("gamma", "weibull")
            for cv in (0, -2, 101, float("nan"), float("inf"))
        ),
        ({"process": "weibull", "cv": "2"}, "w.cv: expected a number, got '2'"),
        *(
            ({"process": "bursty", "alpha": alpha}, "w.alpha: must lie between 1.05 and 100 (the mean gap is infinite")
            for alpha in (1, 0, -1, 101, float("nan"))
        ),
        *(
            ({"process": "periodic", "jitter": jitter}, "w.jitter: must lie between 0 and 1")
            for jitter in (-0.1, 1.1, float("nan"))
        ),
        ("trace", "w: 'path' is missing. Name the file"),
        ({"process": "trace", "path": "a", "format": "azur"}, "w.format: no trace format is called 'azur'. Did you"),
        ({"process": "adversarial", "size": 0}, "w.size: must lie between 1 and 1000000, got 0"),
        ({"process": "adversarial", "size": 10**7}, "w.size: must lie between 1 and 1000000, got 10000000"),
        ({"process": "adversarial", "size": 2.5}, "w.size: expected a whole number, got 2.5"),
        ({"process": "adversarial", "interval": 5}, "w.interval: 5 is not a duration"),
        ({"process": "adversarial", "interval": "0s"}, "w.interval: must be greater than zero, got '0s'"),
    ],
)
def test_a_wrong_figure_is_told_at_its_place(spec: Any, start: str) -> None:
    assert error_of(lambda: arrivals.parse(spec, "w")).startswith(start)


@pytest.mark.parametrize(
    ("spec", "rate", "start"),
    [
        ("poisson", None, "arrival: the poisson process needs a rate, as in 40/s."),
        ("adversarial", None, "arrival: the adversarial process needs a rate or an interval, as in 40/s."),
        ({"process": "adversarial", "interval": "5s"}, Fraction(1), "arrival.interval: the rate and the size already"),
    ],
)
def test_a_rate_too_few_or_too_many_is_told(spec: Spec, rate: Fraction | None, start: str) -> None:
    assert error_of(lambda: arrivals.base_rate(arrivals.parse(spec, "arrival"), rate)).startswith(start)


@pytest.mark.parametrize(
    ("text", "rate", "start"),
    [
        ("", None, "times.txt: the file is empty"),
        ("0\n2\n1\n", None, "times.txt line 3: the time is earlier than a previous one. Sort the file by time."),
        ("0\n2\n1\n", Fraction(1), "times.txt line 3: the time is earlier"),
        ("0\nnan\n", None, "times.txt line 2: expected a time in seconds, as in 12.5, got 'nan'"),
        ("0\n1/3\n", None, "times.txt line 2: expected a time in seconds"),
        ("0\n1e99999999\n", None, "times.txt line 2: expected a time in seconds"),
        (f"0\n{'9' * 5000}\n", None, "times.txt line 2: expected a time in seconds"),
        ("0\n\xe9\n", None, "times.txt line 2: expected a time in seconds"),
        ("7\n", Fraction(1), "times.txt: has fewer than two times. Remove the rate"),
        ("7\n7\n", Fraction(1), "times.txt: all times are the same. Remove the rate"),
        ("never\n", None, "times.txt: cannot detect the format of this file. Set arrival.format"),
    ],
)
def test_a_wrong_file_is_told_with_its_line(tmp_path: Path, text: str, rate: Fraction | None, start: str) -> None:
    spec = write_times(tmp_path, text)
    assert error_of(lambda: times(spec, rate)).startswith(start)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "none.txt")
    assert error_of(lambda: times({"process": "trace", "path": path}, None)).startswith(
        f"{path}: the file cannot be read"
    )
