"""The KV blocks that a run of steps allocates. They are computed from the formula of the run, only when they are
needed.

The cache is updated when the run ends, and earlier if other code reads or changes the cache. If the router reads KV
use, it is also computed before each decision.
"""

from collections.abc import Sequence
from typing import Protocol

from headway.sim.batch import Batch
from headway.sim.job import Job
from headway.sim.kv_cache import STEP_END, KvCache
from headway.sim.leap import Run, duration, steps_begun
from headway.types import NEVER
from headway.views.instance import InstanceView

FEW_BITS = 2  # up to 2 to the power of this, counting steps one by one is faster than the formula of the run


class KvReport(Protocol):
    """Where the KV use of an instance is reported: the router's view, or a record that policies do not see."""

    kv_used: int


class RunBlocks:
    __slots__ = (
        "batch", "cache", "caching", "few_bits", "increment", "looked", "next_step", "peak", "phases", "prefills",
        "report", "reported_to", "reserves", "run", "size", "taken_steps", "view",
    )  # fmt: skip

    def __init__(self, view: InstanceView, cache: KvCache, batch: Batch, run: Run, caching: bool) -> None:
        self.view = view
        self.cache = cache
        self.batch = batch
        self.run = run
        self.caching = caching
        self.size = batch.block_tokens
        self.few_bits = min(FEW_BITS, self.size.bit_length() - 1)
        self.phases = batch.phases
        # A prefill instance allocates the blocks of a whole prompt when the request enters. Otherwise prompts could
        # wait forever, because finished prompts keep their blocks until the decode instance has room.
        self.reserves = view.role == "prefill"
        self.taken_steps = 0  # number of steps of the run whose blocks are allocated
        self.peak = 0  # maximum number of allocated blocks so far
        self.report: KvReport | None = view  # where KV use is reported; None: it is not reported
        # The next fields have the state at the last report of KV use.
        self.looked = 0  # number of steps begun at the last report, including those of earlier runs
        self.reported_to = NEVER  # time until which the report is valid: the start of the run's next step, or NEVER
        self.next_step = 0  # duration of the step after the last one that the report includes
        self.increment = 0  # picoseconds by which each step is longer than the previous step
        self.prefills = False  # whether the run's steps compute chunks of an unfinished prefill

    def report_run(self, report: KvReport) -> None:
        """Report the KV use at the start of the run that has just been planned."""
        run = self.run
        report.kv_used = self.cache.held
        if run.length > 1:
            self.looked = self.batch.steps + 1
            self.reported_to = run.start + run.first
            self.next_step = run.first + run.increment
            self.increment = run.increment
            self.prefills = self.batch.partial is not None

    def chunk_blocks(self, steps: int) -> int:
        """Return how many blocks the unfinished prefill has after `steps` steps of the run have begun."""
        job, want = self.run.chunks[0]
        return job.blocks if self.reserves else -(-(job.computed + want * steps) // self.size)

    def take_to(self, steps: int) -> None:
        """Allocate those blocks of the run's first `steps` steps that are not allocated yet."""
        before, batch = self.taken_steps, self.batch
        if steps > before:
            self.taken_steps = steps
            if batch.lanes is None:  # the same as `Batch.decode_blocks`, but faster without the call
                size, more = self.size, steps - before
                phase = (batch.steps + before) % size
                count = batch.decodes * (more // size) + sum(self.phases[phase : phase + more % size])
            else:
                count = batch.decode_blocks(batch.steps + before, steps - before)
            own = 0
            partial = batch.partial
            if partial is not None:
                own = partial.blocks
                blocks = self.chunk_blocks(steps)
                count += blocks - own
                partial.blocks = blocks
            if count:
                cache = self.cache
                if cache.log is not None and cache.held + cache.idle + count > cache.total:
                    self.take_dated(before, steps, own)
                else:
                    cache.take(count)

    def take_dated(self, first_step: int, steps: int, own: int) -> None:
        """Allocate blocks step by step, so that each eviction is logged with the time of the step that causes it. `own`
        is the number of blocks of the unfinished prefill before these steps."""
        cache, run, batch = self.cache, self.run, self.batch
        cache.now = run.boundary(first_step)
        length = run.first + run.increment * first_step
        for step in range(first_step, steps):
            count = batch.decode_blocks(batch.steps + step, 1)
            if batch.partial is not None:
                blocks = self.chunk_blocks(step + 1)
                count += blocks - own
                own = blocks
            if count:
                cache.take(count)
            cache.now += length
            length += run.increment

    def settle(self, at: int) -> None:
        """Update the cache to time `at`: allocate blocks for the steps that began before `at`, and cache the prompt
        blocks of the steps that ended by `at`."""
        run = self.run
        if run.end >= 0 and run.length > 1:
            self.take_to(run.count_begun(at))
            if self.batch.partial is not None:
                self.offer_steps(run.count_ended(at))

    def settle_evictions(self, before: int) -> None:
        """Allocate the blocks of the current run's steps that began before time `before`, if this may evict content."""
        run, batch, cache = self.run, self.batch, self.cache
        if before > run.start and (left := run.length - self.taken_steps):
            most = batch.decodes * (left // batch.block_steps + 1)
            if batch.partial is not None:
                most += self.view.max_batch_tokens * left  # each token needs at most one new block
            if cache.held + cache.idle + most > cache.total:
                self.take_to(run.count_begun(before))

    def note_peak(self) -> None:
        if self.cache.held > self.peak:
            self.peak = self.cache.held

    def settle_stores(self, at: int) -> None:
        """Cache and report the prompt blocks of the current run's steps that ended by `at`."""
        run = self.run
        if self.batch.partial is not None and run.length > 1 and at > run.start:
            self.settle(at)

    def offer_steps(self, steps: int) -> None:
        """Cache the prompt blocks that the first `steps` steps of the run have computed. If stored blocks are reported,
        the blocks of each step get the time at which it ended."""
        run, size = self.run, self.size
        job, want = run.chunks[0]
        at = 0
        if self.cache.stores is not None:
            offered = max(0, (job.cached_to * size - job.computed) // want)
            for step in range(offered + 1, steps):
                self.offer(job, (job.computed + want * step) // size, run.boundary(step))
            at = run.boundary(steps)
        self.offer(job, (job.computed + want * steps) // size, at)

    def offer(self, job: Job, end: int, at: int, order: int = STEP_END) -> None:
        """Cache the computed blocks up to `end`, except those whose content is cached already. Requests can hit these
        blocks from time `at` on; `order` is the blocks' order among the events of that instant."""
        first = start = job.cached_to
        if end <= start or not self.caching:
            return
        job.cached_to = end
        cache, holds, priority = self.cache, job.holds, job.ticket.priority
        released = end - 1 if job.skipped else 0  # the first block that is in all groups
        for run, stop in job.runs:
            if stop > start:
                if stop >= end:
                    cache.add(run, start, end, holds, priority, released)
                    break
                cache.add(run, start, stop, holds, priority, released)
                start = stop
        if cache.stores is not None:
            self.tell_stored(job, first, end, at, order)

    def tell_stored(self, job: Job, start: int, end: int, at: int, order: int) -> None:
        """Report the blocks of a request from `start` to `end`, which the cache now has."""
        first = 0
        for run, stop in job.runs:
            if stop > start:
                self.cache.tell_stored(at, order, run, first, job.request.path)
            if stop >= end:
                break
            first = stop

    def repeats(self, job: Job, want: int) -> bool:
        """Whether a chunk of the same size may follow this one in the same run. Another chunk may follow if the prefill
        does not end with this chunk and no later block of the prompt is cached. If a later block were cached, the
        result would depend on the order in which blocks are evicted and computed."""
        if job.computed + want >= job.known:
            return False
        return not (self.caching and self.cache.cached_beyond(job.runs, job.cached_to))

    def affordable(self, steps: int) -> int:
        """Return the largest number of steps, up to `steps`, for which there are enough blocks. The run ends after
        these steps, and the scheduler decides how to continue."""
        if self.affords(steps):
            return steps
        low, high = 1, steps  # there are enough blocks for `low` steps, but not for `high` steps
        while high - low > 1:
            middle = (low + high) // 2
            if self.affords(middle):
                low = middle
            else:
                high = middle
        return low

    def affords(self, steps: int) -> bool:
        """Whether there are enough blocks for a run of `steps` steps. The blocks of the first step are allocated
        already."""
        batch = self.batch
        count = batch.decode_blocks(batch.steps + 1, steps - 1)
        if batch.partial is not None:
            count += self.chunk_blocks(steps) - batch.partial.blocks
        return count <= self.cache.total - self.cache.held


def report_kv(each: Sequence[RunBlocks], at: int) -> None:
    """Report how many blocks of every instance are allocated at time `at`, without the steps that begin at `at`. This
    is called at every decision, so it continues from the last report: usually only a few steps have begun since
    then."""
    for blocks in each:
        since = blocks.reported_to
        if since >= at or (report := blocks.report) is None:
            continue
        looked, step, increment = blocks.looked, blocks.next_step, blocks.increment
        phases, size = blocks.phases, blocks.size
        last = phase = looked % size
        used = phases[last]
        since += step
        step += increment
        if since < at:  # further steps have begun
            if at - since <= step << blocks.few_bits:
                while since < at:
                    last += 1
                    used += phases[last]
                    since += step
                    step += increment
            else:
                whole, rest = divmod(at - since - 1, step)
                count = whole + 1
                if increment * (whole * (whole - 1) // 2) > rest:  # too high, because steps get longer
                    count = steps_begun(step, increment, at - since)
                    since += duration(step, increment, count)
                else:
                    since = at - 1 - rest + step + increment * (count * whole // 2)
                step += increment * count
                if count < size:
                    used += sum(phases[last + 1 : last + 1 + count])
                else:
                    used += blocks.batch.decode_blocks(looked + 1, count)
                last += count
        begun = looked + last - phase + 1
        if blocks.prefills:
            steps = blocks.batch.steps
            used += blocks.chunk_blocks(begun - steps) - blocks.chunk_blocks(looked - steps)
        if used:
            report.kv_used += used
        blocks.looked = begun
        blocks.reported_to = since
        blocks.next_step = step


def report_lanes(each: Sequence[RunBlocks], at: int) -> None:
    """Do the same for instances that speculate, from the formula of their runs."""
    for blocks in each:
        run, batch, report = blocks.run, blocks.batch, blocks.report
        if run.end < 0 or run.length == 1 or at <= run.start or report is None:
            continue
        begun, counted = run.count_begun(at), blocks.taken_steps
        used = blocks.cache.held
        if begun > counted:
            used += batch.decode_blocks(batch.steps + counted, begun - counted)
        else:
            used -= batch.decode_blocks(batch.steps + begun, counted - begun)
        if batch.partial is not None:
            used += blocks.chunk_blocks(begun) - batch.partial.blocks
        report.kv_used = used
