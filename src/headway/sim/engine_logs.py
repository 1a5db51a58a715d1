"""Logs of an instance: the gaps between tokens, the changes of its batch, and its runs of equal steps."""

from array import array
from struct import Struct
from typing import Any

from headway.results.records import LIMITS, NO_LIMIT, KvMove, QueueLimit
from headway.results.records import Batch as BatchRecord
from headway.sim.batch import Batch
from headway.sim.job import Job
from headway.sim.leap import Run
from headway.types import Request
from headway.views.instance import InstanceView

GAP_FIELDS = 4  # number of fields of an entry in a gap log
# An event: (time, index of its class in `news.KINDS`, instance index, row of the request, request, further values).
Item = tuple[int, int, int, int, Request | None, tuple[Any, ...]]
ENTRY = Struct("4q").pack  # packs an entry as bytes; several times faster than extending an array by four numbers


class GapLog:
    """The gaps between tokens: one entry per run of steps, and one entry for each gap that a preemption caused.

    Entries are (first, increment, steps, weight), as in `Recorder.gaps`. The weight is the number of decoding requests
    that count in the statistics. If one of these requests does not complete, `take_back` reduces the weights of its
    gaps by one.
    """

    __slots__ = ("resumed", "runs")

    def __init__(self) -> None:
        self.runs = array("q")
        self.resumed = array("q")

    def resume(self, job: Job, now: int) -> None:
        """Log the gap before the first token after a preemption."""
        resumed = self.resumed
        place = len(resumed)
        resumed.frombytes(ENTRY(now - job.last_token_ps, 0, 1, job.counted))
        job.gaps.append((resumed, place, place + GAP_FIELDS))

    def close(self, job: Job, last_token_ps: int) -> None:
        """Note which range of the log contains the gaps of a request that stops decoding before its last token."""
        job.last_token_ps = last_token_ps
        job.gaps.append((self.runs, job.log_from, len(self.runs)))


def take_back(job: Job) -> None:
    """Remove the gaps of a request that did not complete, or that starts again, from the statistics."""
    if job.counted:
        for log, start, end in job.gaps:
            for place in range(start + GAP_FIELDS - 1, end, GAP_FIELDS):
                log[place] -= 1
    job.gaps.clear()


class BatchLog:
    """The changes of an instance's batch over time. A step whose batch is the same as before adds no entry. For
    example, the batch may stay the same when an event cuts a run of steps."""

    __slots__ = ("batch", "entered", "events", "run", "running", "view")

    def __init__(self, view: InstanceView, batch: Batch, run: Run, events: list[BatchRecord | KvMove]) -> None:
        self.view, self.batch, self.run = view, batch, run
        self.events = events
        self.entered = 0  # `Batch.entered` at the last log entry
        self.running = 0  # number of running requests at the last log entry

    def note(self, now: int) -> None:
        """Log the batch at the start of a step, if the batch has changed."""
        batch, view = self.batch, self.view
        running = batch.running
        if batch.entered == self.entered and len(running) == self.running:
            return
        rows = []
        for job in reversed(running):
            if job.order <= self.entered:
                break
            rows.append(job.row)
        tokens = sum(want for _, want in self.run.chunks)
        self.events.append(BatchRecord(now, view.index, rows[::-1], len(running), view.queued, tokens))
        self.entered = batch.entered
        self.running = len(running)


class LimitLog:
    """Logs over time which limit, a position in LIMITS, keeps the first waiting request of an instance out of the
    batch. If the limit changes several times at one instant, only the last limit is logged, because the number of
    changes depends on where runs are cut."""

    __slots__ = ("at", "before", "index", "limit", "log")

    def __init__(self, index: int, log: list[QueueLimit]) -> None:
        self.index = index  # index of the instance
        self.log = log
        self.limit = self.before = NO_LIMIT  # the current limit, and the limit of the last entry in the log
        self.at = 0  # time from which the current limit holds

    def note(self, now: int, limit: int) -> None:
        if limit != self.limit:
            if now > self.at:
                self.close()
                self.at = now
            self.limit = limit

    def close(self) -> None:
        """Log the current limit, if it differs from the last entry."""
        if self.limit != self.before:
            self.log.append(QueueLimit(self.at, self.index, LIMITS[self.limit]))
            self.before = self.limit


class Reporter:
    """Reports events of one class about one instance to the policies that observe them (see `news`)."""

    __slots__ = ("index", "items", "place")

    def __init__(self, items: list[Item], place: int, index: int) -> None:
        self.items, self.place, self.index = items, place, index

    def report(self, now: int, request: Request | None, *values: Any) -> None:
        row = -1 if request is None else request.id
        self.items.append((now, self.place, self.index, row, request, values))


class EqualSteps:
    """Finds the longest runs of equal steps of an instance."""

    __slots__ = ("batch", "first", "reporter", "run", "shape", "start")

    def __init__(self, batch: Batch, run: Run, reporter: Reporter) -> None:
        self.batch, self.run, self.reporter = batch, run, reporter
        self.shape: tuple[Any, ...] | None = None  # what all steps of the current run have in common
        self.start = 0
        self.first = 0

    def note(self, now: int) -> None:
        """Compare the step that begins now with the steps before it."""
        batch = self.batch
        chunks = [(job.row, want) for job, want in self.run.chunks]
        shape = (batch.entered, len(batch.running), batch.decodes, chunks) if batch.running else None
        if shape != self.shape:
            self.close(now)
            self.shape, self.start, self.first = shape, now, batch.steps

    def close(self, now: int) -> None:
        """End the current run."""
        steps = self.batch.steps - self.first
        if self.shape is not None and steps:
            _, running, decodes, chunks = self.shape
            tokens = sum(want for _, want in chunks)
            self.reporter.report(now, None, self.start, self.first, steps, running, decodes, tokens)
        self.shape = None
