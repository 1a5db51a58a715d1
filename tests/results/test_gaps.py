from __future__ import annotations

from array import array
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import InvariantError
from headway.results.gaps import GapCounts

Run = tuple[int, int, int, int]

NARROW = st.integers(0, 50)
WIDE = st.integers(0, 10**13)


def progressions(
    first: st.SearchStrategy[int], increment: st.SearchStrategy[int], steps: int
) -> st.SearchStrategy[Run]:
    return st.tuples(first, increment, st.integers(1, steps), st.integers(1, 5))


RUNS = st.one_of(
    st.lists(progressions(NARROW, st.integers(0, 3), 30), min_size=1, max_size=60),
    st.lists(progressions(WIDE, st.integers(0, 10**8), 60), min_size=1, max_size=60),
    st.lists(progressions(st.just(8 * 10**9), st.integers(0, 40_000), 300), min_size=1, max_size=60),
    st.lists(progressions(st.sampled_from([5, 10**9, 10**13]), st.integers(0, 10**6), 60), min_size=1, max_size=60),
)


def flat(runs: list[Run]) -> array[int]:
    return array("q", [number for run in runs for number in run])


def written_out(runs: list[Run]) -> list[int]:
    return sorted(
        first + step * increment
        for first, increment, steps, weight in runs
        for step in range(steps)
        for _ in range(weight)
    )


def check(counts: GapCounts, gaps: list[int]) -> None:
    ranks = sorted({rank * (len(gaps) - 1) // 50 for rank in range(51)})
    assert (counts.count, counts.total_ps) == (len(gaps), sum(gaps))
    expected = {rank: gaps[rank] for rank in ranks}
    assert counts.select(ranks) == expected
    with patch("headway.results.gaps.WRITE_OUT", 1):  # open bucket after bucket to the end
        assert counts.select(ranks) == expected


@given(RUNS)
def test_order_statistics_equal_those_of_the_gaps_written_out(runs: list[Run]) -> None:
    check(GapCounts(flat(runs)), written_out(runs))


@given(RUNS, st.data())
def test_what_is_taken_back_was_never_there(runs: list[Run], data: st.DataObject) -> None:
    removed = data.draw(st.lists(st.sampled_from(runs), max_size=5, unique=True))
    subtracted = [(first, increment, steps, -weight) for first, increment, steps, weight in removed]
    left = list(runs)
    for run in removed:
        left.remove(run)
    counts = GapCounts(flat(data.draw(st.permutations(runs + subtracted))))
    if left:
        check(counts, written_out(left))
    else:
        assert (counts.count, counts.total_ps) == (0, 0)


@given(RUNS, st.data())
def test_where_progressions_are_cut_or_turned_round_does_not_matter(runs: list[Run], data: st.DataObject) -> None:
    pieces: list[Run] = []
    for first, increment, steps, weight in runs:
        cut = data.draw(st.integers(0, steps))
        if cut:
            pieces.append((first + increment * (cut - 1), -increment, cut, weight))
        if cut < steps:
            pieces.append((first + increment * cut, increment, steps - cut, weight))
    check(GapCounts(flat(pieces)), written_out(runs))


@pytest.mark.parametrize("spread", [0, 10**3, 10**7, 10**10])
@pytest.mark.parametrize("longest", [1, 40, 400])
def test_many_progressions_are_exact_however_they_overlap(spread: int, longest: int) -> None:
    rng = Random(spread + longest)
    runs = [
        (10**10 + rng.randrange(spread + 1), 39_130 * rng.randint(0, 9), rng.randint(1, longest), rng.randint(1, 3))
        for _ in range(1000 if longest < 400 else 200)
    ]
    runs.append((5 * 10**12, 0, 1, 1))  # one far away
    check(GapCounts(flat(runs)), written_out(runs))


def test_no_gaps_have_no_rank() -> None:
    empty = GapCounts(array("q"))
    assert (empty.count, empty.total_ps, empty.select([])) == (0, 0, {})
    with pytest.raises(IndexError):
        empty.select([0])


def test_taking_back_what_was_not_counted_is_refused() -> None:
    with pytest.raises(InvariantError, match="were subtracted"):
        GapCounts(array("q", [5, 0, 2, 1, 5, 0, 2, -2]))
