"""Rows of the recorder for the requests that are there now: those of the past are used again, so that an engine that
never ends does not grow."""

from __future__ import annotations

from typing import Final

from headway.results.recorder import Recorder
from headway.sim.instance import Instance
from headway.sim.job import Job

OFTEN: Final = 1024  # requests after which what nobody reads is let go
USED: Final = {"started_ps": -1, "first_token_ps": -1, "cached_tokens": 0, "preemptions": 0, "loaded_tokens": 0}


class Rows:
    def __init__(self, recorder: Recorder, instances: list[Instance]) -> None:
        self.recorder, self.instances = recorder, instances
        self.free: list[int] = []
        self.given_back = 0

    def take(self, job: Job, now: int) -> None:
        recorder = self.recorder
        if self.free:
            job.row = self.free.pop()
            for name, empty in USED.items():
                getattr(recorder, name)[job.row] = empty
        else:
            job.row = recorder.rows
            recorder.record_arrival(now, job.request)

    def give_back(self, job: Job) -> None:
        """A request has ended, and whoever waited for it has read its row."""
        self.free.append(job.row)
        if job.awaits is not None:
            job.awaits.end()
        self.given_back += 1
        if self.given_back % OFTEN == 0:
            self._tidy()

    def _tidy(self) -> None:
        """Gaps are in the statistics of none: no request here is counted."""
        recorder = self.recorder
        recorder.preempted.clear()
        recorder.thrashed.clear()
        for instance in self.instances:
            del instance.gaps.runs[:]
            del instance.gaps.resumed[:]
            if instance.tiers is not None:
                instance.tiers.waits.clear()
