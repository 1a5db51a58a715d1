"""A run alone: what follows from its formula equals what walking its steps gives."""

from __future__ import annotations

from engine_parts import begin_run
from hypothesis import given
from hypothesis import strategies as st

from headway.sim.leap import Run

RUNS = st.tuples(st.integers(0, 50), st.integers(1, 30), st.integers(0, 5), st.integers(1, 40))


def new_run(start: int, first: int, increment: int, steps: int) -> tuple[Run, list[int]]:
    """A run, and when each of its steps begins, with the end of the last."""
    run, walked = Run(), [start]
    begin_run(run, start, first, increment, steps)
    for step in range(steps):
        walked.append(walked[-1] + first + step * increment)
    return run, walked


@given(RUNS, st.integers(1, 2000))
def test_steps_begun_and_ended_are_those_that_one_counts(planned: tuple[int, int, int, int], after: int) -> None:
    run, walked = new_run(*planned)
    at = min(run.start + after, run.end)
    assert run.end == walked[-1]
    assert run.count_begun(at) == sum(begin < at for begin in walked[:-1])
    assert run.count_ended(at) == sum(end <= at for end in walked[1:])


@given(RUNS, st.integers(1, 2000))
def test_a_cut_ends_the_run_at_the_first_boundary_from_then_on(planned: tuple[int, int, int, int], after: int) -> None:
    run, walked = new_run(*planned)
    now = min(run.start + after, run.end - 1)
    if now <= run.start:
        return
    ends_now = run.cut(now)
    assert run.end == min(end for end in walked[1:] if end >= now) == run.boundary(run.length)
    assert ends_now == (run.end == now and run.length < planned[3])


def test_a_run_of_one_step_cannot_be_cut() -> None:
    run, _ = new_run(0, 10, 0, 1)
    assert not run.cut(5)
    assert (run.length, run.end) == (1, 10)
