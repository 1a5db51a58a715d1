"""The sliding windows of the running requests: which blocks they leave behind, and how much of the contexts they cover.

At the beginning of each step, the windows of all running requests move to the tokens that the step computes. The blocks
behind them are released before any request takes blocks. A decode releases the first block when its context is one
block longer than the window, and then one block every `block_tokens` steps. It *joins* at that first block; a run of
steps ends before a decode joins. So within a run, the number of released blocks follows from a formula, as the number
of allocated blocks does.

Prompt blocks that a window leaves behind stay in the cache until they are evicted; generated blocks are *dead*.
"""

from collections.abc import Sequence
from fractions import Fraction
from heapq import heappop, heappush

from msgspec.structs import replace

from headway.latency.base import FOREVER, Chunk, LatencyModel, Run, StepShape, scale_model
from headway.latency.hardware_times import WindowedHardware
from headway.latency.joint_steps import Price, run_group_of
from headway.latency.overlap import Overlapped
from headway.sim.batch import Batch
from headway.sim.grouped_cache import GroupedCache
from headway.sim.job import Job
from headway.sim.leap import Run as Leap
from headway.sim.run_blocks import RunBlocks
from headway.views.instance import InstanceView


class WindowedBatch(Batch):
    """A batch of requests whose layers have sliding windows or states."""

    __slots__ = ("cache", "frees", "growing", "joins", "live", "moved_to", "near", "reach", "waiting", "window")

    def __init__(self, block_tokens: int, cache: GroupedCache) -> None:
        super().__init__(block_tokens)
        self.cache = cache
        self.window = cache.groups.window
        self.moved_to = 0  # number of steps for which the windows have moved
        # Number of decodes whose windows leave a block behind at a step, by step modulo the block size.
        self.frees = [0] * block_tokens
        self.live: list[list[Job]] = [[] for _ in range(block_tokens)]  # those of them whose next block is of a prompt
        # Decodes that have not joined yet -> (the step at which they do, order of entry).
        self.waiting: dict[Job, tuple[int, int]] = {}
        self.joins: list[tuple[int, int, Job]] = []  # heap: (step, order of entry, decode)
        # The contexts in layers with windows: those of `growing` decodes are shorter than the window. At step s, these
        # contexts sum to near + growing * s.
        self.growing: dict[Job, int] = {}  # decode -> its context at step 0, if it had decoded since then
        self.near = 0
        self.reach: list[tuple[int, int, Job]] = []  # heap: (step at which the context is the window, order, decode)

    def enter(self, job: Job) -> None:
        super().enter(job)
        job.released = self.cache.groups.first_kept(job.computed, self.block_tokens)
        self.cache.take_pages(self.cache.groups.states)

    def start_decoding(self, job: Job) -> None:
        super().start_decoding(job)
        self.cache.decodes += 1
        if not self.window:
            return
        steps, size = self.steps, self.block_tokens
        behind = job.known - self.window + 1  # tokens behind the window at the first step
        step = steps if behind // size > job.released else steps + (job.released + 1) * size - behind
        self.waiting[job] = step, job.order
        heappush(self.joins, (step, job.order, job))
        if job.known + 1 < self.window:
            at_0 = self.growing[job] = job.known + 1 - steps
            self.near += at_0
            heappush(self.reach, (self.window - at_0, job.order, job))

    def stop_decoding(self, job: Job) -> None:
        self.note_released(job)
        super().stop_decoding(job)
        self.cache.decodes -= 1
        if not self.window:
            return
        if self.waiting.pop(job, None) is None:
            phase = self.phase_of(job)
            self.frees[phase] -= 1
            if job in self.live[phase]:
                self.live[phase].remove(job)
        at_0 = self.growing.pop(job, None)
        if at_0 is not None:
            self.near -= at_0

    def note_released(self, job: Job) -> None:
        if self.window and job.ends_at_step >= 0 and job not in self.waiting:
            computed = (
                job.request.prompt_tokens + self.moved_to - 1 - job.decoding_from - 1
            )  # at the last step moved to
            job.released = max(job.released, self.cache.groups.first_kept(computed, self.block_tokens))

    def add_wasted(self, contexts: list[int], sign: int) -> None:
        super().add_wasted(contexts, sign)
        # `contexts` below counts them as if they were as long as the window.
        self.near += sign * sum(min(context - self.window, 0) for context in contexts)

    def phase_of(self, job: Job) -> int:
        """Return at which steps, modulo the block size, the window of a decode leaves a block behind."""
        return (self.window - job.request.prompt_tokens + job.decoding_from) % self.block_tokens

    def next_join(self) -> int:
        """Return the step before which a run must end, because a decode joins."""
        joins, waiting = self.joins, self.waiting
        while joins and waiting.get(joins[0][2]) != joins[0][:2]:
            heappop(joins)
        return joins[0][0] if joins else FOREVER

    def contexts(self) -> tuple[int, int, int]:
        """Return the sum of the contexts of the decodes in layers with windows, the number of these contexts that grow,
        and for how many steps they do."""
        reach, growing, step = self.reach, self.growing, self.steps
        while reach and (reach[0][0] <= step or growing.get(reach[0][2]) != self.window - reach[0][0]):
            at, _, job = heappop(reach)
            if growing.get(job) == self.window - at:
                self.near -= growing.pop(job)
        left = reach[0][0] - step + 1 if reach else FOREVER
        count = len(growing)
        return self.near + count * step + (self.decodes - count) * self.window, count, left


