"""Ranks, crowding and hypervolume against independent computations of their definitions."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.evolve.selection import crowding, dominates, front, hypervolume, ranks

Points = list[tuple[float, ...]]


def points(most: int = 8, largest: int = 6) -> st.SearchStrategy[Points]:
    """Draw points of 2 to 4 objectives on a small grid, so that ties are common and volumes exact."""
    return st.integers(2, 4).flatmap(
        lambda width: st.lists(st.tuples(*[st.integers(0, largest).map(float)] * width), min_size=1, max_size=most)
    )


def chain(found: Points, place: int) -> int:
    """Return a point's rank: the length of the longest chain of dominating points."""
    above = [other for other in range(len(found)) if dominates(found[other], found[place])]
    return 1 + max(chain(found, other) for other in above) if above else 0


@given(points())
def test_a_rank_is_the_length_of_the_longest_chain_of_betters(found: Points) -> None:
    assert ranks(found) == [chain(found, place) for place in range(len(found))]


@given(points())
def test_the_front_is_whom_nobody_dominates(found: Points) -> None:
    free = [place for place, one in enumerate(found) if not any(dominates(other, one) for other in found)]
    assert front(found) == free


@given(points(largest=4))
def test_the_hypervolume_is_the_number_of_unit_cubes_below_a_point(found: Points) -> None:
    width = len(found[0])
    cubes = [()]
    for _ in range(width):
        cubes = [(*cube, step) for cube in cubes for step in range(4)]
    below = [cube for cube in cubes if any(all(c < value for c, value in zip(cube, p, strict=True)) for p in found)]
    assert hypervolume(found, [0.0] * width) == len(below)


@given(points(most=6), st.integers(0, 3))
def test_the_hypervolume_is_the_sum_of_boxes_less_what_they_share(found: Points, low: int) -> None:
    total = 0.0
    for size in range(1, len(found) + 1):
        for several in combinations(found, size):
            box = math.prod(max(0.0, min(values) - low) for values in zip(*several, strict=True))
            total += box if size % 2 else -box
    assert hypervolume(found, [float(low)] * len(found[0])) == pytest.approx(total, abs=1e-9)


def test_crowding_is_the_share_of_the_spread_between_a_points_neighbours() -> None:
    result = crowding([(0.0, 10.0), (1.0, 7.0), (3.0, 6.0), (10.0, 0.0)])
    assert result[0] == result[3] == math.inf
    assert result[1] == pytest.approx((3 - 0) / 10 + (10 - 6) / 10)
    assert result[2] == pytest.approx((10 - 1) / 10 + (7 - 0) / 10)


def test_nothing_has_no_ranks_no_crowding_and_no_volume() -> None:
    assert ranks([]) == crowding([]) == [] and hypervolume([], [0.0, 0.0]) == 0.0


def test_an_objective_on_which_all_are_equal_does_not_crowd() -> None:
    assert crowding([(1.0, 0.0), (1.0, 1.0), (1.0, 4.0)]) == [math.inf, 1.0, math.inf]
