"""Who computes in the next step of an instance: blocks for those that run, entries while sequences, tokens, blocks and
adapters allow, and who yields where blocks do not suffice.

Every running request gets at least one token in each step, because one enters only while budget is left. Hence all
decodes advance in lockstep. Nobody enters beside an unfinished prefill, also where the scheduler's limit on its chunks
leaves budget unused; so only the newest running request can be in the middle of its prefill.
"""

from __future__ import annotations

from heapq import heapify, heappush
from typing import Any

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.policies.queues import Ticket, queue_of
from headway.results.recorder import InstanceStats, Recorder
from headway.results.records import Preemption
from headway.sim.adapters import Adapters
from headway.sim.gap_log import GAP_FIELDS, GapLog
from headway.sim.hits import HitRate
from headway.sim.job import WHOLE, Job
from headway.sim.leap import duration
from headway.sim.link import Links
from headway.sim.loading import Loading
from headway.views.instance import InstanceView


class Batching(Loading):
    __slots__ = (
        "adapters",
        "chunk",
        "entered",
        "gaps",
        "gated",
        "hits",
        "max_batch_size",
        "max_batch_tokens",
        "queue",
        "recorder",
        "resuming",
        "stats",
        "waiting",
        "whole_prompts",
    )

    def __init__(
        self, view: InstanceView, scheduler: Any, recorder: Recorder, links: Links, *, block_tokens: int, caching: bool
    ) -> None:
        super().__init__(view, links, block_tokens, caching)
        self.queue = queue_of(scheduler)
        self.chunk = getattr(self.queue, "chunk", None)
        self.max_batch_tokens = view.max_batch_tokens
        self.max_batch_size = view.max_batch_size
        self.waiting: dict[Ticket, Job] = {}
        self.adapters: Adapters | None = None  # where their number is limited
        self.whole_prompts = False  # whether one enters only where all its prompt finds room, if not all at once
        self.gated = False  # whether a request may have to wait for something else than blocks and its turn
        self.entered = 0  # how many ever entered, for their order
        self.resuming: list[Job] = []  # those that go on to decode with the first step of the run
        # what it leaves
        self.recorder = recorder
        self.gaps = GapLog()
        self.hits: HitRate | None = None  # where somebody asks for it
        self.stats = InstanceStats(view.id, view.pool if view.serves else None, view.model, kv_blocks=view.kv_blocks)
        self.stats.role = None if view.role == "both" else view.role

    def queued(self) -> int:
        """Requests that are not in the batch."""
        return len(self.waiting) + len(self.loading) + len(self.ready)

    def limit(self, job: Job) -> None:
        """The scheduler says how large a chunk may be, whenever a request begins to wait."""
        assert self.chunk is not None
        most = self.chunk(job.ticket)
        if most is None:
            most = WHOLE
        elif type(most) is not int or most < 1:
            raise self.wrong("chunk must return a number of tokens, at least 1, or None", most, job.ticket)
        job.chunk = most

    def schedule_partial(self) -> tuple[bool, bool]:
        """Blocks for the decodes' next tokens and the next chunk of the unfinished prefill. Whether somebody had to be
        preempted for them, and whether the prefill goes on after it, so that nobody else enters."""
        cache, job = self.cache, self.partial
        assert job is not None
        left = job.known - job.computed
        want = min(left, self.max_batch_tokens - self.decodes, job.chunk)
        short = False
        if self.decodes or not self.reserves:  # else it has its blocks, and nobody needs any
            blocks = job.blocks if self.reserves else -(-(job.computed + want) // self.block_tokens)
            need = self.phases[self.steps % self.block_tokens] + blocks - job.blocks
            short = need > cache.total - cache.held
            if short:
                self.make_room(blocks)
            else:
                cache.take(need)
                job.blocks = blocks
        if job is not self.partial:
            return short, False
        self.chunks.append((job, want))
        return short, want < left

    def make_room(self, partial_blocks: int) -> None:
        """Blocks request by request in the scheduler's order; the last in it is preempted while they do not suffice."""
        cache, size = self.cache, self.block_tokens
        order = self.in_order()
        done = 0
        while done < len(order):
            job = order[done]
            if job is self.partial:
                need = partial_blocks - job.blocks
            else:
                need = int((job.request.prompt_tokens + self.steps - job.decoding_from - 1) % size == 0)
            while need > cache.total - cache.held:
                victim = order.pop()
                self.preempt(victim)
                if victim is job:
                    return
            cache.take(need)
            if job is self.partial:
                job.blocks = partial_blocks
            done += 1

    def in_order(self) -> list[Job]:
        """The running requests as the scheduler would keep them."""
        jobs = {job.ticket: job for job in self.running}
        order = self.queue.order(list(jobs))
        try:
            found = [jobs[ticket] for ticket in order]
        except (KeyError, TypeError):
            found = []
        if len(found) != len(jobs) or len(dict.fromkeys(found)) != len(jobs):
            raise self.wrong("order must return the running requests, each once", order, next(iter(jobs)))
        return found

    def admit(self, now: int) -> bool:
        """Waiting requests enter in order while sequences, tokens, blocks and adapters allow; not called where a prompt
        goes on after the step. True if the first of those that stay might enter at the next although nothing else
        changes."""
        budget = self.max_batch_tokens - self.decodes
        if self.chunks:
            budget -= self.chunks[0][1]
        if self.ready:
            budget = self.admit_ready(budget)
        cache, size, waiting, running = self.cache, self.block_tokens, self.waiting, self.running
        queue, loads = self.queue, self.loads
        while waiting and budget > 0 and len(running) + len(self.loading) < self.max_batch_size:
            ticket = queue.first()
            if loads and ticket is self.refused:  # nothing has changed since
                return False
            try:
                job = waiting[ticket]
            except (KeyError, TypeError):
                right = "first must return one of those that wait at the instance"
                raise self.wrong(right, ticket, next(iter(waiting))) from None
            if self.gated and self.shut_out(job):
                self.refused = ticket
                return False
            known = job.known
            hits = cache.match(job.runs, (known - 1) // size) if self.caching else 0
            if loads and (end := self.reach(job, hits)) > hits:
                if self.admit_load(job, hits, end, now):
                    continue
                self.refused = ticket
                return False
            done = hits * size
            want = known - done
            if want > budget:
                want = budget
            if want > job.chunk:
                want = job.chunk
            blocks = -(-(known if self.reserves else done + want) // size)
            asked = -(-known // size) if self.whole_prompts else blocks
            room = cache.total - cache.held
            if asked > room and asked - hits > room - cache.idle_in(job.runs, hits):
                # As its hits are evicted it needs fewer blocks at once, but each eviction also takes a free one: it
                # stays shut out for the run, unless one eviction can cost it several hits.
                self.refused = ticket
                return not loads and not cache.goes_tail_first(job.runs, hits)
            queue.take()
            del waiting[ticket]
            if self.adapters is not None and self.adapters.enter(job.request.adapter):
                self.view.adapters = self.adapters.names()
            if hits:
                job.holds = cache.hold(job.runs, hits, job.ticket.priority)
            cache.take(blocks - hits)
            job.computed = done
            job.blocks = blocks
            job.cached_to = hits
            self.take_turn(job, done, now)
            self.enter(job, want)
            budget -= want
            if done + want < known:
                self.partial = job
                break
        return False

    def shut_out(self, job: Job) -> bool:
        """Whether its adapter finds no room, or the instance that it is to go on to may not be about to get more."""
        if self.adapters is not None and not self.adapters.has_room(job.request.adapter):
            return True
        if job.handover is None or not job.handover.incoming.full():
            return False
        job.handover.incoming.blocked[self.view.index] = None
        return True

    def admit_load(self, job: Job, hits: int, end: int, now: int) -> bool:
        """A request's turn has come, and its blocks up to `end` are to be loaded first, if there is room for them."""
        cache = self.cache
        if job.swapped:
            hits = 0
        asked = max(end, -(-job.known // self.block_tokens)) if self.whole_prompts else end
        room = cache.total - cache.held
        if asked > room and asked - hits > room - cache.idle_in(job.runs, hits):
            return False
        self.queue.take()
        del self.waiting[job.ticket]
        if not job.started:
            self.recorder.loaded_tokens[job.row] = (end - hits) * self.block_tokens
        self.load(job, hits, end, now)
        if job.awaits is None:
            self.take_turn(job, end * self.block_tokens, now)
        return True

    def take_turn(self, job: Job, cached: int, now: int) -> None:
        """A request's turn has come, with so many of its tokens cached."""
        if not job.started:
            job.started = True
            self.recorder.started_ps[job.row] = now
            self.recorder.cached_tokens[job.row] = cached
            self.stats.cached_tokens += cached
            self.stats.prompt_tokens += job.request.prompt_tokens
            if self.hits is not None:
                self.hits.add(cached, job.request.prompt_tokens)
                self.view.hit_rate = self.hits.share()
        if cached > job.prefilled:
            job.prefilled = cached

    def enter(self, job: Job, want: int) -> None:
        """It computes so many tokens in the next step."""
        job.order = self.entered = self.entered + 1
        self.running[job] = job
        self.chunks.append((job, want))
        self.stirred = True

    def resume(self, job: Job) -> None:
        """It goes on to decode in the next step: the gap before its token is longer, so its own begin after it."""
        job.resumes = False
        job.order = self.entered = self.entered + 1
        self.running[job] = job
        job.log_from = len(self.gaps.runs) + GAP_FIELDS
        self.start_decoding(job)
        heappush(self.ending, (job.ends_at_step, job.order, job))
        self.resuming.append(job)
        self.stirred = True

    def admit_ready(self, budget: int) -> int:
        """Those whose blocks have come enter before others. The tokens that are left in the step; none if one of them
        has to wait."""
        cache, adapters = self.cache, self.adapters
        while self.ready and budget > 0:
            job = self.ready[0]
            want = 1 if job.resumes else min(job.known - job.computed, budget, job.chunk)
            need = -(-(job.known if self.reserves else job.computed + want) // self.block_tokens) - job.blocks
            full = len(self.running) >= self.max_batch_size
            if full or (adapters is not None and not adapters.has_room(job.request.adapter)):
                return 0
            if need > cache.total - cache.held and not self.yield_to(need):
                return 0
            del self.ready[0]
            if adapters is not None and adapters.enter(job.request.adapter):
                self.view.adapters = adapters.names()
            cache.take(need)
            job.blocks += need
            budget -= want
            if job.resumes:
                self.resume(job)
                continue
            self.enter(job, want)
            if job.computed + want < job.known:
                self.partial = job
                return 0
        return budget

    def yield_to(self, need: int) -> bool:
        """Nobody runs, and the first that is ready lacks blocks which the others that are ready hold: the last of them
        goes back into the queue, lest they wait for each other."""
        cache = self.cache
        while not self.running and len(self.ready) > 1 and need > cache.total - cache.held:
            job = self.ready[-1]
            self.unload(job, cache.now)
            self.wait_again(job)
        return need <= cache.total - cache.held

    def wait_again(self, job: Job) -> None:
        if job.swapped:
            job.suspend(self.block_tokens)
        else:
            job.rewind(self.block_tokens)
        self.waiting[job.ticket] = job
        self.queue.put_back(job.ticket)
        if self.chunk is not None:
            self.limit(job)

    def release(self, job: Job) -> None:
        """A request leaves the batch, with what it holds."""
        self.cache.release(job.holds, job.blocks)
        del self.running[job]
        self.stirred = True
        self.refused = None
        if self.adapters is not None:
            self.adapters.leave(job.request.adapter)

    def preempt(self, job: Job) -> None:
        """The request loses its blocks, goes back into the queue and will be computed again, or loaded."""
        if job is self.partial:
            self.partial = None
        else:
            self.stop_decoding(job)
            self.ending = [entry for entry in self.ending if entry[2] is not job]
            heapify(self.ending)
            self.gaps.close(job, self.start + duration(self.first, self.increment, self.length))
            self.swap_out(job)
        self.release(job)
        job.ticket.generated = job.generated
        job.ticket.preemptions += 1
        self.wait_again(job)
        self.view.queued = self.queued()
        self.view.running = len(self.running)
        self.recorder.preemptions[job.row] += 1
        self.recorder.preempted.append(Preemption(self.cache.now, self.view.index, job.row))
        self.stats.preemptions += 1

    def wrong(self, right: str, answer: object, ticket: Ticket) -> HeadwayError:
        """What is wrong with a scheduler's answer, and a request that it is about."""
        place = f"at request {ticket.request.id} on {self.view.id}"
        return HeadwayError(f"policies.scheduler: {type(self.queue).__name__}.{right}, got {shown(answer)}, {place}.")
