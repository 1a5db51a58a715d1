"""The event loop: joins workload, control plane and instances.

At one instant: (a) all step ends, by instance; (b) first tokens reach the router, then arrivals are admitted and
routed, then what ended at this instant reaches the router, each by request; (c) step begins, by instance. Every reader
at t sees the steps ended at or before t.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

from msgspec import Struct

from headway.control import ControlPlane
from headway.latency.base import LatencyModel
from headway.policies.context import Context, Estimator
from headway.registry import declared
from headway.results.recorder import COMPLETED, IN_FLIGHT, REJECTED, TIMED_OUT, InstanceStats, Recorder
from headway.sim.instance import Instance
from headway.sim.job import Job
from headway.sim.leap import NEVER
from headway.sim.signals import Signals
from headway.streams import stream
from headway.types import OUTCOMES, HeadwayError, InstanceView, InvariantError, Reject, Request
from headway.workload.traffic import Planned, Traffic

PROGRESS_EVERY = 1000  # arrivals
ROWS_AHEAD = 1024
INDEX_BITS = 20  # a heap entry is time and instance in one integer
LAST = (1 << 63) - 1  # the columns' last picosecond
TOO_LONG = (
    "The run would go on beyond 106 days of simulated time, where the clock ends; "
    "shorten it with 'horizon', or look at the latency model's figures."
)


class ClusterSetup(Struct):
    """A cluster ready to run: one view an instance, and what they have in common."""

    views: list[InstanceView]
    latency: LatencyModel
    block_tokens: int
    prefix_caching: bool
    idle_watts: float  # an instance
    busy_watts: float
    leap: bool | str  # True, False or "random-cuts"
    horizon_ps: int | None
    warmup: int
    jitter_seed: int = 0


class Simulation:
    """One run. `run` may be called once."""

    def __init__(
        self,
        setup: ClusterSetup,
        admission: Any,
        priority: Any,
        routing: Any,
        scheduler: Any,
        rng: Callable[[str], Random],
        estimator: Estimator,
    ) -> None:
        self.setup = setup
        self.block_tokens = setup.block_tokens
        self.warmup = setup.warmup
        self.recorder = Recorder(ROWS_AHEAD)
        self.now = 0
        self.started_ps = 0
        self.ended_ps = 0
        self.first_tokens: list[Job] = []  # requests that got it at this instant
        self.done: list[Job] = []  # requests that ended at this instant
        self.refused: list[Request] = []  # those of them that never came to an instance
        self.held: dict[int, Planned] = {}  # those that admission put off
        self.deadlines: list[tuple[int, int]] = []  # heap of when clients give up, and which requests
        self.deadlined: dict[int, Job] = {}  # those of them that came to an instance
        self.timer = NEVER  # when the next held request comes up again or the next client gives up
        self.instances = [
            Instance(
                view,
                setup.latency,
                scheduler,
                self.recorder,
                block_tokens=setup.block_tokens,
                caching=setup.prefix_caching,
                walks=setup.leap is False,
                cuts=stream(setup.jitter_seed, f"cuts.{view.index}") if setup.leap == "random-cuts" else None,
                first_tokens=self.first_tokens,
                finished=self.done,
            )
            for view in setup.views
        ]
        stages = [admission, priority, routing]
        oracle = any(declared(policy).oracle for policy in stages)
        context = Context(setup.views, rng, estimator, setup.block_tokens, self.truth if oracle else None)
        self.control = ControlPlane(context, *stages)
        self.signals = Signals(self.instances, stages, setup.idle_watts, setup.busy_watts)
        # Heap of run ends; an entry that its instance no longer has is stale. It is never empty.
        self.ends = [NEVER << INDEX_BITS]
        self.begins: list[int] = []  # instances at a step boundary at this instant

    def run(self, traffic: Traffic, progress: Callable[[int, int], None] | None = None) -> Recorder:
        ends, begins, done, first_tokens = self.ends, self.begins, self.done, self.first_tokens
        instances, first_token = self.instances, self.control.first_token
        mask = (1 << INDEX_BITS) - 1
        horizon = LAST if self.setup.horizon_ps is None else min(self.setup.horizon_ps, LAST)
        hears = self.signals.vary and bool(self.control.observers)  # a policy may look when it is told something
        listens = traffic.listens
        arrival = traffic.next_ps
        self.started_ps = self.now = min(0 if arrival == NEVER else arrival, horizon)
        while True:
            end = ends[0] >> INDEX_BITS
            now = end if end < arrival else arrival
            if self.timer < now:
                now = self.timer
            if now > horizon:
                break
            # (a) step ends
            while end == now:
                index = heappop(ends) & mask
                instance = instances[index]
                if instance.end == now:
                    instance.finish_run(now)
                    begins.append(index)
                end = ends[0] >> INDEX_BITS
            if not begins and arrival != now and self.timer != now:  # only stale entries
                continue
            self.now = now
            if hears and (first_tokens or done):
                self.signals.refresh(now)
            if first_tokens:
                if len(first_tokens) > 1:
                    first_tokens.sort(key=_row)
                for job in first_tokens:
                    first_token(now, job.row)
                first_tokens.clear()
            # (b) arrivals, what was held back until now, clients that give up; then what the router hears of endings,
            # and what follows from them at once
            while True:
                while arrival == now:
                    planned = traffic.take()
                    self.arrive(now, planned)
                    if progress is not None and planned.request.id % PROGRESS_EVERY == 0:
                        progress(planned.request.id, now)
                    arrival = traffic.next_ps
                if self.timer == now:
                    self.ring(now)
                if done:
                    self.complete(now, traffic if listens else None)
                if listens and self.refused:
                    self.tell_refused(now, traffic)
                if listens:
                    arrival = traffic.next_ps
                if arrival != now and self.timer != now:
                    break
            # (c) step begins
            if begins:
                if len(begins) > 1:
                    begins.sort()
                for index in begins:
                    instance = instances[index]
                    if instance.end < 0 and instance.begin(now):
                        heappush(ends, instance.end << INDEX_BITS | index)
                begins.clear()
        self.ended_ps = self.now
        if arrival != NEVER or self.held or any(instance.running for instance in instances):
            if self.setup.horizon_ps is None:
                raise HeadwayError(TOO_LONG)
            self.stop(horizon)
            traffic.stop()
        self.recorder.not_issued = traffic.not_issued
        self.recorder.abandoned = traffic.abandoned
        self.recorder.retried = traffic.retried
        self.close()
        return self.recorder

    def arrive(self, now: int, planned: Planned) -> None:
        """A request comes."""
        request = planned.request
        self.recorder.arrived(now, request)
        if request.deadline_ps is not None:
            heappush(self.deadlines, (request.deadline_ps, request.id))
            self.set_timer()
        self.decide(now, planned)

    def decide(self, now: int, planned: Planned) -> None:
        """Admission, priority and routing of one request, and its way to the instance."""
        request, recorder = planned.request, self.recorder
        if self.signals.vary:
            self.signals.refresh(now)
        answer = self.control.arrive(now, request)
        row = request.id
        if isinstance(answer, Reject):
            self.turn_away(now, row, answer.reason)
            self.refused.append(request)
            return
        if answer is None:
            self.held[row] = planned
            self.set_timer()
            return
        index = answer.view.index
        recorder.instance[row] = index
        recorder.admitted_ps[row] = recorder.routed_ps[row] = now
        size = self.block_tokens
        job = Job(request, planned.output_tokens, planned.output_key, size, row >= self.warmup)
        job.priority = answer.priority
        if request.deadline_ps is not None:
            self.deadlined[row] = job
        instance = self.instances[index]
        instance.stats.requests += 1
        tokens = request.prompt_tokens + planned.output_tokens - 1
        if tokens > instance.cache.total * size:
            needed = -(-tokens // size)
            self.turn_away(now, row, f"needs {needed} KV blocks, {answer.view.id} has {instance.cache.total}")
            self.done.append(job)
            return
        recorder.enqueued_ps[row] = now
        before = instance.end
        if instance.enqueue(job, now):
            self.begins.append(index)
        elif instance.end != before:  # the run was cut
            heappush(self.ends, instance.end << INDEX_BITS | index)

    def ring(self, now: int) -> None:
        """What was held back comes up again, and clients whose deadline this is give up, each by request."""
        while (request := self.control.due(now)) is not None:
            self.decide(now, self.held.pop(request.id))
        while self.deadlines and self.deadlines[0][0] == now:
            _, row = heappop(self.deadlines)
            if self.recorder.outcome[row] == IN_FLIGHT:
                self.give_up(now, row)
        self.set_timer()

    def give_up(self, now: int, row: int) -> None:
        """A client does not wait any longer; a last token that comes at this instant is in time."""
        job = self.deadlined.get(row)
        if job is None:
            self.control.give_up(row)
            self.recorder.outcome[row] = TIMED_OUT
            self.recorder.finished_ps[row] = now
            self.refused.append(self.held.pop(row).request)
            return
        if job.generated == job.output_tokens:
            return
        index = self.recorder.instance[row]
        instance = self.instances[index]
        before = instance.end
        if instance.expire(job, now):
            self.begins.append(index)
        elif instance.end != before:  # the run was cut
            heappush(self.ends, instance.end << INDEX_BITS | index)

    def set_timer(self) -> None:
        first = self.deadlines[0][0] if self.deadlines else NEVER
        self.timer = min(self.control.next_ps, first)

    def turn_away(self, now: int, row: int, reason: str) -> None:
        self.recorder.outcome[row] = REJECTED
        self.recorder.finished_ps[row] = now
        self.recorder.reasons[row] = reason

    def complete(self, now: int, traffic: Traffic | None) -> None:
        """The router hears of the requests that ended at this instant, in order of arrival, and the traffic does."""
        recorder, control, done = self.recorder, self.control, self.done
        if len(done) > 1:
            done.sort(key=_row)
        for job in done:
            row = job.row
            if recorder.outcome[row] != REJECTED:
                recorder.outcome[row] = TIMED_OUT if job.expired else COMPLETED
                recorder.finished_ps[row] = now
                recorder.output_tokens[row] = job.generated
            if self.deadlined:
                self.deadlined.pop(row, None)
            control.finished(now, row, OUTCOMES[recorder.outcome[row]], job.generated)
            if traffic is not None:
                traffic.ended(job.request, now, recorder.outcome[row] == COMPLETED)
        done.clear()

    def tell_refused(self, now: int, traffic: Traffic) -> None:
        for request in self.refused:
            traffic.ended(request, now, False)
        self.refused.clear()

    def truth(self, request: Request) -> list[int]:
        """Tokens of the prompt that each instance has cached now: the oracle's answer."""
        size = self.setup.block_tokens
        runs, limit = request.path.blocks(size), (request.prompt_tokens - 1) // size
        for instance in self.instances:
            instance.settle(self.now)
        return [instance.cache.match(runs, limit) * size for instance in self.instances]

    def stop(self, horizon: int) -> None:
        self.ended_ps = horizon
        for instance in self.instances:
            instance.stop(horizon)

    def close(self) -> None:
        """Gather what the instances leave, and check that nothing was lost."""
        self.recorder.trim()
        if self.setup.horizon_ps is None and IN_FLIGHT in self.recorder.outcome:
            raise InvariantError("The run has ended, and requests are in flight although no horizon stopped it.")
        gaps = self.recorder.gaps = array("q")
        for instance in self.instances:
            instance.check()
            gaps.extend(instance.gaps.runs)
            gaps.extend(instance.gaps.resumed)
            instance.stats.evicted_blocks = instance.cache.evicted
            instance.stats.peak_kv_blocks = instance.peak
            instance.stats.steps = instance.steps
        self.policy_metrics = self.control.metrics()

    @property
    def stats(self) -> list[InstanceStats]:
        return [instance.stats for instance in self.instances]


def _row(job: Job) -> int:
    return job.row
