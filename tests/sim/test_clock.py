"""A clock alone: instances begin steps by index, and ends of runs are kept in order."""

from __future__ import annotations

from typing import Any

from headway.sim.clock import INDEX_BITS, MASK, Clock
from headway.sim.leap import Run
from headway.types import NEVER


class Engine:
    """What the clock asks of an instance: a run of so many picoseconds, or nothing to do."""

    def __init__(self, lasts: int) -> None:
        self.lasts = lasts
        self.run = Run()

    def begin(self, now: int) -> int:
        self.run.end = now + self.lasts if self.lasts else -1
        return self.run.end


def entries(clock: Clock) -> list[tuple[int, int]]:
    return [(entry >> INDEX_BITS, entry & MASK) for entry in sorted(clock.ends) if entry >> INDEX_BITS != NEVER]


def test_steps_begin_where_instances_stand_at_a_boundary() -> None:
    engines: list[Any] = [Engine(30), Engine(0), Engine(10)]
    clock = Clock(engines)
    clock.begins += [2, 0, 1]
    clock.begin_steps(100)
    assert entries(clock) == [(110, 2), (130, 0)]
    assert clock.begins == []


def test_a_run_that_was_cut_has_a_new_end_and_leaves_the_old_one_stale() -> None:
    engine: Any = Engine(30)
    clock = Clock([engine])
    clock.begins.append(0)
    clock.begin_steps(0)
    engine.run.end = 20
    clock.note_change(0, 30, begins=False)
    clock.note_change(0, 20, begins=False)  # nothing has changed
    assert entries(clock) == [(20, 0), (30, 0)]
    clock.note_change(0, 20, begins=True)
    assert clock.begins == [0]
