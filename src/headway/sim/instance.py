"""One serving engine: continuous batching over a paged KV cache, advanced run by run; what reaches it from outside.

Requests come, their clients give up, blocks arrive from elsewhere or are not wanted there any more. Each of these may
cut the run that is under way at the next step boundary, if somebody may enter or has to leave then.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from headway.policies.queues import Ticket
from headway.sim.gap_log import take_back
from headway.sim.hits import HitRate
from headway.sim.job import Job
from headway.sim.kv_cache import Stretch
from headway.sim.leap import duration, steps_begun
from headway.sim.pace import Pace
from headway.sim.stepping import Stepping
from headway.types import NEVER, Hints


class Instance(Stepping):
    __slots__ = ()

    # --- the way of a request ----------------------------------------------------------------------------------

    def enqueue(self, job: Job, now: int, priority: float, hints: Hints) -> bool:
        """A request arrives. True if a step can begin at this instant."""
        if now >= self.tick:
            self.history.record(self, now)
        self.arrived += 1
        ticket = job.ticket = Ticket(job.request, priority, now, self.arrived, hints)
        self.waiting[ticket] = job
        self.queue.add(ticket)
        self.view.queued = len(self.waiting) if not self.loads else self.queued()
        if self.chunk is not None:
            self.limit(job)
        return self.end < 0 or self.cut_to_enter(now)

    def cut_to_enter(self, now: int) -> bool:
        """End the run at the next boundary if somebody might enter there: the first in order is not the one that was
        found to lack blocks or a slot for its adapter. Where nobody can enter before something else changes, that ends
        the run anyhow."""
        if self.partial is not None or len(self.running) >= self.max_batch_size:
            return False
        if not self.ready and self.refused is not None and (not self.waiting or self.queue.first() is self.refused):
            return False
        return self.cut(now)

    def cut(self, now: int) -> bool:
        """End the run at the first step boundary at or after this instant. True if that is now."""
        if self.length == 1:
            return False
        steps = steps_begun(self.first, self.increment, now - self.start)
        if steps < self.length:
            self.length = steps
            self.end = self.start + duration(self.first, self.increment, steps)
            if self.end == now:
                self.finish_run(now)
                return True
        return False

    def expire(self, job: Job, now: int) -> bool:
        """The client of a request gives up. A waiting one goes at once; a running one at the first step boundary, and
        the token that a step brings after this instant is wasted. True if a step can begin at this instant."""
        if now >= self.tick:
            self.history.record(self, now)
        if job not in self.running:
            job.expired = True
            self.withdraw(job, now)
            self.finish_expired(job)
            return self.nudge(now)
        if self.end >= 0 and not self.cut(now):
            job.expired = True
            self.expiring.append(job)
            return False
        job.expired = True
        self.drop(job)
        if self.tells_kv:
            self.view.kv_used = self.cache.held
        return True

    def withdraw(self, job: Job, now: int) -> None:
        """A request that is not in the batch goes."""
        if job.ticket in self.waiting:
            self.queue.remove(job.ticket)
            del self.waiting[job.ticket]
            if job.swapped and self.tiers is not None:
                self.tiers.end_swap(now, job)
        else:
            self.forget_load(job, now)
        self.view.queued = self.queued()

    def nudge(self, now: int) -> bool:
        """Somebody may enter who could not. True if a step can begin at this instant."""
        if not self.waiting and not self.ready:
            return False
        return self.end < 0 or self.cut_to_enter(now)

    def forget_load(self, job: Job, now: int) -> None:
        """What a request waits for, or has loaded, is not wanted any more; what is on its way comes for nobody."""
        self.settle(now)
        held = self.cache.held
        self.peak = max(self.peak, held)
        self.unload(job, now)
        if self.tells_kv:
            self.view.kv_used -= held - self.cache.held
        self.settle_stores(now)

    def loaded(self, job: Job, now: int) -> bool:
        """The blocks that a request waits for have come. True if a step can begin at this instant."""
        if now >= self.tick:
            self.history.record(self, now)
        self.settle(now)
        self.arrive(job, now)
        if self.tiers is not None:
            self.settle_stores(now)
        return self.end < 0 or self.cut_to_enter(now)

    def let_go(self, job: Job, now: int) -> bool:
        """What was computed for another instance is there, or is not wanted any more. True if a step can begin at this
        instant."""
        if now >= self.tick:
            self.history.record(self, now)
        self.settle(now)
        held = self.cache.held
        self.peak = max(self.peak, held)
        gone = self.part_with(job, now)
        if self.tells_kv:
            self.view.kv_used -= held - self.cache.held
        self.stir()
        if self.tiers is not None:
            self.settle_stores(now)
            self.tiers.tell_places(now, gone)
        return self.nudge(now)

    def part_with(self, job: Job, now: int) -> list[Stretch]:
        """A prompt that was computed for another instance leaves; what goes of the cached content with it."""
        del self.handing[job]
        self.cache.now = now
        if self.transfer is not None and not self.transfer.keeps_copy:
            return self.cache.remove(job.holds, job.blocks)
        self.cache.release(job.holds, job.blocks)
        return []

    # --- everybody leaves ---------------------------------------------------------------------------------------

    def vacate(self, now: int) -> list[Job]:
        """All requests are gone at this instant, by order of arrival here: the steps that have ended count, that which
        is under way is lost. What was cached stays."""
        if now >= self.tick:
            self.history.record(self, now)
        self.settle(now)
        last_token_ps = self.halt(now)
        gone = [*self.running, *self.loading, *self.ready, *self.waiting.values(), *self.handing]
        for job in [*self.running]:
            if job.ends_at_step >= 0:
                self.stop_decoding(job)
                self.gaps.close(job, job.last_token_ps if job in self.resuming else last_token_ps)
            self.release(job)
            if self.ended is not None:
                self.ended(job.ticket, job.generated, False)
        self.partial = None
        self.ending.clear()
        self.resuming.clear()
        self.chunks = []
        for job in [*self.loading, *self.ready]:
            self.unload(job, now)
        for ticket, job in self.waiting.items():
            self.queue.remove(ticket)
            if job.swapped and self.tiers is not None:
                self.tiers.end_swap(now, job)
        self.waiting.clear()
        left = [stretch for job in [*self.handing] for stretch in self.part_with(job, now)]
        self.stir()
        self.settle_stores(now)
        if self.tiers is not None:
            self.tiers.tell_places(now, left)
        self.view.queued = self.view.running = 0
        if self.tells_kv:
            self.view.kv_used = self.cache.held
            self.reported_to = NEVER
        self.rest(now)
        gone.sort(key=by_arrival)
        return gone

    def halt(self, now: int) -> int:
        """The run under way stops. When the last of its steps that count has ended."""
        if self.end < 0 or self.cut(now):
            return now
        ended = self.length - 1  # the step after these is under way
        self.take_to(self.length)
        self.peak = max(self.peak, self.cache.held)
        self.cache.release([], self.decode_blocks(self.steps + ended, 1))
        expiring, self.expiring = self.expiring, []
        last_token_ps = self.start + duration(self.first, self.increment, ended)
        self.length = ended
        if ended:
            self.finish_run(now)
        self.end = -1
        for job in expiring:
            if job in self.running:
                self.drop(job)
        return last_token_ps

    def warm(self, now: int, pieces: Sequence[tuple[int, Fraction]]) -> None:
        """It has just come up, and is slower for a time."""
        self.pace.warm(now, pieces)
        self.paced_until = now

    def slow(self, now: int, factor: Fraction, until: int) -> bool:
        """It is slower from the next step on. True if that can begin at this instant."""
        self.pace.slowed.append((until, factor))
        self.paced_until = now
        return self.end >= 0 and self.cut(now)

    def cool(self, now: int) -> None:
        """Whatever was cached here is gone; nobody is here. What will stand here next is sound."""
        if now >= self.tick:
            self.history.record(self, now)
        self.pace = Pace(self.pace.model)
        self.paced_until = now
        cache, evicted = self.cache, self.cache.evicted
        cache.now = now
        cache.evict(cache.idle)
        cache.evicted = evicted  # it was not for want of room
        if cache.spilt is not None:
            cache.spilt.clear()
        if cache.stored is not None:
            cache.stored.clear()
        if self.tiers is not None:
            self.tiers.clear(now)
        if self.adapters is not None:
            self.adapters.users.clear()
            self.adapters.loading_ps = 0
            self.view.adapters = ()
        if self.hits is not None:
            self.hits = HitRate()
            self.view.hit_rate = 0.0

    # --- resting, stopping, checking ---------------------------------------------------------------------------

    def stop(self, now: int) -> None:
        """The horizon: count what the steps ended by now have generated; requests in flight leave no gaps behind."""
        if self.end >= 0:
            begun = self.begun(now + 1)  # a step that begins at the horizon has begun; none of them has ended but
            self.take_to(begun)  # those before the last
            self.peak = max(self.peak, self.cache.held)
            self.steps += begun - 1
            self.taken = 1
            for job, want in self.chunks:
                self.count_prefill(job, job.computed + want * (begun - 1))
        for job in [*self.running, *self.loading, *self.ready, *self.waiting.values()]:
            if job.ends_at_step >= 0:
                job.generated = self.steps - job.decoding_from
                self.gaps.close(job, now)
            self.recorder.output_tokens[job.row] = job.generated
            self.stats.output_tokens += job.generated
            take_back(job)
        self.rest(now)

    def check(self) -> None:
        """Conservation: what the requests say they hold is what the cache says is held."""
        private = 0
        begun = self.taken if self.end >= 0 else 0  # steps whose blocks are taken but whose tokens are not counted
        for job in self.running:
            blocks = job.blocks
            if job.ends_at_step >= 0:
                tokens = job.request.prompt_tokens + self.steps - job.decoding_from - 1 + begun
                blocks = -(-tokens // self.block_tokens)
            private += blocks - sum(end - start for _, start, end in job.holds)
        for job in [*self.loading, *self.ready, *self.handing]:
            private += job.blocks - sum(end - start for _, start, end in job.holds)
        self.cache.check(private)
        if self.tiers is not None:
            self.tiers.check()
        if self.adapters is not None:
            self.adapters.check([job.request.adapter for job in self.running if job.request.adapter is not None])


def by_arrival(job: Job) -> int:
    return job.ticket.number
