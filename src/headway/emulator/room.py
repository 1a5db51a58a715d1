"""The simulator's instances, driven by the wall clock.

Every step is planned separately and has a *nominal* end: the time at which the simulator would end the step. A timer
rings at this time or a little later. Then the room delivers the step's tokens, and begins the next step at the nominal
end, however late the timer was. Therefore the clock does not drift, and a new request finds the state that the
simulator would have at that time.
"""

import asyncio
import math
from collections.abc import Callable
from fractions import Fraction
from heapq import heappop, heappush
from typing import Any, Final, Protocol

from msgspec.structs import replace

from headway.results.recorder import Recorder
from headway.scenario.pd_spec import Transfer
from headway.sim.clock import INDEX_BITS, MASK, Clock
from headway.sim.handover import Handover, Incoming
from headway.sim.instance import Instance
from headway.sim.instance_end import cool, vacate
from headway.sim.job import Job
from headway.sim.lockstep import Lockstep
from headway.sim.setup import ClusterSetup, TransferSetup
from headway.sim.simulated_cluster import SimulatedCluster
from headway.types import NEVER, NO_PRIORITY, PS_PER_SECOND, Priority, Request

FAST: Final = 1 << 60  # bandwidth in bytes per second at which the transfer time is negligible
UNSEEN: Final = TransferSetup(Transfer(0, FAST), 0, 1)  # transfer of KV blocks from an engine outside this process
OFTEN: Final = 1024  # number of ended requests between two calls of `_tidy`
USED: Final = {"started_ps": -1, "first_token_ps": -1, "cached_tokens": 0, "preemptions": 0, "loaded_tokens": 0}


class Rows:
    """The recorder's rows for requests in flight. The rows of ended requests are reused, to keep memory constant."""

    def __init__(self, recorder: Recorder, instances: list[Instance]) -> None:
        self.recorder, self.instances = recorder, instances
        self.free: list[int] = []
        self.given_back = 0

    def take(self, job: Job, now: int) -> None:
        recorder = self.recorder
        if self.free:
            job.row = self.free.pop()
            for name, empty in USED.items():
                getattr(recorder, name)[job.row] = empty
        else:
            job.row = recorder.rows
            recorder.record_arrival(now, job.request)

    def give_back(self, job: Job) -> None:
        """Free the row of an ended request."""
        self.free.append(job.row)
        if job.awaits is not None:
            job.awaits.end()
        self.given_back += 1
        if self.given_back % OFTEN == 0:
            self._tidy()

    def _tidy(self) -> None:
        """Drop records that only a simulation's statistics would read."""
        recorder = self.recorder
        recorder.preempted.clear()
        recorder.thrashed.clear()
        for instance in self.instances:
            del instance.gaps.runs[:]
            del instance.gaps.resumed[:]
            if instance.tiers is not None:
                instance.tiers.waits.clear()


def ranks_of(stepper: Instance | Lockstep) -> list[Instance]:
    """Return the instances whose steps end together."""
    return stepper.ranks if isinstance(stepper, Lockstep) else [stepper]


class Sink(Protocol):
    """Receives a request's tokens. `tokens` is the number of tokens generated so far."""

    def on_tokens(self, tokens: int, now: int) -> None: ...

    def on_finished(self, tokens: int, now: int) -> None: ...


