"""The control plane: admission, then priority, then flow control, then routing, over the router's own counts.

It does no I/O and has no clock: the event loop of the simulator or the asyncio loop of a gateway tells it the time and
what happened, and carries out what it answers. What it holds back comes up again at `next_ps`. Where flow control has a
queue, the loop asks `pump` what becomes of it whenever something has happened, until the answer is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from heapq import heappush
from typing import Any, Final

from headway.config.units import duration_text
from headway.config.wording import shown
from headway.control.flight import QUEUED, Flight, Queued, Sent, TimedOut
from headway.control.journal import UNFORCED, Forced, Journal
from headway.control.router_state import RouterState
from headway.control.waiting_room import WaitingRoom
from headway.policies.answers import VERDICT, check_priority, is_number, refuses, wrong_answer, wrong_target
from headway.policies.context import Context
from headway.policies.disaggregation import paired
from headway.policies.flow import NoFlow, Waiting
from headway.policies.registry import EVERYTHING, declared, figures
from headway.types import ADMIT, NO_PRIORITY, SERVING, Admit, Delay, Priority, Reject, Request, Route
from headway.views.cluster import KEPT
from headway.views.events import Event, FirstToken, InstanceChanged, Routed
from headway.views.instance import InstanceView

MOST_TOKENS: Final = 1 << 62  # that any prompt may be believed to have cached
MOST_DELAYS: Final = 100_000  # of one request; who puts off more often would never let it in
Permit = Callable[[Request, Sequence[InstanceView]], Reject | None]


class ControlPlane(WaitingRoom):
    """Runs the policies in order and keeps the exact counters of each instance."""

    def __init__(
        self,
        context: Context,
        admission: Any,
        priority: Any,
        routing: Any,
        flow: Any = None,
        *,
        journals: Sequence[Journal] = (),
        forced: Forced = UNFORCED,
        observe: Callable[[Event], None] | None = None,
    ) -> None:
        """`observe` hears what the policies do."""
        super().__init__(context)
        self.cluster.explain = bool(journals)
        self.journals = journals
        self.forced = dict(forced)
        self.admission = admission
        self.permit: Permit | None = getattr(admission, "permit", None)
        self.priority = priority
        self.routing = routing = paired(routing, context.instances)
        self.flow = None if isinstance(flow, NoFlow) else flow
        self.stages = {"admission": admission, "priority": priority, "routing": routing}
        if self.flow is not None:
            self.stages["flow"] = self.flow
            for group in self.groups:  # a queue each, so that a model that is full holds up no other
                group.flow = self.flow if group.number == 0 else copy(self.flow)
        everyone = [*self.stages.values(), *(group.flow for group in self.groups[1:] if group.flow is not None)]
        for stage in everyone:
            bind = getattr(stage, "bind", None)
            if bind is not None:
                bind(context)
        self.indexes = context.indexes
        reported = [signal for stage in self.stages.values() for signal in declared(stage).reported]
        for journal in journals:
            journal.bind(context, self.cluster, reported)
        self.observers = [stage.observe for stage in everyone if hasattr(stage, "observe")]
        if observe is not None:
            self.observers.append(observe)
        read = [signal for stage in self.stages.values() for signal in declared(stage).exact]
        kept = KEPT if EVERYTHING[0] in read else [name for name in KEPT if name in read]
        if kept:
            self.state = RouterState(self.cluster, kept)

    # --- the way of a request ----------------------------------------------------------------------------------

    def arrive(self, now_ps: int, request: Request, again: bool = False) -> Flight | Reject | Queued | None:
        """Decide on a request that comes, or comes up `again` as it was put off: its flight, why it is turned away,
        QUEUED where it waits in the router's queue, or None where admission puts it off."""
        if self.state is not None and not again:
            self.state.arrived(now_ps, request)
        cluster = self.cluster
        cluster.now_ps = now_ps
        cluster.priority = NO_PRIORITY
        group = self.groups[0] if self.by_model is None else self.by_model.get(request.model)
        if group is None:
            return Reject(f"404: no instance serves model {shown(request.model)}")
        cluster.instances, cluster.group = group.instances, group.number
        if not group.instances:
            self.strand(now_ps, request, group)
            return None
        verdict = self.admission.admit(request, cluster)
        if verdict is not ADMIT and not isinstance(verdict, Admit):
            return self.not_admitted(now_ps, request, verdict)
        priority = self.priority.prioritise(request, cluster)
        if priority is not NO_PRIORITY:
            check_priority(self.priority, priority, request)
            cluster.priority = priority
        if self.flow is not None:
            group.flow.put(now_ps, request, priority)
            if self.state is not None:
                self.state.queued(request)
            return QUEUED
        return self.route(now_ps, request, priority)

    def route(self, now_ps: int, request: Request, priority: Priority) -> Flight | Reject:
        decision = self.routing.route(request, self.cluster)
        if self.forced and request.id in self.forced:
            decision = self.force(request, decision)
        if isinstance(decision, Route):
            view = self.checked(decision.target, request)  # what is no answer is not taken down
            prefill = None if decision.prefill is None else self.checked(decision.prefill, request)
            if self.permit is not None:
                refusal = self.permit(request, (view,) if prefill is None else (view, prefill))
                if refusal is not None:
                    return self.no_permit(request, refusal)
            for journal in self.journals:
                journal.routed(now_ps, request, decision, priority)
            return self.dispatch(now_ps, request, decision, view, prefill, priority)
        if isinstance(decision, Reject) and isinstance(decision.reason, str):
            return decision
        right = "route must return a Route, as in Route(view.id), or a Reject"
        raise wrong_answer("policies.routing", self.routing, right, decision, request)

    def force(self, request: Request, decision: Any) -> Any:
        """Another target than the policy's, which has been asked all the same, so that its draws and turns go on as
        they would; what it believes cached there is the index's word, if it goes by one."""
        target, prefill = self.forced.pop(request.id)
        if not isinstance(decision, Route) or (decision.target, decision.prefill) == (target, prefill):
            return decision
        place = self.views[target if prefill is None else prefill].index
        cached = 0
        if self.indexes:
            cached = self.indexes[0].matches(request.path)[place] * self.indexes[0].block_tokens
        return Route(target, "forced", cached, decision.priority, decision.scorecard, prefill)

    def no_permit(self, request: Request, refusal: Any) -> Reject:
        """Admission has had its say once more, when it was known where a request would go."""
        if isinstance(refusal, Reject) and isinstance(refusal.reason, str):
            return refusal
        right = "permit must return None or a Reject"
        raise wrong_answer("policies.admission", self.admission, right, refusal, request)

    def not_admitted(self, now_ps: int, request: Request, verdict: Reject | Delay) -> Reject | None:
        if not refuses(verdict):
            raise wrong_answer("policies.admission", self.admission, VERDICT, verdict, request)
        for journal in self.journals:
            journal.refused(now_ps, request, verdict)
        if not isinstance(verdict, Delay):
            return verdict
        times = self.asked_again[1] + 1 if self.asked_again[0] == request.id else 1
        if times > MOST_DELAYS:
            right = f"admit has put a request off {MOST_DELAYS:,} times; it must admit or reject it, or delay it longer"
            raise wrong_answer("policies.admission", self.admission, right, verdict, request)
        until_ps = now_ps + verdict.duration_ps
        heappush(self.held, (until_ps, request.id, times, request))
        self.put_off[request.id] = until_ps
        self.set_next()
        return None

    def pump(self, now_ps: int) -> Sent | None:
        """What becomes next of a request in the router's queue at this instant. The caller carries it out, so that the
        signals tell of it, and asks again until nothing more happens: first those that have waited too long go, then
        requests are sent in the queue's order while it is open, and then what is beyond its capacity is turned away.
        Where models have queues of their own, one after the other."""
        cluster = self.cluster
        cluster.now_ps = now_ps
        for group in self.groups:
            flow = group.flow
            cluster.instances, cluster.group = group.instances, group.number
            entry: Waiting | None = flow.expired(now_ps)
            answer: Flight | Reject | TimedOut
            if entry is not None:
                answer = TimedOut(entry.reason)
            elif group.instances and (entry := flow.take(cluster)) is not None:
                cluster.priority = entry.priority
                answer = self.route(now_ps, entry.request, entry.priority)
            elif group.empty_ps + self.patience_ps <= now_ps and (entry := flow.oldest()) is not None:
                answer = Reject(f"503: no instance came up within {duration_text(self.patience_ps)}")
            elif (entry := flow.excess()) is not None:
                answer = Reject(entry.reason)
            else:
                continue
            if self.state is not None:
                self.state.left(entry.request)
            return entry.request, answer
        self.set_next()
        return None

    def dispatch(
        self,
        now_ps: int,
        request: Request,
        route: Route,
        view: InstanceView,
        prefill: InstanceView | None,
        priority: Priority,
    ) -> Flight:
        tokens, cached, score = request.prompt_tokens, route.cached_tokens, priority.score
        if type(cached) is not int or not 0 <= cached <= MOST_TOKENS:
            right = "route must give cached_tokens as a whole number that is not negative"
            raise wrong_answer("policies.routing", self.routing, right, cached, request)
        if route.priority is not None:
            if not is_number(route.priority):
                right = "route must give priority as a finite number"
                raise wrong_answer("policies.routing", self.routing, right, route.priority, request)
            score = route.priority
        pending = tokens - cached
        if pending < 0:
            pending = 0
        flight = Flight(request, view, cached, pending, score, priority.hints, route.reason)
        self.flights[request.id] = flight
        if prefill is None:
            if view.role == "prefill":
                right = "route must give as target an instance that generates, and this one to 'prefill'"
                raise wrong_answer("policies.routing", self.routing, right, route.target, request)
        else:
            self.dispatch_prefill(flight, prefill)
        flight.depart()
        if self.state is not None:
            self.state.routed(request)
        for index in self.indexes:
            index.touch(view.index, request.path)
        if self.observers:
            self.tell(Routed(now_ps, request, view, flight.prefill))
        return flight

    def checked(self, target: str, request: Request) -> InstanceView:
        """An instance that the routing policy has named, which must be one that can serve the request."""
        try:
            view = self.views.get(target)
        except TypeError:  # not even hashable
            view = None
        if view is None:
            raise wrong_target(self.routing, target, "is not an instance of this cluster", request)
        if view.state not in SERVING:
            raise wrong_target(self.routing, target, f"is {view.state} and takes no requests", request)
        if self.by_model is not None and request.model not in view.serves:
            raise wrong_target(self.routing, target, f"does not serve model {shown(request.model)}", request)
        return view

    def dispatch_prefill(self, flight: Flight, view: InstanceView) -> None:
        """The prompt is computed on another instance than that which generates."""
        request = flight.request
        if view.role != "prefill" or flight.view.role != "decode" or view.pool != flight.view.pool:
            right = "route must give 'prefill' an instance of that role, and one of role 'decode' of its pool as target"
            raise wrong_answer("policies.routing", self.routing, right, (view.id, flight.view.id), request)
        flight.prefill = view
        for index in self.indexes:
            index.touch(view.index, request.path)

    # --- instances that come and go --------------------------------------------------------------------------------

    def instance_changed(self, now_ps: int, index: int, state: str) -> None:
        """An instance gets into another state."""
        view = self.ordered[index]
        was, view.state = view.state, state
        if state == "stopped":
            for believed in self.indexes:
                believed.clear(index)
            for journal in self.journals:
                journal.stopped(index)
        for group in self.groups:
            if view in group.members:
                group.regroup(now_ps)
        if self.observers:
            self.tell(InstanceChanged(now_ps, view, was))

    def take_over(self, now_ps: int, flights: dict[int, Flight]) -> None:
        """What another control plane has sent to these instances is this one's from now on. The views count it
        already; the policies hear of it as if it were sent now."""
        for request_id, flight in flights.items():
            request = flight.request
            self.flights[request_id] = flight
            if self.state is not None:
                self.state.arrived(now_ps, request)
                self.state.routed(request)
            for index in self.indexes:
                index.touch(flight.view.index, request.path)
            if self.observers:
                self.tell(Routed(now_ps, request, flight.view, flight.prefill))
                if flight.first_ps >= 0:
                    self.tell(FirstToken(now_ps, request, flight.view))

    def resend(self, now_ps: int, request: Request, priority: Priority) -> Flight | Reject | None:
        """A request that its instance has lost, or that has to leave it, is routed again; None where it has to wait for
        an instance to come up."""
        cluster = self.cluster
        group = self.groups[0] if self.by_model is None else self.by_model.get(request.model)
        if group is None:
            return Reject(f"404: no instance serves model {shown(request.model)}")
        cluster.now_ps, cluster.priority = now_ps, priority
        cluster.instances, cluster.group = group.instances, group.number
        if group.instances:
            return self.route(now_ps, request, priority)
        self.strand(now_ps, request, group, priority)
        return None

    def metrics(self) -> dict[str, float]:
        """What the policies report of themselves; where models have queues of their own, each of these by its model."""
        found: dict[str, float] = {}
        for name, stage in self.stages.items():
            if name == "flow" and len(self.groups) > 1:
                for group in self.groups:
                    own = figures(group.flow, "policies.flow") if hasattr(group.flow, "metrics") else {}
                    found.update({f"{figure}:{group.name}": value for figure, value in own.items()})
            elif hasattr(stage, "metrics"):
                found.update(figures(stage, f"policies.{name}"))
        return found
