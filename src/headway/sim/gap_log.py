"""The gaps between tokens on one instance: an entry a run, and one for each gap that a preemption tore open."""

from __future__ import annotations

from array import array

from headway.sim.job import Job


class GapLog:
    """Entries are (first, increment, steps, weight), as in `Recorder.gaps`. The weight is the number of decodes that
    are in the statistics; what a request added is taken back if it never completes."""

    __slots__ = ("resumed", "runs")

    def __init__(self) -> None:
        self.runs = array("q")
        self.resumed = array("q")

    def resume(self, job: Job, gap: int) -> None:
        """The first token after a preemption."""
        job.torn = (*job.torn, len(self.resumed))
        self.resumed.extend((gap, 0, 1, int(job.counted)))

    def close(self, job: Job) -> None:
        """A request stops decoding before its end: its stretch of the log ends here."""
        job.logged = (*job.logged, (job.log_from, len(self.runs)))

    def take_back(self, job: Job) -> None:
        """Remove a request's gaps: it was not completed, so it is not in the statistics."""
        if job.counted:
            for start, end in job.logged:
                for place in range(start + 3, end, 4):
                    self.runs[place] -= 1
            for place in job.torn:
                self.resumed[place + 3] = 0