class Windows:
    """Moves the windows of an instance."""

    __slots__ = ("batch", "cache", "peak", "run", "trail")

    def __init__(self, batch: WindowedBatch, run: Leap) -> None:
        self.batch = batch
        self.run = run
        self.cache = batch.cache
        self.peak = 0  # the most blocks that were allocated at once within a run
        # The pages in use after the run's first step, its second, and so on, as far as windows moved step by step. A
        # prompt block that one window leaves may stay in use by another request, so no formula gives these numbers.
        self.trail: list[int] = []

    def move(self) -> None:
        """Move the windows to the step that begins now."""
        batch, cache = self.batch, self.cache
        if batch.moved_to <= batch.steps:
            self.move_decodes(batch.steps)
        job = batch.partial
        if job is not None:
            self.release(job, cache.groups.first_kept(job.computed, batch.block_tokens))

    def move_decodes(self, step: int) -> None:
        """Move the windows of the decodes to a step: first those that join, then those with prompt blocks, then the
        others."""
        batch = self.batch
        size, phase = batch.block_tokens, step % batch.block_tokens
        batch.moved_to = step + 1
        dead, joined = batch.frees[phase], []
        while batch.next_join() <= step:
            job = heappop(batch.joins)[2]
            del batch.waiting[job]
            computed = job.request.prompt_tokens + step - job.decoding_from - 1
            end = batch.cache.groups.first_kept(computed, size)
            if job.released < job.cached_to or not batch.cache.caching:
                self.release(job, end)
            else:
                job.released = end
                dead += 1
            joined.append(job)
        if batch.live[phase]:
            dead -= len(batch.live[phase])
            still = []
            for job in batch.live[phase]:
                self.release(job, job.released + 1)
                if job.released < job.cached_to:
                    still.append(job)
            batch.live[phase] = still
        if dead:
            batch.cache.abandon(dead)
        for job in joined:
            own = batch.phase_of(job)
            batch.frees[own] += 1
            if job.released < job.cached_to and batch.cache.caching:
                batch.live[own].append(job)

    def release(self, job: Job, end: int) -> None:
        if end > job.released:
            self.cache.move_window(job, job.released, end)
            job.released = end
            job.skipped = 0

    def advance(self, first: int, end: int) -> None:
        """Move windows and take blocks for the steps `first` to `end` of a run. In these steps, no decode joins, and
        no prompt is computed."""
        batch, cache = self.batch, self.cache
        size, spread = batch.block_tokens, cache.groups.spread
        self.note_peak()
        if cache.log is None and not any(batch.live):
            self.advance_at_once(first, end)
            return
        for step in range(first, end):
            self.trail.append(cache.pool.held)
            cache.now = self.run.boundary(step - batch.steps)
            self.move_decodes(step)
            taken = batch.phases[step % size]
            if taken:
                cache.take_pages(taken * spread)
            self.note_peak()

    def advance_at_once(self, first: int, end: int) -> None:
        """Do the same if no window leaves prompt blocks behind. Each period of `block_tokens` steps takes at least as
        many pages as it releases. So the most pages are in use in the last period."""
        batch, cache = self.batch, self.cache
        size, spread, windows = batch.block_tokens, cache.groups.spread, cache.groups.windows
        left = max(first, end - size)
        batch.moved_to = end
        whole = (left - first) // size
        released = whole * (sum(batch.frees))
        taken = whole * batch.decodes
        for step in range(first + whole * size, left):
            released += batch.frees[step % size]
            taken += batch.phases[step % size]
        held = most = cache.pool.held + taken * spread - released * windows
        for step in range(left, end):
            held -= batch.frees[step % size] * windows
            released += batch.frees[step % size]
            held += batch.phases[step % size] * spread
            taken += batch.phases[step % size]
            most = max(most, held)
        if released:
            cache.abandon(released)
        if taken:
            cache.take_pages(taken * spread)
        self.note_peak(most)

    def note_peak(self, held: int = 0) -> None:
        pool = self.cache.pool
        blocks = self.cache.total - (pool.total - max(held, pool.held)) // self.cache.groups.spread
        self.peak = max(self.peak, blocks)


