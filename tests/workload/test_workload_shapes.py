"""Length distributions: means, deviations, bounds, whole numbers."""

from __future__ import annotations

from math import exp, fsum, sqrt
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.streams import stream
from headway.workload import shapes

COUNT = 30_000


def draws(spec: object, count: int = COUNT) -> list[int]:
    draw = shapes.maker(spec, "w")(stream(3, "t"))
    return [draw() for _ in range(count)]


def moments(values: list[int]) -> tuple[float, float]:
    mean = fsum(values) / len(values)
    return mean, sqrt(fsum((value - mean) ** 2 for value in values) / len(values))


@pytest.mark.parametrize(
    ("spec", "mean", "std"),
    [
        (512, 512, 0),
        ({"dist": "constant", "value": 7}, 7, 0),
        ({"dist": "normal", "mean": 512, "std": 60}, 512, 60),
        ({"dist": "exponential", "mean": 400}, 400, 400),
        ({"dist": "lognormal", "mean": 1000, "std": 500}, 1000, 500),
        ({"dist": "empirical", "values": [10, 20, 60]}, 30, sqrt(1400 / 3)),
        ({"dist": "empirical", "values": [10, 20], "weights": [3, 1]}, 12.5, sqrt(18.75)),
    ],
)
def test_draws_have_the_mean_and_deviation_asked_for(spec: object, mean: float, std: float) -> None:
    found_mean, found_std = moments(draws(spec))
    assert abs(found_mean - mean) <= 5 * std / sqrt(COUNT) + 1e-9
    assert found_std == pytest.approx(std, rel=0.05)


def test_lognormal_has_its_median_below_its_mean() -> None:
    values = sorted(draws({"dist": "lognormal", "mean": 1000, "std": 1000}))
    assert values[COUNT // 2] == pytest.approx(1000 * exp(-0.5 * 0.6931), rel=0.03)


def test_draws_outside_the_bounds_are_set_to_them() -> None:
    values = draws({"dist": "normal", "mean": 100, "std": 50, "min": 90, "max": 110})
    assert min(values) == 90 and max(values) == 110
    assert values.count(90) / COUNT == pytest.approx(0.4247, abs=0.02)  # P(Z < -0.19), all of it at the bound
    assert set(draws({"dist": "constant", "value": 5, "min": 8}, 3)) == {8}
    assert set(draws({"dist": "empirical", "values": [1, 500], "max": 100}, 300)) == {1, 100}


def test_lengths_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("16\n\n32\n64\n")
    assert set(draws({"dist": "empirical", "path": str(file)}, 300)) == {16, 32, 64}


@given(
    dist=st.sampled_from(["normal", "lognormal"]),
    mean=st.floats(0.1, 1e6),
    std=st.floats(0, 1e6),
    low=st.integers(1, 1000),
    room=st.integers(0, 10**6),
)
def test_every_draw_is_a_whole_number_within_bounds(dist: str, mean: float, std: float, low: int, room: int) -> None:
    for value in draws({"dist": dist, "mean": mean, "std": std, "min": low, "max": low + room}, 50):
        assert isinstance(value, int)
        assert low <= value <= low + room
    assert all(value >= 1 for value in draws({"dist": dist, "mean": mean, "std": std}, 50))


def test_a_pareto_length_has_a_power_law_tail() -> None:
    values = draws({"dist": "pareto", "alpha": 2.5, "scale": 100})
    assert min(values) == 100
    for length in (150, 300, 600):
        share = len([value for value in values if value > length]) / COUNT
        assert share == pytest.approx((100 / length) ** 2.5, abs=0.01)
    assert max(draws({"dist": "pareto", "alpha": 0.01, "scale": 1}, 300)) == shapes.MAX_TOKENS
    assert max(draws({"dist": "pareto", "alpha": 1, "scale": 10, "max": 50}, 300)) == 50


def test_a_mixture_draws_from_its_parts_by_weight() -> None:
    parts = [{"weight": 3, "dist": "constant", "value": 10}, {"dist": "uniform", "min": 100, "max": 200}]
    values = draws({"dist": "mixture", "parts": parts, "max": 150})
    assert values.count(10) / COUNT == pytest.approx(0.75, abs=0.02)
    assert {value for value in values if value != 10} == set(range(100, 151))


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"dist": "pareto", "alpha": 0, "scale": 9}, "w.alpha: must lie between 0.01 and 1000"),
        ({"dist": "pareto", "alpha": 1, "scale": 0}, "w.scale: must be above 0"),
        ({"dist": "mixture", "parts": []}, "w.parts: list at least one distribution"),
        ({"dist": "mixture", "parts": [{"dist": "zipf"}]}, r"w.parts\[0\]"),
        (
            {"dist": "mixture", "parts": [{"dist": "constant", "value": 1, "weight": "a"}]},
            r"parts\[0\].weight: expected",
        ),
        (
            {"dist": "mixture", "parts": [{"dist": "constant", "value": 1, "weight": 0}]},
            "a weight is a positive number",
        ),
        (
            {"dist": "mixture", "parts": [{"dist": "mixture", "parts": [{"dist": "constant", "value": 1}]}]},
            "a part cannot be a mixture",
        ),
    ],
)
def test_a_wrong_pareto_or_mixture_is_named(spec: object, word: str) -> None:
    with pytest.raises(HeadwayError, match=word):
        shapes.parse(spec, "w")
