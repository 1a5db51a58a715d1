"""Gains and fitness by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.evolve.evaluation import CaseResult
from headway.evolve.fitness import fitness, gain, gains
from headway.evolve.objectives import Objective, figures_of, read_objectives

TTFT = Objective("ttft", "latency.ttft.mean", "minimize")
BOTH = Objective("both", {"latency.e2e.mean": 0.5, "latency.e2e.p95": 0.5}, "minimize", 3.0)
GOOD = Objective("good", "slo.goodput_ratio", "maximize", 0.0)
HIT = Objective("hit", "cache.token_hit_ratio", "maximize")
BASE = {
    "requests.completed": 100.0,
    "latency.ttft.mean": 200.0,
    "latency.e2e.mean": 1000.0,
    "latency.e2e.p95": 3000.0,
    "slo.goodput_ratio": 0.8,
    "cache.token_hit_ratio": 0.5,
}


def test_a_gain_is_the_share_by_which_a_figure_is_better() -> None:
    better = BASE | {"latency.ttft.mean": 150.0, "latency.e2e.p95": 2000.0, "slo.goodput_ratio": 0.9}
    assert gain(TTFT, better, BASE) == pytest.approx(0.25)
    assert gain(BOTH, better, BASE) == pytest.approx(1 - 1500 / 2000)
    assert gain(GOOD, better, BASE) == pytest.approx(0.9 / 0.8 - 1)
    assert gains((TTFT, BOTH, GOOD), BASE, BASE) == {"primary": 0.0, "ttft": 0.0, "both": 0.0, "good": 0.0}


def test_who_completes_half_of_what_the_baseline_does_has_its_latency_doubled() -> None:
    half = BASE | {"requests.completed": 50.0, "latency.ttft.mean": 100.0}
    assert gain(TTFT, half, BASE) == pytest.approx(0.0)
    assert gain(BOTH, half, BASE) == pytest.approx(-1.0)


def test_who_completes_more_than_the_baseline_is_given_nothing_for_it() -> None:
    assert gain(TTFT, BASE | {"requests.completed": 200.0}, BASE) == 0.0


def test_a_share_of_what_completed_shrinks_with_what_was_lost_and_goodput_has_shrunk_already() -> None:
    half = BASE | {"requests.completed": 50.0}
    assert gain(HIT, half, BASE) == pytest.approx(-0.5)
    assert gain(GOOD, half, BASE) == 0.0


def test_a_case_without_a_sample_has_failed() -> None:
    assert gain(TTFT, BASE | {"latency.ttft.mean": None}, BASE) == -10
    assert gain(TTFT, BASE | {"latency.ttft.mean": math.nan}, BASE) == -10
    assert gain(TTFT, BASE | {"requests.completed": 0.0}, BASE) == -10


def test_gains_over_a_baseline_of_nothing_are_bounded() -> None:
    lost = Objective("lost", "requests.rejected", "minimize")
    zero, some = BASE | {"requests.rejected": 0.0}, BASE | {"requests.rejected": 3.0}
    assert gain(lost, zero, zero) == 0.0
    assert gain(lost, some, zero) == -10.0
    assert gain(Objective("won", "requests.rejected", "maximize"), some, zero) == 10.0


def case(workload: str, seed: int, *values: float) -> CaseResult:
    return CaseResult(workload, seed, True, dict(zip(("primary", "ttft", "both"), values, strict=True)))


def test_seeds_are_averaged_within_a_workload_before_workloads_are() -> None:
    cases = [
        case("a", 1, 0, 0.4, 0.0),
        case("a", 2, 0, 0.2, 0.0),
        case("a", 3, 0, 0.0, 0.0),
        case("b", 1, 0, -1.0, 1.0),
    ]
    result = fitness((TTFT, BOTH), cases, 7)
    assert result == {
        "primary": pytest.approx((1 * -0.4 + 3 * 0.5) / 4),
        "ttft": pytest.approx((0.2 - 1.0) / 2),
        "both": pytest.approx(0.5),
        "complexity": 7.0,
    }


figure = st.none() | st.floats(allow_nan=True, allow_infinity=True)


@given(st.fixed_dictionaries(dict.fromkeys(BASE, figure)), st.fixed_dictionaries(dict.fromkeys(BASE, figure)))
def test_whatever_the_figures_are_gains_are_finite_and_have_the_same_keys(
    figures: dict[str, float | None], base: dict[str, float | None]
) -> None:
    result = gains((TTFT, BOTH, GOOD, HIT), figures, base)
    assert list(result) == ["primary", "ttft", "both", "good", "hit"]
    assert all(-10 <= value <= 10 for value in result.values())


def test_a_figure_of_a_tenant_is_found_by_its_name() -> None:
    summary = {
        "latency": {"ttft": {"mean": 3}},
        "tenants": [{"id": "a", "latency": {"ttft": {"mean": 5}}}, {"id": "b", "latency": {"ttft": {"mean": None}}}],
    }
    paths = ["latency.ttft.mean", "tenants.a.latency.ttft.mean", "tenants.b.latency.ttft.mean", "tenants.c.latency.x"]
    assert list(figures_of(summary, paths).values()) == [3.0, 5.0, None, None]


def test_a_direction_is_known_where_the_figure_has_one() -> None:
    result = read_objectives(
        ["slo.goodput_ratio", {"figure": "classes.realtime.latency.ttft.p99", "name": "rt"}], "objectives"
    )
    assert [(one.name, one.direction) for one in result] == [("slo.goodput_ratio", "maximize"), ("rt", "minimize")]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "objectives: expected a list"),
        (["latency.ttft.p98"], "objectives[0].figure: runs cannot be ranked by 'latency.ttft.p98'"),
        ([{"figure": {"latency.ttft.mean": 1}}], "objectives[0].name: is missing"),
        ([{"figure": {"latency.ttft.mean": -1}, "name": "x"}], "expected a weight above 0, got -1"),
        ([{"figure": "latency.ttft.mean", "name": "primary"}], "objectives[0].name: 'primary' is already used"),
        ([{"figure": "latency.ttft.mean", "weight": 0}], "at least one objective needs a weight above 0"),
        ([{"figure": "latency.ttft.mean", "directon": "minimize"}], "objectives[0].directon: there is no such key"),
        ([{"figure": "latency.ttft.mean", "direction": "down"}], "expected 'minimize' or 'maximize'"),
    ],
)
def test_a_wrong_objective_is_told_with_its_place(data: object, words: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        read_objectives(data, "objectives")
    assert words in str(caught.value)
