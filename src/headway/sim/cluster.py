"""The event loop: joins workload, control plane and instances.

At one instant: (a) all step ends, by instance; (b) first tokens reach the router, then arrivals are admitted and
routed, then what admission put off until now comes up again, then clients whose deadline this is give up, then what
ended at this instant reaches the router, each by request; where the router has a queue of its own, those that have
waited too long leave it, the oldest first, then requests are sent in the queue's order, then what is beyond its
capacity is turned away, the newest first; and what follows from all this at once goes the same way again; (c) step
begins, by instance. Every reader at t sees the steps ended at or before t.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from copy import copy
from heapq import heappop, heappush
from random import Random
from typing import Any

from headway.control import QUEUED, ControlPlane, Flight
from headway.policies.context import Context, Estimator
from headway.registry import declared
from headway.results.recorder import COMPLETED, IN_FLIGHT, REJECTED, TIMED_OUT, InstanceStats, Recorder
from headway.sim.instance import Instance
from headway.sim.job import Job
from headway.sim.kv_events import KvEvents
from headway.sim.leap import NEVER
from headway.sim.setup import ClusterSetup
from headway.sim.signals import PolledSignals, Signals
from headway.streams import stream
from headway.types import OUTCOMES, HeadwayError, InvariantError, Reject, Request
from headway.workload.traffic import Planned, Traffic

PROGRESS_EVERY = 1000  # arrivals
ROWS_AHEAD = 1024
INDEX_BITS = 20  # a heap entry is time and instance in one integer
LAST = (1 << 63) - 1  # the columns' last picosecond
TOO_LONG = (
    "The run would go on beyond 106 days of simulated time, where the clock ends; "
    "shorten it with 'horizon', or look at the latency model's figures."
)


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
        flow: Any = None,
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
        self.held: dict[int, Planned] = {}  # those that admission put off, or that wait in the router's queue
        self.deadlines: list[tuple[int, int]] = []  # heap of when clients give up, and which requests
        self.deadlined: dict[int, Job] = {}  # those of them that came to an instance
        self.timer = NEVER  # when a held request comes up again or has waited too long, or a client gives up
        self.instances = [
            Instance(
                engine.view if setup.polling is None else copy(engine.view),
                engine,
                scheduler,
                self.recorder,
                block_tokens=setup.block_tokens,
                caching=setup.prefix_caching,
                walks=setup.leap is False,
                cuts=stream(setup.jitter_seed, f"cuts.{engine.view.index}") if setup.leap == "random-cuts" else None,
                first_tokens=self.first_tokens,
                finished=self.done,
            )
            for engine in setup.engines
        ]
        stages = [admission, priority, routing, *([] if flow is None else [flow])]
        oracle = any(declared(policy).oracle for policy in stages)
        context = Context(setup.views, rng, estimator, setup.block_tokens, self.truth if oracle else None)
        self.control = ControlPlane(context, *stages)
        if setup.polling is None:
            self.signals = Signals(self.instances, stages)
        else:
            self.signals = PolledSignals(self.instances, stages, setup.views, setup.polling)
        if setup.kv_event_delay is not None and self.control.indexes:
            delay = setup.kv_event_delay
            self.signals.hear(KvEvents(self.instances, self.control.indexes, setup.block_tokens, delay))
        # Heap of run ends; an entry that its instance no longer has is stale. It is never empty.
        self.ends = [NEVER << INDEX_BITS]
        self.begins: list[int] = []  # instances at a step boundary at this instant

    def run(self, traffic: Traffic, progress: Callable[[int, int], None] | None = None) -> Recorder:
        ends, begins, done, first_tokens = self.ends, self.begins, self.done, self.first_tokens
        instances, first_token = self.instances, self.control.first_token
        mask = (1 << INDEX_BITS) - 1
        horizon = LAST if self.setup.horizon_ps is None else min(self.setup.horizon_ps, LAST)
        hears = self.signals.vary and bool(self.control.observers)  # a policy may look when it is told something
        queues = self.control.flow is not None
        stirred = False  # something has happened after which the router looks through its queue
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
            if queues:
                stirred = bool(first_tokens or done) or arrival == now or self.timer == now
            if hears and (first_tokens or done):
                self.signals.refresh(now)
            if first_tokens:
                if len(first_tokens) > 1:
                    first_tokens.sort(key=_row)
                for job in first_tokens:
                    first_token(now, job.row)
                first_tokens.clear()
            # (b) arrivals, what was held back until now, clients that give up; then what the router hears of endings,
            # what it sends from its queue, and what follows from them at once
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
                if stirred:
                    self.pump(now)
                if listens and self.refused:
                    self.tell_refused(now, traffic)
                if listens:
                    arrival = traffic.next_ps
                if arrival != now and self.timer != now and not (stirred and done):
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
        self.decide(now, planned)
        if request.deadline_ps is not None:
            self.set_timer()

    def decide(self, now: int, planned: Planned, again: bool = False) -> None:
        """Admission, priority and routing of one request, and its way to the instance."""
        request = planned.request
        if self.signals.vary:
            self.signals.refresh(now)
        answer = self.control.decide(now, request) if again else self.control.arrive(now, request)
        row = request.id
        if isinstance(answer, Flight):
            self.recorder.admitted_ps[row] = now
            self.send(now, planned, answer)
        elif isinstance(answer, Reject):
            self.turn_away(now, row, answer.reason)
            self.refused.append(request)
        else:
            self.held[row] = planned
            if answer is QUEUED:
                self.recorder.admitted_ps[row] = now
            else:
                self.set_timer()

    def pump(self, now: int) -> None:
        """What becomes of the requests in the router's queue, one by one, since each may fill an instance."""
        while True:
            if self.signals.vary:
                self.signals.refresh(now)
            found = self.control.pump(now)
            if found is None:
                break
            request, answer = found
            planned = self.held.pop(request.id)
            if isinstance(answer, Flight):
                self.send(now, planned, answer)
                continue
            self.turn_away(now, request.id, answer.reason, REJECTED if isinstance(answer, Reject) else TIMED_OUT)
            self.refused.append(request)
        self.set_timer()

    def send(self, now: int, planned: Planned, flight: Flight) -> None:
        """A request goes to its instance."""
        request, recorder = planned.request, self.recorder
        row = request.id
        index = flight.view.index
        recorder.instance[row] = index
        recorder.routed_ps[row] = now
        recorder.predicted_tokens[row] = flight.cached
        size = self.block_tokens
        job = Job(request, planned.output_tokens, planned.output_key, size, row >= self.warmup)
        job.priority = flight.priority
        job.hints = self.control.cluster.priority.hints
        if request.deadline_ps is not None:
            self.deadlined[row] = job
        instance = self.instances[index]
        instance.stats.requests += 1
        tokens = request.prompt_tokens + planned.output_tokens - 1
        if tokens > instance.cache.total * size:
            needed = -(-tokens // size)
            self.turn_away(now, row, f"needs {needed} KV blocks, {flight.view.id} has {instance.cache.total}")
            self.done.append(job)
            return
        recorder.enqueued_ps[row] = now
        if self.signals.polled:
            self.signals.routed(now, index)
        before = instance.end
        if instance.enqueue(job, now):
            self.begins.append(index)
        elif instance.end != before:  # the run was cut
            heappush(self.ends, instance.end << INDEX_BITS | index)

    def ring(self, now: int) -> None:
        """What was held back comes up again, and clients whose deadline this is give up, each by request."""
        while (request := self.control.due(now)) is not None:
            self.decide(now, self.held.pop(request.id), again=True)
        while self.deadlines and self.deadlines[0][0] == now:
            _, row = heappop(self.deadlines)
            if self.recorder.outcome[row] == IN_FLIGHT:
                if self.signals.vary:  # the policies will hear of it, and may look
                    self.signals.refresh(now)
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
        deadlines, outcome = self.deadlines, self.recorder.outcome
        while deadlines and outcome[deadlines[0][1]] != IN_FLIGHT:  # lest the clock run on for nothing
            heappop(deadlines)
        self.timer = min(self.control.next_ps, deadlines[0][0] if deadlines else NEVER)

    def turn_away(self, now: int, row: int, reason: str, outcome: int = REJECTED) -> None:
        self.recorder.outcome[row] = outcome
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
        if self.deadlines:
            self.set_timer()

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
