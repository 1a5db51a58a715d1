"""The KV blocks of an instance's run: each step takes some, and nobody counts them before somebody looks.

What the steps have taken, and what of a prompt they have computed, follows from the run's formula. It is settled when
the run ends, when the cache is read or changed, and, where the router reads KV use, before each of its decisions.
"""

from collections.abc import Sequence

from headway.sim.batch import Batch
from headway.sim.job import Job
from headway.sim.kv_cache import KvCache
from headway.sim.leap import Run, duration, steps_begun
from headway.types import NEVER
from headway.views.instance import InstanceView


class RunBlocks:
    def __init__(self, view: InstanceView, cache: KvCache, batch: Batch, run: Run, caching: bool) -> None:
        self.view = view
        self.cache = cache
        self.batch = batch
        self.run = run
        self.caching = caching
        self.size = batch.block_tokens
        self.phases = batch.phases
        # Where prompts are computed for others, blocks for the whole of one are taken as it enters: what is ready for
        # another instance keeps its blocks until that has room, so nobody may need more to get done.
        self.reserves = view.role == "prefill"
        self.taken_steps = 0  # steps of the run whose blocks are taken
        self.peak = 0  # most blocks held
        # the last look at KV use, where somebody looks
        self.reports = True
        self.looked = 0  # steps begun by then, earlier runs included
        self.reported_to = NEVER  # until when it stays true: the next step begins; between runs the cache says it all
        self.next_step = 0  # how long that step lasts

    def chunk_blocks(self, steps: int) -> int:
        """Blocks of the unfinished prefill once `steps` steps of the run have begun."""
        job, want = self.run.chunks[0]
        return job.blocks if self.reserves else -(-(job.computed + want * steps) // self.size)

    def take_to(self, steps: int) -> None:
        """Take the blocks of the run's first `steps` steps."""
        before, batch = self.taken_steps, self.batch
        if steps > before:
            self.taken_steps = steps
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
        """Step by step, so that each eviction has its time; `own` are the blocks of the unfinished prefill so far."""
        cache, run, size, ended = self.cache, self.run, self.size, self.batch.steps
        cache.now = run.boundary(first_step)
        length = run.first + run.increment * first_step
        for step in range(first_step, steps):
            count = self.phases[(ended + step) % size]
            if self.batch.partial is not None:
                blocks = self.chunk_blocks(step + 1)
                count += blocks - own
                own = blocks
            if count:
                cache.take(count)
            cache.now += length
            length += run.increment

    def settle(self, at: int) -> None:
        """Bring the cache up to `at`: blocks of the steps begun before, prompt blocks of the steps ended by then."""
        run = self.run
        if run.end >= 0 and run.length > 1:
            self.take_to(run.count_begun(at))
            if self.batch.partial is not None:
                job, want = run.chunks[0]
                self.offer(job, (job.computed + want * run.count_ended(at)) // self.size)

    def settle_evictions(self, before: int) -> None:
        """Take the blocks of the steps begun before an instant, if that may evict anything. A run is under way."""
        run, batch, cache = self.run, self.batch, self.cache
        if before > run.start and (left := run.length - self.taken_steps):
            most = batch.decodes * (left // self.size + 1)
            if batch.partial is not None:
                most += self.view.max_batch_tokens * left  # a token takes a block at most
            if cache.held + cache.idle + most > cache.total:
                self.take_to(run.count_begun(before))

    def note_peak(self) -> None:
        if self.cache.held > self.peak:
            self.peak = self.cache.held

    # --- content -----------------------------------------------------------------------------------------------

    def offer(self, job: Job, end: int) -> None:
        """The blocks up to `end` are computed: they become hits, unless their content is cached already."""
        start = job.cached_to
        if end <= start or not self.caching:
            return
        job.cached_to = end
        for run, stop in job.runs:
            if stop > start:
                if stop >= end:
                    self.cache.add(run, start, end, job.holds, job.ticket.priority)
                    return
                self.cache.add(run, start, stop, job.holds, job.ticket.priority)
                start = stop

    # --- how long a run may be ---------------------------------------------------------------------------------

    def repeats(self, job: Job, want: int) -> bool:
        """Whether a chunk is followed by one of its size: the prefill does not end with it, and none of its content is
        cached already, since then the order of eviction and computation would matter."""
        if job.computed + want >= job.known:
            return False
        return not (self.caching and self.cache.cached_beyond(job.runs, job.cached_to))

    def affordable(self, steps: int) -> int:
        """The most steps, up to `steps`, whose blocks are all there; the step after goes through the scheduler."""
        if self.affords(steps):
            return steps
        low, high = 1, steps  # low is affordable, high is not
        while high - low > 1:
            middle = (low + high) // 2
            if self.affords(middle):
                low = middle
            else:
                high = middle
        return low

    def affords(self, steps: int) -> bool:
        """Whether the blocks of the run's steps after the first are there."""
        batch = self.batch
        count = batch.decode_blocks(batch.steps + 1, steps - 1)
        if batch.partial is not None:
            count += self.chunk_blocks(steps) - batch.partial.blocks
        return count <= self.cache.total - self.cache.held


def report_kv(each: Sequence[RunBlocks], at: int) -> None:
    """Tell every view how many blocks are held at `at`, before any step that begins then. Called at every decision, so
    it goes on from the last look: usually only a few steps have begun since."""
    for blocks in each:
        since = blocks.reported_to
        if since >= at:
            continue
        looked, step, increment = blocks.looked, blocks.next_step, blocks.run.increment
        if at - since <= step:
            count = 1
            used = blocks.phases[looked % blocks.size]
        else:
            size = blocks.size
            further = (at - since - 1) // step  # steps begun since, after the first; too many where steps grow
            passed = further * step + increment * (further * (further - 1) // 2)
            if since + passed >= at:
                further = steps_begun(step, increment, at - since) - 1
                passed = duration(step, increment, further)
            since += passed
            step += increment * further
            count = further + 1
            if count < size:
                phase = looked % size
                used = sum(blocks.phases[phase : phase + count])
            else:
                used = blocks.batch.decode_blocks(looked, count)
        batch = blocks.batch
        if batch.partial is not None:
            steps = looked - batch.steps
            used += blocks.chunk_blocks(steps + count) - blocks.chunk_blocks(steps)
        if used:
            blocks.view.kv_used += used
        blocks.looked = looked + count
        blocks.reported_to = since + step
        blocks.next_step = step + increment
