"""A clock alone: it keeps the ends of runs in order."""

from __future__ import annotations

from typing import Any

from headway.sim.clock import INDEX_BITS, MASK, Clock
from headway.sim.leap import Run
from headway.types import NEVER


class Engine:
    """The part of an instance that the clock reads."""

    def __init__(self) -> None:
        self.run = Run()


def entries(clock: Clock) -> list[tuple[int, int]]:
    return [(entry >> INDEX_BITS, entry & MASK) for entry in sorted(clock.ends) if entry >> INDEX_BITS != NEVER]


def test_a_run_that_was_cut_has_a_new_end_and_leaves_the_old_one_stale() -> None:
    engine: Any = Engine()
    clock = Clock([engine])
    engine.run.end = 30
    clock.note_change(0, -1, begins=False)
    engine.run.end = 20
    clock.note_change(0, 30, begins=False)
    clock.note_change(0, 20, begins=False)  # nothing has changed
    assert entries(clock) == [(20, 0), (30, 0)]
    clock.note_change(0, 20, begins=True)
    assert clock.begins == [0]
