"""What an instance writes down as it goes: the gaps between tokens, and the changes of its batch."""

from array import array
from struct import Struct

from headway.results.records import Batch as BatchRecord
from headway.results.records import KvMove
from headway.sim.batch import Batch
from headway.sim.job import Job
from headway.sim.leap import Run
from headway.views.instance import InstanceView

GAP_FIELDS = 4  # of an entry
ENTRY = Struct("4q").pack  # several times as fast as to extend an array by four numbers


class GapLog:
    """The gaps between tokens: an entry a run, and one for each gap that a preemption tore open.

    Entries are (first, increment, steps, weight), as in `Recorder.gaps`. The weight is the number of decodes that
    are in the statistics; what a request added is taken back if it never completes.
    """

    __slots__ = ("resumed", "runs")

    def __init__(self) -> None:
        self.runs = array("q")
        self.resumed = array("q")

    def resume(self, job: Job, now: int) -> None:
        """The first token after a preemption."""
        resumed = self.resumed
        place = len(resumed)
        resumed.frombytes(ENTRY(now - job.last_token_ps, 0, 1, job.counted))
        job.gaps.append((resumed, place, place + GAP_FIELDS))

    def close(self, job: Job, last_token_ps: int) -> None:
        """A request stops decoding before its end: its stretch of the log ends here."""
        job.last_token_ps = last_token_ps
        job.gaps.append((self.runs, job.log_from, len(self.runs)))


def take_back(job: Job) -> None:
    """Remove a request's gaps, once: it was not completed, so it is not in the statistics; or it starts again."""
    if job.counted:
        for log, start, end in job.gaps:
            for place in range(start + GAP_FIELDS - 1, end, GAP_FIELDS):
                log[place] -= 1
    job.gaps.clear()


class BatchLog:
    """How the batch of an instance changes over time, told only where it does: a cut of a run leaves no trace."""

    __slots__ = ("batch", "entered", "events", "run", "running", "view")

    def __init__(self, view: InstanceView, batch: Batch, run: Run, events: list[BatchRecord | KvMove]) -> None:
        self.view, self.batch, self.run = view, batch, run
        self.events = events
        self.entered = 0  # how many ever had when it was told last
        self.running = 0  # how many it had then

    def note(self, now: int) -> None:
        """A step begins."""
        batch, view = self.batch, self.view
        running = batch.running
        if batch.entered == self.entered and len(running) == self.running:
            return
        rows = []
        for job in reversed(running):
            if job.order <= self.entered:
                break
            rows.append(job.row)
        tokens = 0
        for _, want in self.run.chunks:
            tokens += want
        self.events.append(BatchRecord(now, view.index, rows[::-1], len(running), view.queued, tokens))
        self.entered = batch.entered
        self.running = len(running)
