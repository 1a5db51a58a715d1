"""One serving engine: continuous batching over a paged KV cache, advanced run by run.

A *run* is a stretch of steps with the same decoding set and the same chunk of prefill. It is planned to the first
boundary at which anything can change, and an arrival that may enter cuts it. What happens inside a run (tokens,
blocks, gaps) follows from its formula and is settled when it ends or when somebody looks.

Every running request gets at least one token in each step, because one enters only while budget is left. Hence all
decodes advance in lockstep, and only the newest running request can be in the middle of its prefill.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from random import Random
from typing import Any

from headway.hashing import OUTPUT, key
from headway.latency.base import FOREVER, LatencyModel
from headway.results.recorder import InstanceStats, Recorder
from headway.sim.gap_log import GapLog
from headway.sim.job import Job
from headway.sim.kv_cache import KvCache
from headway.sim.leap import duration, steps_begun
from headway.types import InstanceView

FEW_STEPS = 8  # up to so many since the last look, KV use is followed step by step


class Instance:
    __slots__ = (
        "block_tokens",
        "busy_from",
        "cache",
        "caching",
        "chunks",
        "context",
        "counted",
        "cuts",
        "decodes",
        "end",
        "ending",
        "entered",
        "finished",
        "first",
        "first_tokens",
        "gaps",
        "increment",
        "index",
        "length",
        "log",
        "looked",
        "max_batch_size",
        "max_batch_tokens",
        "partial",
        "periods",
        "phases",
        "recorder",
        "reported_to",
        "running",
        "scheduler",
        "start",
        "stats",
        "step_times",
        "steps",
        "taken",
        "view",
        "waiting",
        "walks",
    )

    def __init__(
        self,
        view: InstanceView,
        latency: LatencyModel,
        scheduler: Any,
        recorder: Recorder,
        *,
        block_tokens: int,
        caching: bool,
        walks: bool,
        cuts: Random | None,
    ) -> None:
        self.view = view
        self.index = view.index
        self.step_times = latency.run
        self.scheduler = scheduler
        self.recorder = recorder
        self.block_tokens = block_tokens
        self.caching = caching
        self.max_batch_tokens = view.max_batch_tokens
        self.max_batch_size = view.max_batch_size
        self.walks = walks  # plan single steps
        self.cuts = cuts  # cut runs at random places, to show that a cut leaves no trace
        self.cache = KvCache(view.kv_blocks)
        self.waiting: deque[Job] = deque()
        self.running: dict[Job, Job] = {}  # in order of entry
        self.entered = 0  # how many ever entered, for that order
        # the decoding set
        self.decodes = 0
        self.counted = 0  # those of them that are in the statistics
        self.context = 0  # their known tokens, summed
        self.steps = 0  # steps ended so far
        # How many decodes take a block at the steps equal to this modulo the block size; twice, so that a stretch of
        # steps is always one slice.
        self.phases = [0] * (2 * block_tokens)
        self.ending: list[tuple[int, int, Job]] = []  # heap of decodes by (last step, order)
        self.partial: Job | None = None  # the request in the middle of its prefill
        # the current run
        self.end = -1  # when it ends; -1 at a boundary or when idle
        self.start = 0
        self.first = 0
        self.increment = 0
        self.length = 0  # in steps
        self.taken = 0  # steps whose blocks are taken
        self.chunks: list[tuple[Job, int]] = []  # prefill in each step: the request and its tokens
        self.looked = 0  # steps begun at the last look at KV use
        self.reported_to = -1  # until when that look stays true
        # what it leaves
        self.gaps = GapLog()
        self.log = self.gaps.runs.extend
        self.busy_from = -1  # when it last became busy; -1 when idle
        self.periods: deque[tuple[int, int]] | None = None  # earlier busy times, where somebody asks for them
        self.stats = InstanceStats(view.id, kv_blocks=view.kv_blocks)
        self.first_tokens: list[Job] = []  # of the run that has just ended
        self.finished: list[Job] = []

    # --- inside a run ------------------------------------------------------------------------------------------

    def begun(self, at: int) -> int:
        """How many steps of the current run began before `at`."""
        steps = steps_begun(self.first, self.increment, at - self.start)
        return steps if steps < self.length else self.length

    def more_blocks(self, steps: int) -> int:
        """Blocks that the `steps` steps after the first of the run take."""
        size = self.block_tokens
        after = (self.steps + 1) % size
        count = self.decodes * (steps // size) + sum(self.phases[after : after + steps % size])
        if self.partial is not None:
            want = self.chunks[0][1]
            done = self.partial.computed + want
            count += -(-(done + want * steps) // size) - -(-done // size)
        return count

    def take_to(self, steps: int) -> None:
        """Take the blocks of the run's first `steps` steps."""
        if steps > self.taken:
            count = self.more_blocks(steps - 1)
            if self.taken > 1:
                count -= self.more_blocks(self.taken - 1)
            self.taken = steps
            if count:
                self.cache.take(count)
                if self.partial is not None:
                    job, want = self.chunks[0]
                    job.blocks = -(-(job.computed + want * steps) // self.block_tokens)

    def report_kv(self, at: int) -> None:
        """Tell the view how many blocks are held at `at`, before any step that begins then. Called for every instance
        at every decision, so it goes on from the last look: usually only a few steps have begun since."""
        if self.end < 0:
            self.view.kv_used = self.cache.held
            self.reported_to = FOREVER
            return
        begun, next_begin = self.looked, self.reported_to
        first, increment = self.first, self.increment
        if at - next_begin > FEW_STEPS * first or self.partial is not None:
            begun = steps_begun(first, increment, at - self.start)
            self.view.kv_used = self.cache.held + self.more_blocks(begun - 1) - self.more_blocks(self.taken - 1)
            next_begin = self.start + duration(first, increment, begun)
        else:
            phases, size, used = self.phases, self.block_tokens, self.view.kv_used
            number = self.steps + begun
            step = first + increment * begun
            while next_begin < at:
                used += phases[number % size]
                number += 1
                next_begin += step
                step += increment
            begun = number - self.steps
            self.view.kv_used = used
        self.looked = begun
        self.reported_to = next_begin

    def settle(self, at: int) -> None:
        """Bring the cache up to `at`: blocks of the steps begun before, prompt blocks of the steps ended by then."""
        if self.end >= 0:
            begun = self.begun(at)
            self.take_to(begun)
            if self.partial is not None:
                ended = begun if self.start + duration(self.first, self.increment, begun) == at else begun - 1
                job, want = self.chunks[0]
                self.offer(job, (job.computed + want * ended) // self.block_tokens)

    # --- the way of a request ----------------------------------------------------------------------------------

    def enqueue(self, job: Job, now: int) -> bool:
        """A request arrives. True if a step can begin at this instant."""
        behind = len(self.waiting)
        self.scheduler.enqueue(self.waiting, job)
        self.view.queued = behind + 1
        if self.end < 0:
            return True
        if behind or self.partial is not None or len(self.running) >= self.max_batch_size:
            return False  # it cannot enter before something else changes, which ends the run anyhow
        steps = steps_begun(self.first, self.increment, now - self.start)
        if steps < self.length:
            self.length = steps
            self.end = self.start + duration(self.first, self.increment, steps)
            if self.end == now:
                self.finish_run(now)
                return True
        return False

    def begin(self, now: int) -> bool:
        """Form the next step and plan how often it repeats. False if there is nothing to do."""
        self.chunks = []
        again = False
        if self.partial is not None:
            again = not self.schedule_partial()
        elif self.running:
            if need := self.phases[self.steps % self.block_tokens]:
                if need <= self.cache.total - self.cache.held:
                    self.cache.take(need)
                else:
                    again = True
                    self.make_room(0)
        elif self.waiting and self.busy_from < 0:
            self.busy_from = now
        if self.waiting and not again:
            again = self.admit(now)
        if not self.running:
            self.rest(now)
            return False
        self.plan(now, again)
        return True

    def schedule_partial(self) -> bool:
        """Blocks for the decodes' next tokens and the next chunk of the unfinished prefill. False if somebody had to
        be preempted for them."""
        cache, job = self.cache, self.partial
        assert job is not None
        want = min(job.known - job.computed, self.max_batch_tokens - self.decodes)
        blocks = -(-(job.computed + want) // self.block_tokens)
        need = self.phases[self.steps % self.block_tokens] + blocks - job.blocks
        if need > cache.total - cache.held:
            self.make_room(blocks)
            return False
        cache.take(need)
        job.blocks = blocks
        self.chunks.append((job, want))
        return True

    def make_room(self, partial_blocks: int) -> None:
        """Blocks request by request in order of entry; the newest is preempted while they do not suffice."""
        cache, size = self.cache, self.block_tokens
        for job in list(self.running):
            if job not in self.running:
                return
            if job is self.partial:
                need = partial_blocks - job.blocks
            else:
                need = int((job.prompt_tokens + self.steps - job.decoding_from - 1) % size == 0)
            while need > cache.total - cache.held:
                victim = self.scheduler.victim(self.running)
                self.preempt(victim)
                if victim is job:
                    return
            cache.take(need)

    def admit(self, now: int) -> bool:
        """Waiting requests enter in order while sequences, tokens and blocks allow. True if the first of those that
        stay might enter at the next step although nothing else changes."""
        cache, size, waiting, running = self.cache, self.block_tokens, self.waiting, self.running
        budget = self.max_batch_tokens - self.decodes
        if self.chunks:
            budget -= self.chunks[0][1]
        while waiting and budget > 0 and len(running) < self.max_batch_size:
            job = waiting[0]
            known = job.known
            hits = cache.match(job.runs, (known - 1) // size) if self.caching else 0
            done = hits * size
            want = known - done
            if want > budget:
                want = budget
            blocks = -(-(done + want) // size)
            room = cache.total - cache.held
            if blocks > room and blocks - hits > room - cache.idle_in(job.runs, hits):
                # As its hits are evicted it needs fewer blocks at once, but each eviction also takes a free one: it
                # stays shut out for the run, unless one eviction can cost it several hits.
                return not cache.goes_tail_first(job.runs, hits)
            waiting.popleft()
            if hits:
                job.holds = cache.hold(job.runs, hits)
            cache.take(blocks - hits)
            job.computed = done
            job.blocks = blocks
            job.cached_to = hits
            job.order = self.entered = self.entered + 1
            running[job] = job
            self.chunks.append((job, want))
            budget -= want
            if done + want < known:
                self.partial = job
            self.note_start(job, done, now)
        return False

    def note_start(self, job: Job, cached: int, now: int) -> None:
        self.view.queued = len(self.waiting)
        self.view.running = len(self.running)
        row = job.row
        if self.recorder.started_ps[row] < 0:
            self.recorder.started_ps[row] = now
            self.recorder.cached_tokens[row] = cached
            self.stats.cached_tokens += cached
            self.stats.prefill_tokens += job.known - cached

    def plan(self, now: int, once: bool) -> None:
        """How long the step lasts, and how many like it follow before anything can change."""
        chunks, decodes = self.chunks, self.decodes
        if chunks:
            shape = [(want, job.computed) for job, want in chunks]
            first, increment, steps = self.step_times(decodes, self.context, shape)
            job, want = chunks[0]
            if len(chunks) == 1 and self.repeats(job, want):
                # A prefill that uses up the budget and does not end repeats; nothing else can enter meanwhile.
                steps = min(steps, (job.known - job.computed - 1) // want)
            else:
                steps = 1
        else:
            first, increment, steps = self.step_times(decodes, self.context, ())
        if once or self.walks:
            steps = 1
        elif steps > 1:
            if decodes:
                ending = self.ending
                while ending[0][2].ends_at_step != ending[0][0]:  # preempted since
                    heappop(ending)
                left = ending[0][0] - self.steps
                if left < steps:
                    steps = left
            if chunks or decodes * (steps // self.block_tokens + 1) > self.cache.total - self.cache.held:
                steps = self.affordable(steps)
            if self.cuts is not None:
                steps = self.cuts.randint(1, steps)
        self.start = now
        self.first = first
        self.increment = increment
        self.length = steps
        self.taken = self.looked = 1
        self.reported_to = now + first
        self.view.kv_used = self.cache.held
        self.end = now + steps * first + increment * (steps * (steps - 1) // 2)

    def repeats(self, job: Job, want: int) -> bool:
        """Whether a chunk is followed by one of its size: the prefill does not end with it, and none of its content is
        cached already, since then the order of eviction and computation would matter."""
        if job.computed + want >= job.known:
            return False
        return not (self.caching and self.cache.cached_beyond(job.runs, job.cached_to))

    def affordable(self, steps: int) -> int:
        """The most steps, up to `steps`, whose blocks are all there; the step after goes through the scheduler."""
        free = self.cache.total - self.cache.held
        if self.more_blocks(steps - 1) <= free:
            return steps
        low, high = 1, steps  # low is affordable, high is not
        while high - low > 1:
            middle = (low + high) // 2
            if self.more_blocks(middle - 1) <= free:
                low = middle
            else:
                high = middle
        return low

    def finish_run(self, now: int) -> None:
        """The run's last step ends: count its tokens, emit first tokens, let go what is finished."""
        length = self.length
        if length > self.taken:
            self.take_to(length)
        held = self.cache.held
        if held > self.stats.peak_kv_blocks:
            self.stats.peak_kv_blocks = held
        self.end = self.reported_to = -1
        steps = self.steps = self.steps + length
        if decodes := self.decodes:
            self.context += decodes * length
            self.log((self.first, self.increment, length, self.counted))
            if length > 1 and self.partial is not None:  # earlier steps' blocks come before what ends now
                job, want = self.chunks[0]
                self.offer(job, (job.computed + want * (length - 1)) // self.block_tokens)
            ending = self.ending
            while ending and ending[0][0] <= steps:
                ends_at, _, job = heappop(ending)
                if job.ends_at_step == ends_at:
                    self.leave(job)
        if self.chunks:
            for job, want in self.chunks:
                self.advance(job, want * length, now)

    def advance(self, job: Job, tokens: int, now: int) -> None:
        """A prefill moves on; with its last token the next output token comes."""
        job.computed += tokens
        self.offer(job, job.computed // self.block_tokens)
        if job.computed < job.known:
            return
        if job is self.partial:
            self.partial = None
        job.generated += 1
        if job.generated == 1:
            self.recorder.first_token_ps[job.row] = now
            self.first_tokens.append(job)
        else:
            self.gaps.resume(job, now - job.last_token_ps)
        steps = self.steps
        job.decoding_from = steps - job.generated
        job.ends_at_step = ends = job.decoding_from + job.output_tokens
        job.log_from = len(self.gaps.runs)
        self.decodes += 1
        self.counted += job.counted
        self.context += job.known + 1
        phase = (steps - job.known) % self.block_tokens
        self.phases[phase] += 1
        self.phases[phase + self.block_tokens] += 1
        if ends == steps:
            self.leave(job)
        else:
            heappush(self.ending, (ends, job.order, job))

    def offer(self, job: Job, end: int) -> None:
        """The blocks up to `end` are computed: they become hits, unless their content is cached already."""
        start = job.cached_to
        if end <= start or not self.caching:
            return
        job.cached_to = end
        for run, stop in job.runs:
            if stop > start:
                if stop >= end:
                    self.cache.add(run, start, end, job.holds)
                    return
                self.cache.add(run, start, stop, job.holds)
                start = stop

    def stop_decoding(self, job: Job) -> None:
        """Take a request out of the decoding set; its generated blocks become hits."""
        size = self.block_tokens
        job.generated = self.steps - job.decoding_from
        computed = job.computed = job.prompt_tokens + job.generated - 1
        job.blocks = -(-computed // size)
        self.decodes -= 1
        self.counted -= job.counted
        self.context -= computed + 1
        phase = (self.steps - computed) % size
        self.phases[phase] -= 1
        self.phases[phase + size] -= 1
        end = computed // size
        if end > job.cached_to and self.caching:
            self.cache.add(key(OUTPUT, job.row), job.cached_to, end, job.holds)

    def leave(self, job: Job) -> None:
        """The last token has come."""
        self.stop_decoding(job)
        self.cache.release(job.holds, job.blocks)
        del self.running[job]
        self.view.running = len(self.running)
        self.stats.output_tokens += job.generated
        self.finished.append(job)

    def preempt(self, job: Job) -> None:
        """The request loses its blocks, goes back to the front of the queue and will be computed again."""
        if job is self.partial:
            self.partial = None
        else:
            self.stop_decoding(job)
            self.gaps.close(job)
            job.last_token_ps = self.start + duration(self.first, self.increment, self.length)
        self.cache.release(job.holds, job.blocks)
        del self.running[job]
        job.rewind(self.block_tokens)
        self.scheduler.requeue(self.waiting, job)
        self.view.queued = len(self.waiting)
        self.view.running = len(self.running)
        self.recorder.preemptions[job.row] += 1
        self.stats.preemptions += 1

    # --- resting, stopping, checking ---------------------------------------------------------------------------

    def rest(self, now: int) -> None:
        """Nothing is left to do."""
        if self.busy_from >= 0:
            self.stats.busy_ps += now - self.busy_from
            if self.periods is not None:
                self.periods.append((self.busy_from, now))
            self.busy_from = -1

    def stop(self, now: int) -> None:
        """The horizon: count what the steps ended by now have generated; requests in flight leave no gaps behind."""
        if self.end >= 0:
            begun = self.begun(now) if now > self.start else 0
            ended = begun if begun and self.start + duration(self.first, self.increment, begun) == now else begun - 1
            self.take_to(begun)
            self.stats.peak_kv_blocks = max(self.stats.peak_kv_blocks, self.cache.held)
            self.steps += max(0, ended)
            self.taken = max(1, begun) - max(0, ended)
        for job in [*self.running, *self.waiting]:
            if job.ends_at_step >= 0:
                job.generated = self.steps - job.decoding_from
                self.gaps.close(job)
            self.recorder.output_tokens[job.row] = job.generated
            self.stats.output_tokens += job.generated
            self.gaps.take_back(job)
        self.rest(now)

    def check(self) -> None:
        """Conservation: what the requests say they hold is what the cache says is held."""
        private = 0
        begun = self.taken if self.end >= 0 else 0  # steps whose blocks are taken but whose tokens are not counted
        for job in self.running:
            blocks = job.blocks
            if job.ends_at_step >= 0:
                tokens = job.prompt_tokens + self.steps - job.decoding_from - 1 + begun
                blocks = -(-tokens // self.block_tokens)
            private += blocks - sum(end - start for _, start, end in job.holds)
        self.cache.check(private)
