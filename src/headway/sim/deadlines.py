"""When clients give up: the deadlines of requests that have not ended."""

from __future__ import annotations

from heapq import heappop, heappush

from headway.results.recorder import IN_FLIGHT, Recorder
from headway.sim.job import Job
from headway.types import NEVER


class Deadlines:
    __slots__ = ("heap", "jobs", "recorder")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.heap: list[tuple[int, int]] = []  # when, and which request
        self.jobs: dict[int, tuple[int, Job]] = {}  # where those of them are that came to an instance, by request

    def add(self, deadline_ps: int, row: int) -> None:
        heappush(self.heap, (deadline_ps, row))

    def next_ps(self) -> int:
        """The first; those of requests that have ended are forgotten, lest the clock run on for nothing."""
        heap, outcome = self.heap, self.recorder.outcome
        while heap and outcome[heap[0][1]] != IN_FLIGHT:
            heappop(heap)
        return heap[0][0] if heap else NEVER

    def take(self) -> int:
        """The request of the first; there is one."""
        return heappop(self.heap)[1]
