"""The control plane: estimator, admission, priority, flow control, then routing, over the router's own counts.

It does no I/O and has no clock. Its driver (the simulator's event loop, or the gateway's asyncio loop) passes the time
and the event, and carries out the answer:

    call                                  when                                          answer
    ------------------------------------  --------------------------------------------  ----------------------------
    arrive(now, request)                  a request arrives                             Flight, Reject or QUEUED;
                                                                                        None if `wake` answers later
    wake(now), until it returns None      `next_ps` is reached, or an instance came up  (request, answer)
    pump(now), until it returns None      after any event                               (request, answer)
    on_first_token(now, id)               the first token of request `id` arrives
    on_handed(now, id)                    its prompt is computed for a decode instance  its Flight
    on_finished(now, id, outcome, tokens) it has ended, or has left its instance
    resend(now, request, priority)        its instance lost it, after `on_finished`     Flight, Reject or None
    give_up(id)                           its client disconnected                       whether it waited here
    instance_changed(now, index, state)   an instance changes its state
    regroup(now)                          an instance joined or left                    requests that must arrive again

`wake` and `pump` return one decision at a time. The driver carries out each decision before it asks for the next one,
so that the signals include the effect of the decision. `wake` decides on requests that admission delayed, then on
requests that waited for an instance. `pump` decides on the requests in the queue of flow control. `wake` and `pump` are
separate, because the simulator reports ended requests between the two calls.

`next_ps` is the time at which the driver must call `wake` and then `pump`, unless an event happens earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from headway.config.units import duration_text
from headway.config.wording import shown
from headway.control.audience import Audience, Observe
from headway.control.decision_maker import DecisionMaker
from headway.control.expectations import Expectations, LengthsOf
from headway.control.flights import Answer, Decision, Flight, Flights, TimedOut, Unserved
from headway.control.journal import UNFORCED, Forced, Journal
from headway.control.model_groups import ModelGroups
from headway.control.stages import Guard, Stages
from headway.control.view_lock import ViewLock
from headway.control.waiting_room import DELAYED, RESCUED, WaitingRoom
from headway.policies.answers import policy_metrics
from headway.policies.context import Context
from headway.policies.disaggregation import make_pairing
from headway.policies.flow import NoFlow, Waiting
from headway.policies.prefix_index import PrefixIndex
from headway.policies.registry import entry_of
from headway.policies.user_policies import ours
from headway.types import NEVER, Priority, Reject, Request
from headway.views.cluster import ClusterView


class ControlPlane:
    """Asks the policies for decisions: estimator, admission, priority, flow control, routing. `flights` contains the
    requests in flight, and `waiting` the requests that wait at the router. `audience` sends events to policies and
    other observers."""

    def __init__(
        self,
        context: Context,
        admission: Any,
        priority: Any,
        routing: Any,
        flow: Any = None,
        estimator: Any = None,
        decider: Any = None,
        *,
        lengths: LengthsOf | None = None,
        patience_ps: int = NEVER,
        unserved: str | None = None,
        journals: Sequence[Journal] = (),
        forced: Forced = UNFORCED,
        observe: Observe | None = None,
        guard: Guard | None = None,
        on_indexes: Callable[[Sequence[PrefixIndex]], None] | None = None,
    ) -> None:
        """Create a control plane and bind its policies. `patience_ps` is the maximum time that a request waits for an
        instance to start. If no instance starts in time, the request is rejected with the reason `unserved`. `observe`
        receives the same events as the policies. `on_indexes` is called with all current prefix indexes whenever
        policies join. `lengths` returns the true output length of a request, for an estimator that is an oracle."""
        self.cluster = ClusterView(context.instances)
        self.cluster.explain = bool(journals)
        self.context, self.ordered = context, context.instances
        self.journals, self.guard = journals, guard
        stages = Stages(admission, priority, make_pairing(routing, context.instances, decider))
        self.decider = decider  # decides which requests are split, as a part of the routing policy
        self.flow = None if isinstance(flow, NoFlow) else flow
        self.policies = {"admission": admission, "priority": priority, "routing": stages.routing}
        if self.flow is not None:
            self.policies["flow"] = self.flow
        self.expectations: Expectations | None = None
        if estimator is not None:
            self.policies["estimator"] = estimator
            self.expectations = Expectations(estimator, lengths)
        self.flights = Flights()
        self.groups = ModelGroups(context.instances)
        on_error = None if guard is None else guard.observer_failed
        self.audience = Audience(context, self.cluster, on_indexes, on_error)
        self.waiting = WaitingRoom(context, self.groups, self.flow, patience_ps, self.audience.on_dequeued)
        within = duration_text(self.waiting.patience_ps)
        self.unserved = Unserved(unserved or f"503: no instance came up within {within}")
        self.maker = DecisionMaker(
            self.cluster,
            stages,
            self.groups,
            self.waiting,
            self.flights,
            self.audience,
            self.expectations,
            journals,
            forced,
            guard,
        )
        self._list_targets()
        self.watch(tuple(self.policies.values()))
        self.audience.join(0, [admission, priority, stages.routing, *self.waiting.queues()], {})
        if self.expectations is not None:
            self.audience.join(0, [estimator], {}, self.expectations.context(context))
        if observe is not None:
            self.audience.observers.append(observe)
        reported = [signal for policy in self.policies.values() for signal in entry_of(policy).reported]
        for journal in journals:
            journal.bind(context, self.cluster, reported)

    @property
    def next_ps(self) -> int:
        return self.waiting.next_ps

    @property
    def indexes(self) -> list[PrefixIndex]:
        return self.audience.indexes

    @property
    def routed_indexes(self) -> list[PrefixIndex]:
        """The prefix indexes that learn which prompts the router sends."""
        return self.audience.routed_indexes

    @property
    def observers(self) -> list[Observe]:
        return self.audience.observers

    # --- decisions ---------------------------------------------------------------------------------------------

    def arrive(self, now_ps: int, request: Request, again: bool = False) -> Answer:
        """Decide on a request that arrives. Set `again` if the request arrived before and has waited here, so that it
        is counted only once."""
        audience = self.audience
        if not again:
            if audience.state is not None:
                audience.state.on_arrival(now_ps, request)
            if audience.listeners:
                audience.on_arrived(now_ps, request)
        maker = self.maker
        if self.guard is None:
            answer = maker.admit(now_ps, request, maker.stages)
        else:
            answer = self.guard.arrive(now_ps, request, partial(maker.admit, now_ps, request))
        if audience.listeners:
            self._tell_refused(now_ps, request, answer)
        return answer

    def _tell_refused(self, now_ps: int, request: Request, answer: Answer) -> None:
        """Tell the observers if a request has ended at the router."""
        if isinstance(answer, Reject | TimedOut):
            outcome = "timed_out" if isinstance(answer, TimedOut) else "rejected"
            self.audience.on_rejected(now_ps, request, answer.reason, outcome)

    def watch(self, policies: Sequence[Any], trusting: bool = True) -> None:
        """Lock the views during the next calls of these new policies. If `trusting` is set, the views stay unlocked
        during calls of Headway's own policies."""
        if trusting and all(map(ours, policies)):
            return
        lock = self.maker.lock = self.audience.lock = ViewLock(self.ordered, self.cluster)
        if trusting:
            lock.trust((*self.policies.values(), *policies))

    # --- requests that wait ------------------------------------------------------------------------------------

    def wake(self, now_ps: int) -> Decision | None:
        """Return the next decision on a request whose delay has ended or that waited for an instance. If no decision is
        due, return None."""
        turn = self.waiting.next_turn(now_ps)
        if turn is None:
            return None
        if turn[0] == DELAYED:
            request = self.waiting.take_delayed()
            return request, self.arrive(now_ps, request, again=True)
        if turn[0] == RESCUED:
            stranded = self.waiting.take_rescued()
            request, priority = stranded.request, stranded.priority
            if priority is None:
                return request, self.arrive(now_ps, request, again=True)
            return request, self.resend(now_ps, request, priority)
        request = self.waiting.take_overdue(now_ps)
        self._tell_refused(now_ps, request, self.unserved)
        return request, self.unserved

    def pump(self, now_ps: int) -> Decision | None:
        """Return the next decision on a request in the router's queue, or None if there is no decision to make.
        Requests that waited too long time out first. Then requests are dispatched while the cluster is not saturated,
        and requests beyond the queue's capacity are rejected. Each model has its own queue."""
        if self.flow is None:
            return None
        cluster = self.cluster
        cluster.now_ps = now_ps
        for group in self.groups:
            flow = group.flow
            cluster.instances, cluster.group = group.instances, group.number
            entry: Waiting | None = flow.pop_expired(now_ps)
            answer: Flight | Reject | TimedOut
            if entry is not None:
                answer = TimedOut(entry.reason)
            elif group.instances and (entry := flow.take(cluster)) is not None:
                cluster.priority = entry.priority
                if self.expectations is not None:
                    self.maker.expect(entry.request)
                answer = self.maker.route(now_ps, entry.request, entry.priority, self.maker.stages)
            elif group.empty_ps + self.waiting.patience_ps <= now_ps and (entry := flow.oldest()) is not None:
                answer = Reject(self.unserved.reason)
            elif (entry := flow.excess()) is not None:
                answer = Reject(entry.reason)
            else:
                continue
            self.audience.on_dequeued(entry.request)
            if self.audience.listeners:
                self._tell_refused(now_ps, entry.request, answer)
            return entry.request, answer
        self.waiting.set_next()
        return None

    def listening(self, request_id: int = -1) -> list[ControlPlane]:
        """Return the control planes whose policies may observe an event. If `request_id` is -1, the event concerns an
        instance instead of a request."""
        return [self]

    def give_up(self, request_id: int) -> bool:
        """Remove a waiting request whose client has disconnected. Return False if the request does not wait here."""
        return self.waiting.give_up(request_id)

    def pending(self, pool: str) -> int:
        """Return the number of waiting requests that a pool could serve. Requests that admission has delayed count
        too."""
        return self.waiting.pending(pool)

    def pools_of(self, request: Request) -> tuple[str, ...]:
        """Return the pools that could serve a request if all their instances were serving."""
        group = self.groups.of(request.model)
        return () if group is None else group.pools

    # --- requests in flight ------------------------------------------------------------------------------------

    def flight(self, request_id: int) -> Flight:
        return self.flights.by_id[request_id]

    def on_first_token(self, now_ps: int, request_id: int) -> None:
        flight = self.flights.first_token(now_ps, request_id)
        if self.audience.observers or self.audience.state is not None:
            self.audience.on_first_token(now_ps, flight)

    def on_handed(self, now_ps: int, request_id: int) -> Flight:
        """Move a request from its prefill instance, which has computed the prompt, to its decode instance."""
        flight, prefill = self.flights.hand_over(request_id)
        if self.audience.observers:
            self.audience.on_handed(now_ps, flight, prefill)
        return flight

    def on_finished(self, now_ps: int, request_id: int, outcome: str, output_tokens: int) -> None:
        flight = self.flights.finish(request_id, outcome == "completed", output_tokens)
        if self.audience.observers or self.audience.state is not None:
            self.audience.on_finished(now_ps, flight, outcome, output_tokens)

    def resend(self, now_ps: int, request: Request, priority: Priority) -> Flight | Reject | None:
        """Route a request again after its instance lost it or redirected it. If no instance can serve now, let the
        request wait for one and return None."""
        cluster = self.cluster
        group = self.groups.of(request.model)
        if group is None:
            return Reject(f"404: model {shown(request.model)} is not served")
        cluster.now_ps, cluster.priority = now_ps, priority
        cluster.instances, cluster.group = group.instances, group.number
        if group.instances:
            if self.expectations is not None:
                self.maker.expect(request)
            answer = self.maker.route(now_ps, request, priority, self.maker.stages)
            self._tell_refused(now_ps, request, answer)
            return answer
        self.waiting.strand(now_ps, request, group, priority)
        return None

    def take_over(self, now_ps: int, flights: Mapping[int, Flight]) -> None:
        """Take over requests in flight from another control plane. The counts in the views already include these
        requests. Policies receive events as if the requests were routed now."""
        self.flights.by_id.update(flights)
        for flight in flights.values():
            self.audience.on_taken_over(now_ps, flight)

    # --- changes of instances and policies -----------------------------------------------------------------------

    def instance_changed(self, now_ps: int, index: int, state: str) -> None:
        view = self.ordered[index]
        was, view.state = view.state, state
        if state == "stopped":
            self.audience.on_stopped(index)
            for journal in self.journals:
                journal.on_stopped(index)
        for group in self.groups:
            if view in group.members:
                group.refresh(now_ps)
        self.audience.on_changed(now_ps, view, was)

    def regroup(self, now_ps: int) -> list[Request]:
        """Form the groups of instances again after instances have joined or left. Return the waiting requests whose
        group no longer exists; the caller must pass them to `arrive` again."""
        self._list_targets()
        return self.waiting.regroup(now_ps)

    def _list_targets(self) -> None:
        self.maker.views = {view.id: view for view in self.ordered if view.id}

    def join(self, now_ps: int, policies: Sequence[Any]) -> None:
        """Bind further policies and send them all events from now on. For each request in flight, they first receive
        events as if the request were routed now."""
        self.watch(policies)
        self.audience.join(now_ps, policies, self.flights.by_id)

    def show(self, now_ps: int, names: Sequence[str]) -> None:
        """Start to record the named parts of this router's past (`tenants`, `totals`, `recent`), and show them in the
        views."""
        self.audience.show(now_ps, names, self.flights.by_id)

    # --- checks and metrics ------------------------------------------------------------------------------------

    def check(self, foreign: Sequence[int] | None = None) -> None:
        """Raise an error if a policy has changed the counts in the views. If other routers send requests to the same
        instances, `foreign` lists for each instance how many requests of other routers are in flight there."""
        self.flights.check(self.maker.views.values(), foreign)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of all policies by name. If the cluster serves several models, each model has its own
        queue, so the names of queue metrics end with the model."""
        values: dict[str, float] = {}
        for name, policy in self.policies.items():
            if name == "flow" and len(self.groups) > 1:
                for group in self.groups:
                    own = policy_metrics(group.flow, "policies.flow") if hasattr(group.flow, "metrics") else {}
                    values.update({f"{figure}:{group.name}": value for figure, value in own.items()})
            elif hasattr(policy, "metrics"):
                values.update(policy_metrics(policy, f"policies.{name}"))
        return values