class Room:
    """All instances of a process. Times are picoseconds of simulated time, which passes `speed` times as fast as the
    loop's time. `on_tick` is called at multiples of `tick_s` of the loop's time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        setup: ClusterSetup,
        scheduler: Any,
        speed: float = 1.0,
        tick_s: float | None = None,
    ) -> None:
        assert setup.leap is False, "every step is planned separately"
        self.loop, self.speed, self.tick_s = loop, speed, tick_s
        self.cluster = SimulatedCluster(setup, scheduler)
        self.instances: list[Instance] = self.cluster.instances
        self.clock = Clock(self.cluster.steppers)
        self.cluster.start_tracing(0)
        self.rows = Rows(self.cluster.recorder, self.instances)
        self.sinks: dict[Job, Sink] = {}
        self.on_step: list[Callable[[int, int], None]] = []  # called after each step with instance index and time
        self.on_settled: list[Callable[[int], None]] = []  # called with the current time, after all events at that time
        self.on_tick: list[Callable[[], None]] = []  # called at each tick, after all events that were due by then
        self.stuck: set[int] = set()  # indexes of the instances that hang: their steps do not end
        self.wires: dict[int, int] = {}  # instance index -> index of its link for KV blocks from other processes
        self.origin = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ps = NEVER
        self.requests = 0
        self.tick_ps = NEVER if tick_s is None else self._tick_after(0)

    def now_ps(self) -> int:
        return int((self.loop.time() - self.origin) * self.speed * PS_PER_SECOND)

    def seconds(self, ps: int) -> float:
        """Convert simulated time to wall-clock seconds."""
        return ps / PS_PER_SECOND / self.speed

    # --- requests and faults -----------------------------------------------------------------------------------------

    def submit(
        self, index: int, job: Job, sink: Sink, priority: Priority = NO_PRIORITY, source: int | None = None
    ) -> int:
        """Send a request to an instance now, and return the current time. If another engine has computed its prompt,
        `source` is the index of that instance, or -1 for an engine outside this process."""
        now = self.catch_up()
        instance = self.instances[index]
        self.rows.take(job, now)
        self.sinks[job] = sink
        instance.stats.requests += 1
        if source is not None:
            self._hand_over(job, index, source)
        before = instance.run.end
        self.clock.note_change(index, before, instance.enqueue(job, now, priority.score, priority.hints))
        self._settle(now)
        self._arm()
        return now

    def _hand_over(self, job: Job, index: int, source: int) -> None:
        """Make a request wait for the transfer of its KV blocks from the source instance."""
        instance = self.instances[index]
        instance.loader.active = True  # makes the instance check whether requests wait for blocks
        transfer = None if source < 0 else self.instances[source].transfer
        link = None if source < 0 else self.cluster.outgoing.get(source)
        if transfer is None or link is None:
            if index not in self.wires:
                self.wires[index] = self.cluster.links.add(FAST, 0)
            transfer, link = UNSEEN, self.wires[index]
        later = replace(transfer.spec, first_token="decode")
        prefill = Job(job.request, 1, job.output_key, self.cluster.block_tokens, False)
        job.awaits = Handover(prefill, job, max(source, 0), index, link, replace(transfer, spec=later), Incoming(None))
        job.awaits.computed = True
        job.started, job.prefilled = True, job.request.prompt_tokens  # the source has computed the prompt

    def cancel(self, index: int, job: Job) -> None:
        """Cancel a request. A queued request is removed at once, a running request at the end of the current step."""
        now = self.catch_up()
        if self.sinks.pop(job, None) is None:
            return
        instance = self.instances[index]
        before = instance.run.end
        self.clock.note_change(index, before, instance.expire(job, now))
        self._settle(now)
        self._arm()

    def slow(self, index: int, factor: Fraction) -> None:
        """Multiply the duration of an instance's steps by this factor, from the next step on."""
        self.instances[index].slow(self.catch_up(), factor, NEVER)

    def restore_speed(self, index: int) -> None:
        """End a slowdown or hang. The current step ends at its nominal time or, if that has passed, now."""
        now = self.catch_up()
        instance = self.instances[index]
        factor, run = instance.planner.heal(now), instance.run
        self.stuck.discard(index)
        if run.end >= 0:
            nominal = run.start + int((run.end - run.start) / factor) if factor > 1 else run.end
            end = max(nominal, now)
            for rank in ranks_of(self.clock.instances[index]):
                rank.run.end = end
            heappush(self.clock.ends, end << INDEX_BITS | index)
        self._arm()

    def crash(self, index: int) -> list[Sink]:
        """Remove all requests and cached blocks of an instance. Return the sinks of the requests."""
        now = self.catch_up()
        instance = self.instances[index]
        lost = [*vacate(instance, now), *self.cluster.ended]
        self.cluster.ended.clear()
        self.cluster.first_tokens.clear()
        cool(instance, now)
        self._arm()
        sinks: list[Sink] = []
        for job in lost:
            self.rows.give_back(job)
            if (sink := self.sinks.pop(job, None)) is not None:
                sinks.append(sink)
        return sinks

    def empty_cache(self, index: int) -> bool:
        """Empty an instance's cache. If requests use blocks of the cache, change nothing and return False."""
        now = self.catch_up()
        cache, tiers = self.instances[index].cache, self.instances[index].tiers
        if cache.held:
            return False
        cache.now = now
        evicted = cache.evicted
        cache.evict(cache.idle)
        cache.evicted = evicted  # restore the counter, which counts only evictions for lack of space
        if tiers is not None:
            for content in (cache.spilt, cache.stored):
                if content is not None:
                    content.clear()
            tiers.clear(now)
        return True

    # --- time --------------------------------------------------------------------------------------------------------

    def catch_up(self) -> int:
        """Process all events that are due, and return the current time."""
        now = self.now_ps()
        while (at := self._next_ps()) <= now:
            if at > self.tick_ps:
                self._tick(at - 1)
            self._instant(at)
        if now >= self.tick_ps:
            self._tick(now)
        return now

    def _tick(self, until: int) -> None:
        """Call the tick handlers once for all ticks up to the time `until`. One call is enough, because no event
        happened between these ticks."""
        for handler in self.on_tick:
            handler()
        self.tick_ps = self._tick_after(until)

    def _tick_after(self, at: int) -> int:
        assert self.tick_s is not None
        number = math.floor((self.origin + self.seconds(at)) / self.tick_s)
        tick = at
        while tick <= at:
            number += 1
            tick = int((number * self.tick_s - self.origin) * self.speed * PS_PER_SECOND)
        return tick

    def _next_ps(self) -> int:
        end, links = self.clock.ends[0] >> INDEX_BITS, self.cluster.links
        if links.next_ps <= end:
            links.make_sure(end)
        return min(end, links.next_ps)

    def _instant(self, at: int) -> None:
        ends, instances, links = self.clock.ends, self.instances, self.cluster.links
        while ends[0] >> INDEX_BITS == at:
            index = heappop(ends) & MASK
            stepper = self.clock.instances[index]
            if stepper.run.end == at and index not in self.stuck:
                stepper.finish_run(at)
                self.clock.begins.append(index)
                for instance in ranks_of(stepper):
                    self._hand_out(instance, at)
                    for handler in self.on_step:
                        handler(instance.view.index, at)
        self.cluster.first_tokens.clear()
        if links.next_ps == at:
            for load in links.take_arrived(at):
                owner = instances[load.instance]
                if load.job in owner.loader.loading:
                    before = owner.run.end
                    self.clock.note_change(load.instance, before, owner.on_loaded(load.job, at))
        self._settle(at)

    def _hand_out(self, instance: Instance, at: int) -> None:
        """Deliver the tokens of an ended step to the sinks of their requests."""
        batch, sinks = instance.batch, self.sinks
        for job in batch.running:
            if job.ends_at_step >= 0 and (sink := sinks.get(job)) is not None:
                sink.on_tokens(batch.generated(job), at)

    def _settle(self, at: int) -> None:
        """Remove the requests that ended at time `at`, and begin the next steps."""
        ended = [*self.cluster.ended]
        self.cluster.ended.clear()
        begins, ends = self.clock.begins, self.clock.ends
        for index in sorted(begins):
            if (end := self.clock.instances[index].begin(at)) >= 0:
                heappush(ends, end << INDEX_BITS | index)
        begins.clear()
        for job in ended:
            sink = self.sinks.pop(job, None)
            if sink is not None and not job.expired:
                sink.on_finished(job.generated, at)
            self.rows.give_back(job)
        for handler in self.on_settled:
            handler(at)

    def _arm(self) -> None:
        at = self._next_ps()
        if at == self._timer_ps and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ps = at
        if at < NEVER:
            left = self.origin + self.seconds(at) - self.loop.time()
            # Round up to milliseconds, because uvloop rounds down and would call `_ring` too early.
            self._timer = self.loop.call_later(max(0, math.ceil(left * 1000)) / 1000, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_ps = None, NEVER
        try:
            self.catch_up()
        finally:  # an error in one request must not stop the other requests
            self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def job(self, request: Request, output_tokens: int, output_key: int) -> Job:
        return Job(request, output_tokens, output_key, self.cluster.block_tokens, False)

    def number(self) -> int:
        self.requests += 1
        return self.requests - 1
