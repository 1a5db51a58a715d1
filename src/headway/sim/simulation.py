"""One simulation run: a loop over instants that connects workload, control plane and instances.

The phases of one instant:

(a) Steps end, in order of instance.
(b) All other events happen, each type of event in order of request: the router learns of first tokens; it admits and
    routes arrivals; it decides again about delayed requests; clients whose deadline is now give up; the router learns
    of requests that have ended. If the router has a queue: requests that have waited too long leave it, oldest first;
    the router sends requests in the queue's order; it rejects requests beyond the queue's capacity, newest first. If
    these events cause more events at the same instant, this phase repeats.
(c) Steps begin, in order of instance.

Every reader at time t sees the steps that ended at or before t.
"""

from collections.abc import Callable, Sequence
from copy import copy
from heapq import heappop, heappush
from random import Random
from typing import Any

from headway.control.autoscaler import Autoscaler
from headway.control.expectations import LengthsOf, running
from headway.control.journal import UNFORCED, Forced, Journal
from headway.control.plane import ControlPlane
from headway.errors import HeadwayError, InvariantError
from headway.policies.context import Context, Estimator
from headway.policies.disaggregation import has_prefill
from headway.policies.flow import NoFlow
from headway.policies.registry import entry_of
from headway.results.garbage import collecting_seldom
from headway.results.recorder import IN_FLIGHT, Recorder
from headway.sim.capacity import Capacity
from headway.sim.clock import INDEX_BITS, MASK, Clock
from headway.sim.dispatcher import Dispatcher, by_row
from headway.sim.front_end import front_ends
from headway.sim.kv_events import KvEvents
from headway.sim.news import News
from headway.sim.reported_signals import PolledSignals, Signals
from headway.sim.routers import Routers, streams
from headway.sim.setup import ClusterSetup
from headway.sim.simulated_cluster import SimulatedCluster
from headway.types import NEVER, Request
from headway.workload.traffic import Traffic

PROGRESS_EVERY = 1000  # number of arrivals between two progress reports
LAST = (1 << 63) - 1  # the last picosecond of the simulated clock
TOO_LONG = (
    "The run exceeds 106 days of simulated time, the range of the clock. "
    "Set 'horizon' to stop it earlier, or check the latency model and the bandwidths of the links."
)

Phase = Callable[[int], None]  # called with the current instant
Progress = Callable[[int, int], None]  # called with the id of the last request that arrived, and the current instant