class WindowedBlocks(RunBlocks):
    """The blocks of a run whose decodes have sliding windows. A run with chunks has one step."""

    __slots__ = ("windows",)

    def __init__(self, view: InstanceView, windows: Windows, caching: bool) -> None:
        super().__init__(view, windows.cache, windows.batch, windows.run, caching)
        self.windows = windows

    def take_to(self, steps: int) -> None:
        before, batch = self.taken_steps, self.batch
        if steps > before:
            self.taken_steps = steps
            if before == 1:
                self.windows.trail = []  # a new list, because samples may still read the old one
            self.windows.advance(batch.steps + before, batch.steps + steps)
            if self.windows.peak > self.peak:
                self.peak = self.windows.peak

    def trail_to(self, at: int) -> list[int]:
        """Return the pages in use after each step of the run that began before `at`, if no formula gives them."""
        if any(self.windows.batch.live):
            self.take_to(self.run.count_begun(at))
        return self.windows.trail if self.taken_steps > 1 else []

    def repeats(self, job: Job, want: int) -> bool:
        return False

    def refresh_report(self, at: int) -> None:
        """Report how many blocks are allocated at time `at`, without the steps that begin then."""
        if self.report is not None and self.run.end >= 0 and self.run.length > 1:
            self.take_to(self.run.count_begun(at))
            self.report.kv_used = self.cache.held


class WindowedLatency:
    """The latency model of an instance whose model has sliding windows. A run ends before a decode joins, and before
    the context of another decode is as long as the window."""

    def __init__(self, model: LatencyModel, batch: WindowedBatch) -> None:
        self.model = model
        self.batch = batch

    def scale(self, factor: Fraction) -> LatencyModel:
        return WindowedLatency(scale_model(self.model, factor), self.batch)

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        batch = self.batch
        near, growing, left = batch.contexts()
        if isinstance(self.model, WindowedHardware):
            first, increment, steps = self.model.run_windows(decodes, context, near, growing, chunks)
            steps = min(steps, left)
        else:
            first, increment, steps = self.model.run(decodes, context, chunks)
        return first, increment, min(steps, batch.next_join() - batch.steps)

    def run_group(self, shapes: Sequence[StepShape], price: Price | None = None, width: int = 1) -> Run:
        """Return the joint run of data-parallel ranks, each of which prices its steps with its own windows."""
        batches = self.batch.peers

        def own_price(model: LatencyModel, place: int) -> Run:
            batch = batches[place]
            assert isinstance(batch, WindowedBatch)
            return WindowedLatency(model, batch).run(*shapes[place])

        return run_group_of(self.model)(shapes, own_price)


def windowed(latency: LatencyModel, batch: WindowedBatch) -> LatencyModel:
    """Return the latency model with which an instance plans its steps, if its model has sliding windows."""
    if isinstance(latency, Overlapped):
        return replace(latency, gpu=WindowedLatency(latency.gpu, batch))
    return WindowedLatency(latency, batch)
