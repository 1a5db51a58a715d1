"""Who computes in the next step of an instance: blocks for those that run, entries while sequences, tokens, blocks and
adapters allow, and who yields where blocks do not suffice.

Every running request gets at least one token in each step, because one enters only while budget is left. Hence all
decodes advance in lockstep. Nobody enters beside an unfinished prefill, also where the scheduler's limit on its chunks
leaves budget unused; so only the newest running request can be in the middle of its prefill.
"""

from __future__ import annotations

from heapq import heapify
from typing import Any

from headway.policies.queues import Ticket, queue_of
from headway.results.recorder import InstanceStats, Recorder
from headway.sim.adapters import Adapters
from headway.sim.batch import Batch
from headway.sim.gap_log import GapLog
from headway.sim.hits import HitRate
from headway.sim.job import WHOLE, Job
from headway.sim.leap import duration
from headway.types import HeadwayError, InstanceView
from headway.wording import shown


class Batching(Batch):
    __slots__ = (
        "adapters",
        "chunk",
        "entered",
        "gaps",
        "hits",
        "max_batch_size",
        "max_batch_tokens",
        "queue",
        "recorder",
        "refused",
        "stats",
        "waiting",
    )

    def __init__(
        self, view: InstanceView, scheduler: Any, recorder: Recorder, *, block_tokens: int, caching: bool
    ) -> None:
        super().__init__(view, block_tokens, caching)
        self.queue = queue_of(scheduler)
        self.chunk = getattr(self.queue, "chunk", None)
        self.max_batch_tokens = view.max_batch_tokens
        self.max_batch_size = view.max_batch_size
        self.waiting: dict[Ticket, Job] = {}
        self.refused: Ticket | None = None  # the first in order that last was found to lack blocks or a slot
        self.adapters: Adapters | None = None  # where their number is limited
        self.entered = 0  # how many ever entered, for their order
        # what it leaves
        self.recorder = recorder
        self.gaps = GapLog()
        self.hits: HitRate | None = None  # where somebody asks for it
        self.stats = InstanceStats(view.id, view.pool if view.serves else None, view.model, kv_blocks=view.kv_blocks)

    def limit(self, job: Job) -> None:
        """The scheduler says how large a chunk may be, whenever a request begins to wait."""
        assert self.chunk is not None
        most = self.chunk(job.ticket)
        if most is None:
            most = WHOLE
        elif type(most) is not int or most < 1:
            raise self.wrong("chunk must return a number of tokens, at least 1, or None", most, job.ticket)
        job.chunk = most

    def schedule_partial(self) -> bool:
        """Blocks for the decodes' next tokens and the next chunk of the unfinished prefill. False if somebody had to
        be preempted for them."""
        cache, job = self.cache, self.partial
        assert job is not None
        want = min(job.known - job.computed, self.max_batch_tokens - self.decodes, job.chunk)
        blocks = -(-(job.computed + want) // self.block_tokens)
        need = self.phases[self.steps % self.block_tokens] + blocks - job.blocks
        enough = need <= cache.total - cache.held
        if enough:
            cache.take(need)
            job.blocks = blocks
        else:
            self.make_room(blocks)
        if job is self.partial:
            self.chunks.append((job, want))
        return enough

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
        """Waiting requests enter in order while sequences, tokens, blocks and adapters allow. True if the first of
        those that stay might enter at the next step although nothing else changes."""
        cache, size, waiting, running = self.cache, self.block_tokens, self.waiting, self.running
        queue, adapters = self.queue, self.adapters
        budget = self.max_batch_tokens - self.decodes
        if self.chunks:
            job, want = self.chunks[0]
            if job.computed + want < job.known:
                return False
            budget -= want
        while waiting and budget > 0 and len(running) < self.max_batch_size:
            ticket = queue.first()
            try:
                job = waiting[ticket]
            except (KeyError, TypeError):
                right = "first must return one of those that wait at the instance"
                raise self.wrong(right, ticket, next(iter(waiting))) from None
            if adapters is not None and not adapters.has_room(job.request.adapter):
                self.refused = ticket
                return False
            known = job.known
            hits = cache.match(job.runs, (known - 1) // size) if self.caching else 0
            done = hits * size
            want = known - done
            if want > budget:
                want = budget
            if want > job.chunk:
                want = job.chunk
            blocks = -(-(done + want) // size)
            room = cache.total - cache.held
            if blocks > room and blocks - hits > room - cache.idle_in(job.runs, hits):
                # As its hits are evicted it needs fewer blocks at once, but each eviction also takes a free one: it
                # stays shut out for the run, unless one eviction can cost it several hits.
                self.refused = ticket
                return not cache.goes_tail_first(job.runs, hits)
            queue.take()
            del waiting[ticket]
            if adapters is not None and adapters.enter(job.request.adapter):
                self.view.adapters = adapters.names()
            if hits:
                job.holds = cache.hold(job.runs, hits)
            cache.take(blocks - hits)
            job.computed = done
            job.blocks = blocks
            job.cached_to = hits
            if not job.order:  # for the first time
                self.recorder.started_ps[job.row] = now
                self.recorder.cached_tokens[job.row] = done
                self.stats.cached_tokens += done
                if self.hits is not None:
                    self.hits.add(done, job.request.prompt_tokens)
                    self.view.hit_rate = self.hits.share()
            if done > job.prefilled:
                job.prefilled = done
            job.order = self.entered = self.entered + 1
            running[job] = job
            self.chunks.append((job, want))
            budget -= want
            if done + want < known:
                self.partial = job
                break
        return False

    def release(self, job: Job) -> None:
        """A request leaves the batch, with what it holds."""
        self.cache.release(job.holds, job.blocks)
        del self.running[job]
        if self.adapters is not None:
            self.adapters.leave(job.request.adapter)

    def preempt(self, job: Job) -> None:
        """The request loses its blocks, goes back into the queue and will be computed again."""
        if job is self.partial:
            self.partial = None
        else:
            self.stop_decoding(job)
            self.ending = [entry for entry in self.ending if entry[2] is not job]
            heapify(self.ending)
            self.gaps.close(job, self.start + duration(self.first, self.increment, self.length))
        self.release(job)
        job.rewind(self.block_tokens)
        job.ticket.generated = job.generated
        job.ticket.preemptions += 1
        self.waiting[job.ticket] = job
        self.queue.put_back(job.ticket)
        if self.chunk is not None:
            self.limit(job)
        self.view.queued = len(self.waiting)
        self.view.running = len(self.running)
        self.recorder.preemptions[job.row] += 1
        self.stats.preemptions += 1

    def wrong(self, right: str, answer: object, ticket: Ticket) -> HeadwayError:
        """What is wrong with a scheduler's answer, and a request that it is about."""
        place = f"at request {ticket.request.id} on {self.view.id}"
        return HeadwayError(f"policies.scheduler: {type(self.queue).__name__}.{right}, got {shown(answer)}, {place}.")
