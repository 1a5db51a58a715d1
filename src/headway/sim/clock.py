"""Simulated time: the present instant, when the runs of the instances end, and which instances begin a step now."""

from heapq import heappush
from typing import Final

from headway.sim.instance import Instance
from headway.types import NEVER

INDEX_BITS: Final = 20  # a heap entry is time and instance in one integer
MASK: Final = (1 << INDEX_BITS) - 1


class Clock:
    __slots__ = ("begins", "ends", "instances", "now")

    def __init__(self, instances: list[Instance]) -> None:
        self.instances = instances
        self.now = 0
        # Heap of run ends; an entry whose run was cut or lost is stale. It is never empty.
        self.ends = [NEVER << INDEX_BITS]
        self.begins: list[int] = []  # instances at a step boundary at this instant

    def note_change(self, index: int, before: int, begins: bool) -> None:
        """Take note that an instance can begin a step now, or that its run, which ended at `before`, was cut."""
        if begins:
            self.begins.append(index)
        elif (end := self.instances[index].run.end) != before:
            heappush(self.ends, end << INDEX_BITS | index)

    def begin_steps(self, now: int) -> None:
        """Begin the next step of each instance that stands at a boundary, by instance."""
        begins, instances = self.begins, self.instances
        if len(begins) > 1:
            begins.sort()
        for index in begins:
            if (end := instances[index].begin(now)) >= 0:
                heappush(self.ends, end << INDEX_BITS | index)
        begins.clear()
