"""Simulated time: the current instant, the times at which the instances' runs of steps end, and the instances that
begin a step now."""

from collections.abc import Sequence
from heapq import heappush
from typing import Final

from headway.sim.instance import Instance
from headway.sim.lockstep import Lockstep
from headway.types import NEVER

INDEX_BITS: Final = 20  # number of low bits for the instance: a heap entry combines time and instance in one integer
MASK: Final = (1 << INDEX_BITS) - 1


class Clock:
    __slots__ = ("begins", "ends", "instances", "now")

    def __init__(self, instances: Sequence[Instance | Lockstep]) -> None:
        self.instances = instances  # by index of the instance; ranks in lockstep have the same entry
        self.now = 0
        # Heap of the ends of runs. It is never empty. The entries of runs that were cut or lost are stale.
        self.ends = [NEVER << INDEX_BITS]
        self.begins: list[int] = []  # indices of the instances that are at a step boundary now

    def note_change(self, index: int, before: int, begins: bool) -> None:
        """Schedule an instance that can begin a step now (`begins`) or whose run of steps was cut. `before` is the end
        of the run that was planned before the cut."""
        if begins:
            self.begins.append(index)
        elif (end := self.instances[index].run.end) != before:
            heappush(self.ends, end << INDEX_BITS | index)
