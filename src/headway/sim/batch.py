"""The batch of one instance and the run it is in: what follows from the run's formula without walking its steps."""

from __future__ import annotations

from collections.abc import Sequence

from headway.sim.job import Job
from headway.sim.kv_cache import KvCache
from headway.sim.leap import duration, steps_begun
from headway.types import NEVER
from headway.views.instance import InstanceView


class Batch:
    __slots__ = (
        "block_tokens",
        "cache",
        "caching",
        "chunks",
        "context",
        "counted",
        "decodes",
        "end",
        "ending",
        "first",
        "increment",
        "length",
        "looked",
        "next_step",
        "partial",
        "phases",
        "reported_to",
        "reserves",
        "running",
        "start",
        "steps",
        "taken",
        "tells_kv",
        "view",
    )

    def __init__(self, view: InstanceView, block_tokens: int, caching: bool) -> None:
        self.view = view
        self.cache = KvCache(view.kv_blocks)
        self.block_tokens = block_tokens
        self.caching = caching
        # Where prompts are computed for others, blocks for the whole of one are taken as it enters: what is ready for
        # another instance keeps its blocks until that has room, so nobody may need more to get done.
        self.reserves = view.role == "prefill"
        self.running: dict[Job, Job] = {}  # in order of entry
        self.partial: Job | None = None  # the request in the middle of its prefill
        # the decoding set
        self.decodes = 0
        self.counted = 0  # those of them that are in the statistics
        self.context = 0  # their known tokens, summed
        self.steps = 0  # steps ended so far
        # How many decodes take a block at the steps equal to this modulo the block size; twice, so that a stretch of
        # steps is always one slice.
        self.phases = [0] * (2 * block_tokens)
        self.ending: list[tuple[int, int, Job]] = []  # heap of decodes by (last step, order)
        # the current run
        self.end = -1  # when it ends; -1 at a boundary or when idle
        self.start = 0
        self.first = 0
        self.increment = 0
        self.length = 0  # in steps
        self.taken = 0  # steps whose blocks are taken
        self.chunks: list[tuple[Job, int]] = []  # prefill in each step: the request and its tokens
        # the last look at KV use, where somebody looks
        self.tells_kv = True
        self.looked = 0  # steps begun by then, earlier runs included
        self.reported_to = NEVER  # until when it stays true: the next step begins
        self.next_step = 0  # how long that step lasts

    def begun(self, at: int) -> int:
        """How many steps of the current run began before `at`."""
        steps = steps_begun(self.first, self.increment, at - self.start)
        return steps if steps < self.length else self.length

    def decode_blocks(self, begun: int, steps: int) -> int:
        """Blocks that the decodes take in the `steps` steps after so many, earlier runs included."""
        size = self.block_tokens
        phase = begun % size
        return self.decodes * (steps // size) + sum(self.phases[phase : phase + steps % size])

    def start_decoding(self, job: Job) -> None:
        """Put a request whose prefill has ended into the decoding set."""
        size = self.block_tokens
        job.decoding_from = self.steps - job.generated
        job.ends_at_step = job.decoding_from + job.output_tokens
        self.decodes += 1
        self.counted += job.counted
        self.context += job.known + 1
        phase = (self.steps - job.known) % size
        self.phases[phase] += 1
        self.phases[phase + size] += 1

    def stop_decoding(self, job: Job) -> None:
        """Take a request out of the decoding set; its generated blocks become hits."""
        size = self.block_tokens
        job.generated = self.steps - job.decoding_from
        computed = job.computed = job.request.prompt_tokens + job.generated - 1
        job.blocks = -(-computed // size)
        self.decodes -= 1
        self.counted -= job.counted
        self.context -= computed + 1
        phase = (self.steps - computed) % size
        self.phases[phase] -= 1
        self.phases[phase + size] -= 1
        end = computed // size
        if end > job.cached_to and self.caching:
            self.cache.add(job.output_key, job.cached_to, end, job.holds, job.ticket.priority)

    def chunk_blocks(self, steps: int) -> int:
        """Blocks of the unfinished prefill once `steps` steps of the run have begun."""
        job, want = self.chunks[0]
        return job.blocks if self.reserves else -(-(job.computed + want * steps) // self.block_tokens)

    def take_to(self, steps: int) -> None:
        """Take the blocks of the run's first `steps` steps."""
        taken = self.taken
        if steps > taken:
            self.taken = steps
            count = self.decode_blocks(self.steps + taken, steps - taken)
            own = 0
            if self.partial is not None:
                own = self.partial.blocks
                blocks = self.chunk_blocks(steps)
                count += blocks - own
                self.partial.blocks = blocks
            if count:
                cache = self.cache
                if cache.log is not None and cache.held + cache.idle + count > cache.total:
                    self.take_dated(taken, steps, own)
                else:
                    cache.take(count)

    def take_dated(self, taken: int, steps: int, own: int) -> None:
        """Step by step, so that each eviction has its time; `own` are the blocks of the unfinished prefill so far."""
        cache, phases, size, partial = self.cache, self.phases, self.block_tokens, self.partial
        cache.now = self.start + duration(self.first, self.increment, taken)
        length = self.first + self.increment * taken
        for step in range(taken, steps):
            count = phases[(self.steps + step) % size]
            if partial is not None:
                blocks = self.chunk_blocks(step + 1)
                count += blocks - own
                own = blocks
            if count:
                cache.take(count)
            cache.now += length
            length += self.increment

    def settle(self, at: int) -> None:
        """Bring the cache up to `at`: blocks of the steps begun before, prompt blocks of the steps ended by then."""
        if self.end >= 0 and self.length > 1:
            begun = self.begun(at)
            self.take_to(begun)
            if self.partial is not None:
                ended = begun if self.start + duration(self.first, self.increment, begun) == at else begun - 1
                job, want = self.chunks[0]
                self.offer(job, (job.computed + want * ended) // self.block_tokens)

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
        count = self.decode_blocks(self.steps + 1, steps - 1)
        if self.partial is not None:
            count += self.chunk_blocks(steps) - self.partial.blocks
        return count <= self.cache.total - self.cache.held


def report_kv(batches: Sequence[Batch], at: int) -> None:
    """Tell every view how many blocks are held at `at`, before any step that begins then. Called at every decision, so
    it goes on from the last look: usually only a few steps have begun since."""
    for batch in batches:
        since = batch.reported_to
        if since >= at:
            continue
        looked, step = batch.looked, batch.next_step
        if at - since <= step:
            count = 1
            used = batch.phases[looked % batch.block_tokens]
        else:
            increment, size = batch.increment, batch.block_tokens
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
                used = sum(batch.phases[phase : phase + count])
            else:
                used = batch.decode_blocks(looked, count)
        if batch.partial is not None:
            steps = looked - batch.steps
            used += batch.chunk_blocks(steps + count) - batch.chunk_blocks(steps)
        if used:
            batch.view.kv_used += used
        batch.looked = looked + count
        batch.reported_to = since + step
        batch.next_step = step + batch.increment
