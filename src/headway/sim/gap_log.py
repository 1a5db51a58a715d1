"""The gaps between tokens on one instance: an entry a run, and one for each gap that a preemption tore open."""

from __future__ import annotations

from array import array
from struct import Struct

from headway.sim.job import Job

GAP_FIELDS = 4  # of an entry
ENTRY = Struct("4q").pack  # several times as fast as to extend an array by four numbers


class GapLog:
    """Entries are (first, increment, steps, weight), as in `Recorder.gaps`. The weight is the number of decodes that
    are in the statistics; what a request added is taken back if it never completes."""

    __slots__ = ("last_token_ps", "resumed", "runs", "stretches", "torn")

    def __init__(self) -> None:
        self.runs = array("q")
        self.resumed = array("q")
        # of preempted requests, by row
        self.last_token_ps: dict[int, int] = {}  # before the preemption
        self.stretches: dict[int, list[tuple[int, int]]] = {}  # of the log, from before a preemption
        self.torn: dict[int, list[int]] = {}  # places in `resumed`

    def resume(self, job: Job, now: int) -> None:
        """The first token after a preemption."""
        self.torn.setdefault(job.row, []).append(len(self.resumed))
        self.resumed.frombytes(ENTRY(now - self.last_token_ps[job.row], 0, 1, job.counted))

    def close(self, job: Job, last_token_ps: int) -> None:
        """A request stops decoding before its end: its stretch of the log ends here."""
        self.last_token_ps[job.row] = last_token_ps
        self.stretches.setdefault(job.row, []).append((job.log_from, len(self.runs)))

    def take_back(self, job: Job) -> None:
        """Remove a request's gaps, once: it was not completed, so it is not in the statistics; or it starts again."""
        stretches, torn = self.stretches.pop(job.row, ()), self.torn.pop(job.row, ())
        if job.counted:
            for start, end in stretches:
                for place in range(start + 3, end, 4):
                    self.runs[place] -= 1
            for place in torn:
                self.resumed[place + 3] = 0