class Simulation:
    """One simulation run. Call `run` only once."""

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
        lengths: Any = None,
        decider: Any = None,
        journals: Sequence[Sequence[Journal]] = (),
        forced: Forced = UNFORCED,
        further: Sequence[Sequence[Any]] = (),
        autoscaler: Autoscaler | None = None,
    ) -> None:
        """The policies of the first router are separate arguments. `further` has the policies of each other router:
        admission, priority, routing, flow, lengths and decider. `lengths` is the policy of the stage `estimator`, and
        `estimator` returns step times. `journals` has, for each router, the journals that record its decisions.
        `forced` has decisions to use instead of the policies' decisions."""
        self.setup = setup
        self.started_ps = self.ended_ps = 0
        self.eventful = False  # whether an event of this instant concerns the router's queue or the autoscaler
        self.queues = flow is not None and not isinstance(flow, NoFlow)
        self.cluster = SimulatedCluster(setup, scheduler)
        self.recorder = self.cluster.recorder
        self.clock = Clock(self.cluster.steppers)
        stages = [admission, priority, routing, *([] if flow is None else [flow])]
        if decider is not None and has_prefill(setup.views):
            stages.append(decider)
        lengths = running(lengths, (*stages, scheduler))
        instances, scalers = self.cluster.instances, () if autoscaler is None else autoscaler.policies
        recorded = setup.trace != "minimal"
        self.signals = (
            PolledSignals(
                instances, stages, [engine.view for engine in setup.engines], setup.signals, scalers, recorded
            )
            if setup.signals.poll_interval_ps
            else Signals(instances, stages, scalers, recorded)
        )
        fronts = front_ends(setup, instances)
        self.signals.show_engines(setup, fronts.values())
        for view in setup.views:
            view._load_rule = setup.signals.effective_load
        planes: list[ControlPlane] = []
        truth = self.cached_tokens if any(entry_of(policy).oracle for policy in stages) else None
        knows = lengths is not None and entry_of(lengths, "estimator").oracle
        true_lengths: dict[int, int] | None = {} if knows else None
        routers = [[admission, priority, routing, flow, lengths, decider], *further]
        for number, own in enumerate(routers):
            views = [copy(view) for view in setup.views] if further else setup.views
            context = Context(
                views,
                streams(rng, number),
                estimator,
                setup.block_tokens,
                truth,
                auto=setup.auto,
                belief=setup.signals.belief,
            )
            observe = None if autoscaler is None else autoscaler.observe
            listeners = journals[number] if journals else ()
            patience = NEVER if setup.life is None else setup.life.scaling.patience_ps
            plane = ControlPlane(
                context,
                own[0],
                own[1],
                own[2],
                own[3],
                None if lengths is None else own[4],
                own[5] if len(own) > 5 else None,
                lengths=None if true_lengths is None else length_of(true_lengths),
                patience_ps=patience,
                journals=listeners,
                forced=forced,
                observe=observe,
            )
            planes.append(plane)
        self.routers = (
            None if setup.routers.count == 1 else Routers(setup.routers, setup.router_seed, planes, self.signals)
        )
        self.control: ControlPlane | Routers = self.routers or planes[0]
        delay_ps, indexes = setup.signals.kv_event_delay_ps, self.control.indexes
        if delay_ps is not None and indexes:
            stores = setup.signals.belief != "routed"
            targets = setup.targets
            self.signals.kv_events = KvEvents(instances, indexes, setup.block_tokens, delay_ps, stores, targets)
            self.signals.vary = True
        self.dispatcher = Dispatcher(setup.warmup, self.cluster, self.clock, self.control, self.signals, fronts)
        self.dispatcher.lengths = true_lengths
        self.news = News(self.cluster, self.control, self.signals)
        self.capacity: Capacity | None = None  # set if instances start and stop during the run
        if setup.life is not None:
            self.capacity = Capacity(self.dispatcher, setup.life, autoscaler, self.queues)

    def cached_tokens(self, request: Request) -> list[int]:
        return self.cluster.cached_tokens(request, self.clock.now)

    def run(self, traffic: Traffic, progress: Progress | None = None) -> Recorder:
        with collecting_seldom():
            self.start(traffic, progress)
            self.run_instants(traffic)
            self.finish()
        return self.recorder

    def run_instants(self, traffic: Traffic) -> None:
        cluster, clock, dispatcher, capacity = self.cluster, self.clock, self.dispatcher, self.capacity
        links, first_tokens, handed, ended = cluster.links, cluster.first_tokens, cluster.handed, cluster.ended
        moves_blocks = bool(links.links)
        preparations, reactions = self.choose_preparations(), self.choose_reactions()
        horizon, instances, ends, begins = self.horizon, clock.instances, clock.ends, clock.begins
        pop, push = heappop, heappush  # compiled code looks up a global name in a dict
        arrival = traffic.next_ps
        while True:
            end, timer = ends[0] >> INDEX_BITS, dispatcher.timer
            now = end if end < arrival else arrival
            if timer >= 0 and timer < now:
                now = timer
            if moves_blocks and links.heap and links.next_ps <= now:
                links.make_sure(now)
                if links.next_ps < now:
                    now = links.next_ps
            if now > horizon or (capacity is not None and arrival == NEVER and capacity.is_deserted()):
                break
            # (a) Steps end.
            while end == now:
                index = pop(ends) & MASK
                instance = instances[index]
                if instance.run.end == now:
                    instance.finish_run(now)
                    begins.append(index)
                end = ends[0] >> INDEX_BITS
            if not begins and arrival != now and timer != now and links.next_ps != now:
                continue  # the heap entry is stale, because its run was cut
            clock.now = now
            # (b) All other events happen, with their immediate consequences.
            if preparations:
                for prepare in preparations:
                    prepare(now)
            if first_tokens:
                self.tell_first_tokens(now)
            if handed:
                dispatcher.pass_on(now)
            while True:
                if arrival == now:
                    self.take_arrivals(now)
                    arrival = traffic.next_ps
                if moves_blocks and links.next_ps == now:
                    dispatcher.deliver(now)
                if dispatcher.timer == now:
                    dispatcher.ring(now)
                if ended:
                    dispatcher.complete(now)
                if not reactions:
                    break
                for react in reactions:
                    react(now)
                arrival = traffic.next_ps
                if self.is_quiet(now):
                    break
            # (c) Steps begin.
            if begins:
                if len(begins) > 1:
                    begins.sort()
                for index in begins:
                    if (end := instances[index].begin(now)) >= 0:
                        push(ends, end << INDEX_BITS | index)
                begins.clear()

    def start(self, traffic: Traffic, progress: Progress | None) -> None:
        self.traffic, self.progress = traffic, progress
        if traffic.listens:
            self.dispatcher.listener = traffic
        limit = self.setup.horizon_ps
        self.horizon = LAST if limit is None else min(limit, LAST)
        arrival = traffic.next_ps
        self.started_ps = self.clock.now = min(0 if arrival == NEVER else arrival, self.horizon)
        self.cluster.start_tracing(self.started_ps)
        if self.capacity is not None:
            self.capacity.start(self.started_ps)

    def choose_preparations(self) -> list[Phase]:
        """Return the phases of an instant that precede the router's phases. The list is empty if there is one router
        without a queue, no instance starts or stops, and no policy observes signals that vary."""
        phases: list[Phase] = []
        if self.routers is not None:
            phases.append(self.routers.sync)
        if self.queues or self.capacity is not None:
            phases.append(self.note_events)
        if self.signals.vary and self.control.observers:
            phases.append(self.refresh_for_observers)
        if self.news.wanted:
            phases.append(self.tell_news)
        return phases

    def choose_reactions(self) -> list[Phase]:
        """Return the phases of an instant that follow the router's phases. These phases may cause more events at the
        same instant. The list is empty if the router has no queue, no instance starts or stops, and the traffic does
        not depend on how requests end."""
        phases: list[Phase] = []
        if self.capacity is not None:
            phases.append(self.manage_capacity)
        if self.queues:
            phases.append(self.pump_queue)
        if self.traffic.listens:
            phases.append(self.dispatcher.tell_refused)
        return phases

    def is_quiet(self, now: int) -> bool:
        """Whether no event is left at this instant before steps begin."""
        if self.traffic.next_ps == now or self.dispatcher.timer == now:
            return False
        return not (self.eventful and self.cluster.ended)

    # --- phases of an instant ----------------------------------------------------------------------------------

    def note_events(self, now: int) -> None:
        """Determine whether any event of this instant concerns the router's queue or the autoscaler."""
        cluster = self.cluster
        news = bool(cluster.first_tokens or cluster.ended)
        self.eventful = news or now in (self.traffic.next_ps, self.dispatcher.timer, cluster.links.next_ps)

    def refresh_for_observers(self, now: int) -> None:
        """Update the signals that policies may read when they observe an event."""
        cluster = self.cluster
        if cluster.first_tokens or cluster.ended or cluster.handed:
            self.signals.refresh(now)

    def tell_news(self, now: int) -> None:
        """Tell policies what happened at the instances since the router's last event or decision."""
        cluster = self.cluster
        eventful = cluster.first_tokens or cluster.ended or cluster.handed
        if self.news.items and (eventful or now in (self.traffic.next_ps, self.dispatcher.timer)):
            self.news.deliver(now)

    def tell_first_tokens(self, now: int) -> None:
        """Report first tokens to the router, in order of request."""
        first_tokens, control = self.cluster.first_tokens, self.control
        if len(first_tokens) > 1:
            first_tokens.sort(key=by_row)
        for job in first_tokens:
            control.on_first_token(now, job.row)
        first_tokens.clear()

    def take_arrivals(self, now: int) -> None:
        traffic = self.traffic
        while traffic.next_ps == now:
            planned = traffic.take()
            self.dispatcher.arrive(now, planned)
            if self.progress is not None and planned.request.id % PROGRESS_EVERY == 0:
                self.progress(planned.request.id, now)

    def manage_capacity(self, now: int) -> None:
        assert self.capacity is not None
        if self.eventful and self.capacity.is_due(now):
            self.capacity.manage(now)

    def pump_queue(self, now: int) -> None:
        if self.eventful:
            self.dispatcher.pump(now)

    def finish(self) -> None:
        """End the simulation after the last event or, if requests are left, at the horizon. Then check the results."""
        cluster, traffic, recorder = self.cluster, self.traffic, self.recorder
        self.ended_ps = self.clock.now
        busy = any(
            instance.run.end >= 0 or instance.batch.running or instance.scheduler.count_queued()
            for instance in cluster.instances
        )
        if traffic.next_ps != NEVER or self.dispatcher.held or busy:
            self.stop()
        elif self.news.items:  # a run that stops at the horizon does not deliver its last events to policies
            self.news.deliver(self.ended_ps)
        recorder.not_issued = traffic.not_issued
        recorder.abandoned = traffic.abandoned
        recorder.retried = traffic.retried
        recorder.trim()
        if self.capacity is not None:
            self.capacity.close(self.ended_ps)
        if self.setup.horizon_ps is None and IN_FLIGHT in recorder.outcome:
            raise InvariantError("The run has ended without a horizon, but requests are still in flight.")
        cluster.gather(self.ended_ps)
        self.control.check()
        self.policy_metrics = self.control.metrics()

    def stop(self) -> None:
        horizon = self.horizon
        if self.setup.horizon_ps is None:
            raise HeadwayError(TOO_LONG)
        if self.routers is not None:
            self.routers.sync(horizon)
        self.ended_ps = horizon
        self.cluster.stop(horizon)
        if self.capacity is not None:
            self.capacity.losses.stop()
        self.traffic.stop()


def length_of(lengths: dict[int, int]) -> LengthsOf:
    """Return a function that looks a request's true output length up, for an oracle."""
    return lambda request: lengths[request.id]
