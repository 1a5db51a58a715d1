"""A cluster at work: what becomes of requests at each kind of event, between router, instances and traffic."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from copy import copy
from heapq import heappush
from random import Random
from typing import Any

from headway.control import QUEUED, ControlPlane, Explain, Flight
from headway.policies.context import Context, Estimator
from headway.registry import declared
from headway.results.recorder import COMPLETED, IN_FLIGHT, REJECTED, TIMED_OUT, InstanceStats, Recorder
from headway.sim.deadlines import Deadlines
from headway.sim.handover import Handover, Incoming
from headway.sim.instance import Instance
from headway.sim.job import Job
from headway.sim.kv_events import KvEvents
from headway.sim.leap import NEVER
from headway.sim.link import Links
from headway.sim.load import Load
from headway.sim.routers import Routers, streams
from headway.sim.samples import Samples
from headway.sim.setup import ClusterSetup, EngineSetup
from headway.sim.signals import PolledSignals, Signals
from headway.sim.tier import Tier
from headway.streams import stream
from headway.types import OUTCOMES, InvariantError, Reject, Request
from headway.workload.traffic import Planned, Traffic

ROWS_AHEAD = 1024
INDEX_BITS = 20  # a heap entry is time and instance in one integer


class Cluster:
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
        explain: Explain | None = None,
        further: Sequence[Sequence[Any]] = (),
    ) -> None:
        """`further` has the stages of the routers after the first: admission, priority, routing and flow."""
        self.setup = setup
        self.block_tokens = setup.block_tokens
        self.warmup = setup.warmup
        self.recorder = Recorder(ROWS_AHEAD)
        self.now = 0
        self.started_ps = 0
        self.ended_ps = 0
        self.first_tokens: list[Job] = []  # requests that got it at this instant
        self.done: list[Job] = []  # requests that ended at this instant
        self.handed: list[Job] = []  # requests whose prompts were computed at this instant, and that go on elsewhere
        self.listens = False  # whether the traffic goes by what becomes of its requests
        self.refused: list[Request] = []  # those that ended and never came to an instance, until it has heard
        self.held: dict[int, Planned] = {}  # those that admission put off, or that wait in the router's queue
        self.deadlines = Deadlines(self.recorder)
        self.timer = NEVER  # when a held request comes up again or has waited too long, or a client gives up
        self.links = Links()
        self.incoming: dict[int, Incoming] = {}  # by instance, what it is to get from others
        self.outgoing: dict[int, int] = {}  # the link of each instance that computes prompts for others
        self.shared: dict[tuple[str, str], Tier] = {}  # stores by pool and name
        self.instances = [self.instance(engine, scheduler) for engine in setup.engines]
        stages = [admission, priority, routing, *([] if flow is None else [flow])]
        if setup.polling is None:
            self.signals = Signals(self.instances, stages)
        else:
            self.signals = PolledSignals(self.instances, stages, setup.views, setup.polling)
        truth = self.truth if any(declared(policy).oracle for policy in stages) else None
        planes: list[ControlPlane] = []
        for number, own in enumerate([stages, *further]):
            views = [copy(view) for view in setup.views] if further else setup.views
            context = Context(views, streams(rng, number), estimator, setup.block_tokens, truth)
            planes.append(ControlPlane(context, *own, explain=explain))
        self.routers = None if setup.routers is None else Routers(setup.routers, planes, self.signals)
        self.control: ControlPlane | Routers = self.routers or planes[0]
        if setup.kv_event_delay is not None and self.control.indexes:
            delay = setup.kv_event_delay
            self.signals.hear(KvEvents(self.instances, self.control.indexes, setup.block_tokens, delay))
        # Heap of run ends; an entry that its instance no longer has is stale. It is never empty.
        self.ends = [NEVER << INDEX_BITS]
        self.begins: list[int] = []  # instances at a step boundary at this instant

    def instance(self, engine: EngineSetup, scheduler: Any) -> Instance:
        setup = self.setup
        if engine.transfer is not None:
            transfer = engine.transfer
            self.outgoing[engine.view.index] = self.links.add(transfer.bandwidth, transfer.latency_ps)
        return Instance(
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
            handed=self.handed,
            links=self.links,
            tiers=self.tiers(engine),
        )

    def tiers(self, engine: EngineSetup) -> list[Tier] | None:
        """The stores below an instance's GPU."""
        if engine.tiers is None:
            return None
        found = []
        for spec in engine.tiers:
            tier = self.shared.get((engine.view.pool, spec.name)) if spec.shared else None
            if tier is None:
                link = self.links.add(spec.bandwidth, spec.latency_ps)
                tier = Tier(spec.name, spec.blocks, link, spec.shared, engine.eviction != "lru")
                if spec.shared:
                    self.shared[(engine.view.pool, spec.name)] = tier
            found.append(tier)
        return found

    def watch_tiers(self) -> None:
        """The run begins: from here on it is written down how full the stores are."""
        for instance in self.instances:
            if instance.tiers is not None:
                for tier in instance.tiers.tiers:
                    tier.samples = Samples(self.started_ps)

    def arrive(self, now: int, planned: Planned, again: bool = False) -> None:
        """A request comes, or comes up again: what the router decides of it, and its way to the instance."""
        request, recorder = planned.request, self.recorder
        row = request.id
        if not again:
            recorder.arrived(now, request)
            if request.deadline_ps is not None:
                self.deadlines.add(request.deadline_ps, row)
        if self.signals.vary:
            self.signals.refresh(now)
        answer = self.control.arrive(now, request, again)
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
            self.turn_away(now, request, REJECTED if isinstance(answer, Reject) else TIMED_OUT, answer.reason)
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
        instance = self.instances[index]
        tokens = request.prompt_tokens + planned.output_tokens - 1
        if flight.prefill is not None:
            job, instance = self.split(job, flight.prefill.index, index)
            recorder.prefill_instance[row] = flight.prefill.index
        if request.deadline_ps is not None:
            self.deadlines.jobs[row] = (instance.view.index, job)
        instance.stats.requests += 1
        if self.never_fits(now, row, tokens, self.instances[index]) or (
            flight.prefill is not None and self.never_fits(now, row, request.prompt_tokens, instance)
        ):
            self.done.append(job)
            return
        index = instance.view.index
        recorder.enqueued_ps[row] = now
        if self.signals.polled:
            self.signals.routed(now, flight.view)
            if flight.prefill is not None:
                self.signals.routed(now, flight.prefill)
        before = instance.end
        if instance.enqueue(job, now, flight.priority, flight.hints):
            self.begins.append(index)
        elif instance.end != before:  # the run was cut
            heappush(self.ends, instance.end << INDEX_BITS | index)

    def never_fits(self, now: int, row: int, tokens: int, instance: Instance) -> bool:
        """Whether a request that has to hold so many tokens at a time is turned away for that."""
        needed = -(-tokens // self.block_tokens)
        if needed <= instance.cache.total:
            return False
        self.end(now, row, REJECTED, f"needs {needed} KV blocks, {instance.view.id} has {instance.cache.total}")
        return True

    def split(self, job: Job, prefill: int, decode: int) -> tuple[Job, Instance]:
        """A request whose prompt one instance computes for another: what it is at the first of them."""
        instance = self.instances[prefill]
        transfer = instance.transfer
        assert transfer is not None
        source = Job(job.request, 1, job.output_key, self.block_tokens, job.counted)
        if job.output_tokens > 1 or not transfer.first_token:
            if decode not in self.incoming:
                self.incoming[decode] = Incoming(transfer.incoming)
            link, incoming = self.outgoing[prefill], self.incoming[decode]
            source.handover = job.awaits = Handover(source, job, prefill, decode, link, transfer, incoming)
            job.started = True
            job.prefilled = job.request.prompt_tokens
            self.instances[decode].stats.requests += 1
        return source, instance

    def pass_on(self, now: int) -> None:
        """Requests whose prompts have been computed, or a chunk of them, go on to the instances that generate, by
        request."""
        self.handed.sort(key=by_row)
        for source in self.handed:
            handover = source.handover
            assert handover is not None
            target, row = handover.target, source.row
            instance = self.instances[handover.decode]
            flight = self.control.flight(row)
            if handover.done:
                self.control.handed(now, row)
                self.recorder.handed_ps[row] = now
                target.generated = int(handover.transfer.first_token)
                instance.gaps.last_token_ps[row] = now
                if row in self.deadlines.jobs:
                    self.deadlines.jobs[row] = (handover.decode, target)
            if handover.load is not None:
                instance.fetch_more(handover, now)
            elif not handover.begun:
                handover.begun = True
                handover.incoming.count += 1
                before = instance.end
                self.moved(handover.decode, before, instance.enqueue(target, now, flight.priority, flight.hints))
        self.handed.clear()
        if self.links.next_ps < self.timer:
            self.set_timer()

    def moved(self, index: int, before: int, begins: bool) -> None:
        """An instance has heard of something: it can begin a step now, or its run, which ended at `before`, was cut."""
        if begins:
            self.begins.append(index)
        elif (end := self.instances[index].end) != before:
            heappush(self.ends, end << INDEX_BITS | index)

    def ring(self, now: int) -> None:
        """What was held back comes up again, and clients whose deadline this is give up, each by request."""
        if self.links.next_ps == now:
            for load in self.links.arrived(now):
                self.loaded(now, load)
        while (request := self.control.due(now)) is not None:
            self.arrive(now, self.held.pop(request.id), again=True)
        while self.deadlines.next_ps() == now:
            row = self.deadlines.take()
            if self.signals.vary:  # the policies will hear of it, and may look
                self.signals.refresh(now)
            self.give_up(now, row)
        self.set_timer()

    def loaded(self, now: int, load: Load) -> None:
        """The blocks that a request waited for have come, unless it has given up."""
        instance, handover = self.instances[load.instance], load.job.awaits
        if load.job in instance.loading:
            before = instance.end
            self.moved(load.instance, before, instance.loaded(load.job, now))
            if handover is not None:
                row = load.job.row
                self.recorder.transfer_ps[row] = handover.begun_ps
                self.recorder.transferred_ps[row] = now
                self.let_go(now, handover)
                self.received(now, handover.incoming)

    def received(self, now: int, incoming: Incoming) -> None:
        """An instance has got a request from another, or will not; those that wait for that may go on."""
        incoming.count -= 1
        if incoming.blocked and not incoming.full():
            blocked = sorted(incoming.blocked)
            incoming.blocked.clear()
            for index in blocked:
                instance = self.instances[index]
                instance.refused = None
                before = instance.end
                self.moved(index, before, instance.nudge(now))

    def withdraw(self, now: int, handover: Handover) -> None:
        """The client of a request gives up while its prompt is being computed and goes on in chunks."""
        instance = self.instances[handover.decode]
        before = instance.end
        instance.withdraw(handover.target, now)
        self.moved(handover.decode, before, instance.nudge(now))
        self.received(now, handover.incoming)

    def let_go(self, now: int, handover: Handover) -> None:
        """The instance that has computed a prompt for another need not keep it."""
        instance = self.instances[handover.prefill]
        before = instance.end
        self.moved(handover.prefill, before, instance.let_go(handover.source, now))

    def give_up(self, now: int, row: int) -> None:
        """A client does not wait any longer; a last token that comes at this instant is in time."""
        found = self.deadlines.jobs.get(row)
        if found is None:
            self.control.give_up(row)
            self.turn_away(now, self.held.pop(row).request, TIMED_OUT)
            return
        index, job = found
        if job.generated == job.output_tokens:
            return
        instance = self.instances[index]
        before = instance.end
        self.moved(index, before, instance.expire(job, now))
        if job.awaits is not None:
            self.let_go(now, job.awaits)
            self.received(now, job.awaits.incoming)
        elif job.handover is not None and job.handover.begun:
            self.withdraw(now, job.handover)

    def set_timer(self) -> None:
        self.timer = min(self.control.next_ps, self.links.next_ps, self.deadlines.next_ps())

    def turn_away(self, now: int, request: Request, outcome: int, reason: str = "") -> None:
        """A request ends that never came to an instance."""
        self.end(now, request.id, outcome, reason)
        if self.listens:
            self.refused.append(request)

    def end(self, now: int, row: int, outcome: int, reason: str) -> None:
        self.recorder.outcome[row] = outcome
        self.recorder.finished_ps[row] = now
        if reason:
            self.recorder.reasons[row] = reason

    def complete(self, now: int, traffic: Traffic | None) -> None:
        """The router hears of the requests that ended at this instant, in order of arrival, and the traffic does."""
        recorder, control, done, deadlined = self.recorder, self.control, self.done, self.deadlines.jobs
        if len(done) > 1:
            done.sort(key=by_row)
        for job in done:
            row = job.row
            if recorder.outcome[row] != REJECTED:
                recorder.outcome[row] = TIMED_OUT if job.expired else COMPLETED
                recorder.finished_ps[row] = now
                recorder.output_tokens[row] = job.generated
            if deadlined:
                deadlined.pop(row, None)
            control.finished(now, row, OUTCOMES[recorder.outcome[row]], job.generated)
            if traffic is not None:
                traffic.ended(job.request, now, recorder.outcome[row] == COMPLETED)
        done.clear()
        if self.deadlines.heap:
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
        found = []
        for instance in self.instances:
            blocks = instance.cache.match(runs, limit)
            if instance.tiers is not None:
                blocks = instance.tiers.match(runs, blocks, limit)
            found.append(blocks * size)
        return found

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
            if (tiers := instance.tiers) is not None:
                view = instance.view
                instance.stats.tiers = tiers.stats(view.id, view.pool, self.block_tokens, self.ended_ps)
                instance.stats.load_waits_ps = tiers.waits
            gaps.extend(instance.gaps.runs)
            gaps.extend(instance.gaps.resumed)
            instance.stats.evicted_blocks = instance.cache.evicted
            instance.stats.peak_kv_blocks = instance.peak
            instance.stats.steps = instance.steps
            if (adapters := instance.adapters) is not None:
                instance.stats.adapter_loads = adapters.loaded
                instance.stats.adapter_load_ps = adapters.loaded * adapters.load_ps
        for index, number in self.outgoing.items():
            link, stats = self.links.links[number], self.instances[index].stats
            link.settle(self.ended_ps)
            stats.sent_bytes = link.moved_bytes
            stats.link_busy_ps = link.busy_ps
        self.control.check()
        self.policy_metrics = self.control.metrics()

    @property
    def stats(self) -> list[InstanceStats]:
        return [instance.stats for instance in self.instances]


def by_row(job: Job) -> int:
    return job.row
