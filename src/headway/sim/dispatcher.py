"""Moves requests between traffic, router and instances as events happen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from headway.control.flights import QUEUED, Answer, Decision, Flight, Queued, TimedOut, Unserved
from headway.control.plane import ControlPlane
from headway.results.recorder import COMPLETED, FAILED, IN_FLIGHT, REJECTED, TIMED_OUT, Recorder
from headway.sim.clock import Clock
from headway.sim.front_end import FrontEnd
from headway.sim.handovers import Handovers
from headway.sim.instance import Instance
from headway.sim.job import Job
from headway.sim.reported_signals import Signals
from headway.sim.routers import Routers
from headway.sim.simulated_cluster import SimulatedCluster
from headway.types import NEVER, OUTCOMES, Reject, Request
from headway.workload.traffic import Planned, Traffic

if TYPE_CHECKING:
    from headway.sim.capacity import Capacity
    from headway.sim.losses import Losses


class Deadlines:
    """The deadlines of requests, after which their clients give up."""

    __slots__ = ("heap", "jobs", "recorder")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.heap: list[tuple[int, int]] = []  # heap of (deadline, request id)
        self.jobs: dict[int, tuple[int, Job]] = {}  # request id -> (instance index, job), for requests at an instance

    def next_ps(self) -> int:
        """Return the first deadline of a request in flight. Drop the deadlines of ended requests, so that the
        simulation does not continue because of them."""
        heap, outcome = self.heap, self.recorder.outcome
        while heap and outcome[heap[0][1]] != IN_FLIGHT:
            heappop(heap)
        return heap[0][0] if heap else NEVER


class Dispatcher:
    def __init__(
        self,
        warmup: int,
        cluster: SimulatedCluster,
        clock: Clock,
        control: ControlPlane | Routers,
        signals: Signals,
        fronts: Mapping[int, FrontEnd],
    ) -> None:
        self.warmup = warmup  # number of warm-up requests, which do not count in the statistics
        self.cluster = cluster
        self.clock = clock
        self.control = control
        self.signals = signals
        self.fronts = fronts  # front ends of engines that choose the ranks of their requests, by index of the engine
        self.recorder = cluster.recorder
        self.block_tokens = cluster.block_tokens
        self.instances = cluster.instances
        self.handovers = Handovers(cluster, clock)
        self.deadlines = Deadlines(self.recorder)
        self.capacity: Capacity | None = None  # set if instances start and stop during the run
        self.losses: Losses | None = None
        # request id -> request, for requests that wait at the router: delayed, queued, or without an instance
        self.held: dict[int, Planned] = {}
        # The next time at which a held request needs a decision, a client gives up, or `capacity` acts; -1: never.
        self.timer = -1
        self.listener: Traffic | None = None  # set if the traffic depends on how its requests end
        self.lengths: dict[int, int] | None = None  # request id -> true output length; None if no policy is an oracle
        self.refused: list[Request] = []  # requests that ended at the router and were not yet reported to the listener

    def arrive(self, now: int, planned: Planned) -> None:
        """Let the router decide about a new request, and carry out the decision."""
        request, recorder = planned.request, self.recorder
        row = request.id
        recorder.record_arrival(now, request)
        if request.deadline_ps is not None:
            heappush(self.deadlines.heap, (request.deadline_ps, row))
        if self.signals.vary:
            self.signals.refresh(now)
        if self.lengths is not None:
            self.lengths[row] = planned.output_tokens
        answer = self.control.arrive(now, request)
        if isinstance(answer, Flight):
            recorder.admitted_ps[row] = now
            self.send(now, planned, answer)
        elif isinstance(answer, Reject):
            self.turn_away(now, request, REJECTED, answer.reason)
        else:
            self.held[row] = planned
            if answer is QUEUED:
                recorder.admitted_ps[row] = now
        if answer is None or request.deadline_ps is not None:
            self.set_timer()

    def pump(self, now: int) -> None:
        """Send the requests that the router can send from its queue."""
        self.follow(now, self.control.pump)
        if self.capacity is not None:
            self.capacity.count_waiting(now)
        self.set_timer()

    def follow(self, now: int, ask: Callable[[int], Decision | None]) -> None:
        """Ask for the router's decisions about waiting requests and carry out each one before asking for the next,
        because each decision may fill an instance."""
        while True:
            if self.signals.vary:
                self.signals.refresh(now)
            decision = ask(now)
            if decision is None:
                return
            self.carry_out(now, *decision)

    def carry_out(self, now: int, request: Request, answer: Answer) -> None:
        row, admitted, losses = request.id, self.recorder.admitted_ps, self.losses
        if admitted[row] < 0 and isinstance(answer, Flight | Queued):
            admitted[row] = now
        if answer is None or isinstance(answer, Queued):  # the request continues to wait
            return
        planned = self.held.pop(row)
        if not isinstance(answer, Flight):
            if losses is not None:
                losses.drop(row)
            if self.capacity is not None and isinstance(answer, Unserved):
                self.capacity.in_vain(now, request)
            self.turn_away(now, request, TIMED_OUT if isinstance(answer, TimedOut) else REJECTED, answer.reason)
        elif losses is not None and row in losses.moving:
            losses.go_on(now, losses.moving.pop(row), answer)
        else:
            self.send(now, planned, answer)

    def send(self, now: int, planned: Planned, flight: Flight) -> None:
        request = planned.request
        counted = request.id >= self.warmup
        job = Job(request, planned.output_tokens, planned.output_key, self.block_tokens, counted)
        self.put(now, job, flight)

    def put(self, now: int, job: Job, flight: Flight) -> None:
        request, recorder, losses = job.request, self.recorder, self.losses
        row = request.id
        index = flight.view.index
        if index in self.fronts:
            index = self.fronts[index].choose(now, request).view.index
        recorder.instance[row] = index
        first = losses is None or recorder.routed_ps[row] < 0  # False if the request was redirected
        if first:
            recorder.routed_ps[row] = now
            recorder.predicted_tokens[row] = flight.cached
            if flight.expected:
                recorder.expected[row] = flight.expected
            if flight.priority:
                recorder.priority[row] = flight.priority
        size = self.block_tokens
        instance = target = self.instances[index]
        tokens = request.prompt_tokens + job.output_tokens - 1
        if job.output_tokens > 1:
            tokens += target.batch.ahead
        job.expected = flight.expected
        if losses is not None:
            losses.on_sent(now, job, flight, index)
        prefill = flight.prefill  # read after `on_sent`: None if the decode instance computes the prefill itself
        if prefill is not None:
            source = prefill.index
            if source in self.fronts:
                source = self.fronts[source].choose(now, request).view.index
            job, instance = self.handovers.split(job, source, index)
            index = recorder.prefill_instance[row] = source
            if losses is not None:
                losses.split(job)
        if request.deadline_ps is not None:
            self.deadlines.jobs[row] = (index, job)
        instance.stats.requests += 1
        if not target.cache.can_hold(-(-tokens // size)):
            self.never_fits(now, job, tokens, target)
            return
        if prefill is not None and not instance.cache.can_hold(-(-request.prompt_tokens // size)):
            self.never_fits(now, job, request.prompt_tokens, instance)
            return
        if first:
            recorder.enqueued_ps[row] = now
        if self.signals.polled:
            self.signals.on_routed(now, flight.view)
            if prefill is not None:
                self.signals.on_routed(now, prefill)
        before = instance.run.end
        self.clock.note_change(index, before, instance.enqueue(job, now, flight.priority, flight.hints))

    def never_fits(self, now: int, job: Job, tokens: int, instance: Instance) -> None:
        """Reject a request that needs more KV blocks than its instance has."""
        needed = -(-tokens // self.block_tokens)
        self.end(now, job.row, REJECTED, f"needs {needed} KV blocks, {instance.view.id} has {instance.cache.total}")
        self.cluster.ended.append(job)

    def pass_on(self, now: int) -> None:
        """Continue the handover of each request whose prompt, or a chunk of the prompt, has just been computed. Process
        the requests in order of their ids."""
        handed = self.cluster.handed
        if len(handed) > 1:
            handed.sort(key=by_row)
        for source in handed:
            handover, row = source.handover, source.row
            assert handover is not None
            if handover.computed:
                target = handover.target
                if self.signals.counts_ends and (prefill := self.control.flight(row).prefill) is not None:
                    self.signals.on_ended(now, prefill, True)
                self.control.on_handed(now, row)
                if row in self.deadlines.jobs:
                    self.deadlines.jobs[row] = (handover.decode, target)
                self.recorder.handed_ps[row] = now
                target.generated = int(handover.first_token)
                target.last_token_ps = now
            if handover.load is not None:
                handover.send(now, self.cluster.links)
            elif not handover.begun:
                flight = self.control.flight(row)
                self.handovers.pass_on(now, handover, flight.priority, flight.hints)
        handed.clear()

    def deliver(self, now: int) -> None:
        """Deliver the blocks that arrive now to the requests that wait for them."""
        for load in self.cluster.links.take_arrived(now):
            self.handovers.on_loaded(now, load)

    def ring(self, now: int) -> None:
        """Decide again about requests that wait at the router. Then end the requests whose deadline is now, in order of
        their ids."""
        if self.held:
            self.follow(now, self.control.wake)
        while self.deadlines.next_ps() == now:
            row = heappop(self.deadlines.heap)[1]
            if self.signals.vary:  # policies that observe the end of the request may read signals
                self.signals.refresh(now)
            self.give_up(now, row)
        self.set_timer()

    def give_up(self, now: int, row: int) -> None:
        """End a request at its deadline. If the request generates its last token at this very instant, it has met its
        deadline, so do nothing."""
        whereabouts = self.deadlines.jobs.get(row)
        if whereabouts is None:
            self.control.give_up(row)
            if self.losses is not None:
                self.losses.drop(row)
            self.turn_away(now, self.held.pop(row).request, TIMED_OUT)
            return
        index, job = whereabouts
        if job.generated == job.output_tokens:
            return
        instance = self.instances[index]
        before = instance.run.end
        self.clock.note_change(index, before, instance.expire(job, now))
        self.handovers.on_given_up(now, job)

    def set_timer(self) -> None:
        timer = min(self.control.next_ps, self.deadlines.next_ps())
        if self.capacity is not None and self.capacity.next_ps < timer:
            timer = self.capacity.next_ps
        self.timer = timer if timer < NEVER else -1

    def turn_away(self, now: int, request: Request, outcome: int, reason: str = "") -> None:
        """End a request that is not at an instance."""
        if self.capacity is not None and outcome == TIMED_OUT:
            self.capacity.in_vain(now, request)
        self.end(now, request.id, outcome, reason)
        if self.listener is not None:
            self.refused.append(request)

    def end(self, now: int, row: int, outcome: int, reason: str) -> None:
        self.recorder.outcome[row] = outcome
        self.recorder.finished_ps[row] = now
        if reason:
            self.recorder.reasons[row] = reason

    def complete(self, now: int) -> None:
        """Report the requests that ended at this instant to the router and the traffic, in order of arrival."""
        recorder, control, signals = self.recorder, self.control, self.signals
        ended, deadlined, listener = self.cluster.ended, self.deadlines.jobs, self.listener
        if len(ended) > 1:
            ended.sort(key=by_row)
        for job in ended:
            row = job.row
            if (handover := job.handover or job.awaits) is not None:  # the job ended before its transfer was complete
                handover.end()
            if self.losses is not None and not self.losses.on_ended(job):
                continue
            outcome = recorder.outcome[row]
            if outcome != REJECTED:
                outcome = FAILED if job.lost else TIMED_OUT if job.expired else COMPLETED
                recorder.outcome[row] = outcome
                recorder.finished_ps[row] = now
                recorder.output_tokens[row] = job.generated
            if deadlined:
                deadlined.pop(row, None)
            if signals.counts_ends and outcome != REJECTED:  # a rejected request never reached the instance
                self.count_end(now, row, not job.between_steps)
            control.on_finished(now, row, OUTCOMES[outcome], job.generated)
            if listener is not None:
                listener.on_ended(job.request, now, outcome == COMPLETED)
        ended.clear()
        if self.deadlines.heap:
            self.set_timer()

    def count_end(self, now: int, row: int, in_step: bool) -> None:
        """Count a request that leaves its instances. If `in_step` is set, it leaves at the end of a step, otherwise
        between steps."""
        flight = self.control.flight(row)
        for view in (flight.view, flight.prefill):
            if view is not None:
                self.signals.on_ended(now, view, in_step)

    def end_flight(self, now: int, row: int, outcome: str, output_tokens: int) -> None:
        """Tell the router that a request has left its instance between two steps."""
        if self.signals.counts_ends:
            self.count_end(now, row, in_step=False)
        self.control.on_finished(now, row, outcome, output_tokens)

    def tell_refused(self, now: int) -> None:
        """Report the requests that ended at the router to the traffic."""
        assert self.listener is not None
        for request in self.refused:
            self.listener.on_ended(request, now, False)
        self.refused.clear()


def by_row(job: Job) -> int:
    return job.row
