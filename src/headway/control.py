"""The control plane: admission, then routing, over the router's own counts.

It does no I/O and has no clock: the event loop of the simulator or the asyncio loop of a gateway tells it the time and
what happened, and carries out what it answers.
"""

from __future__ import annotations

from typing import Any

from headway.policies.context import Context
from headway.registry import figures
from headway.types import (
    ADMIT,
    Admit,
    ClusterView,
    Event,
    Finished,
    FirstToken,
    HeadwayError,
    InstanceView,
    Reject,
    Request,
    Route,
    Routed,
)
from headway.wording import shown


class Flight:
    """A request on its way: where it went, and its prompt tokens believed uncached until the first token comes."""

    __slots__ = ("pending", "request", "view")

    def __init__(self, request: Request, view: InstanceView, pending: int) -> None:
        self.request = request
        self.view = view
        self.pending = pending


class ControlPlane:
    """Runs the policies in order and keeps the exact counters of each instance."""

    def __init__(self, context: Context, admission: Any, routing: Any) -> None:
        self.cluster = ClusterView(context.instances)
        self.views = {view.id: view for view in context.instances}
        self.admission = admission
        self.routing = routing
        for stage in (admission, routing):
            bind = getattr(stage, "bind", None)
            if bind is not None:
                bind(context)
        self.indexes = context.indexes
        self.observers = [stage.observe for stage in (admission, routing) if hasattr(stage, "observe")]
        self.flights: dict[int, Flight] = {}

    def arrive(self, now_ps: int, request: Request) -> InstanceView | Reject:
        """Decide on a request: the instance it goes to, or why it is turned away."""
        cluster = self.cluster
        cluster.now_ps = now_ps
        verdict = self.admission.admit(request, cluster)
        if verdict is not ADMIT and not isinstance(verdict, Admit):
            if isinstance(verdict, Reject) and isinstance(verdict.reason, str):
                return verdict
            raise wrong_answer("admission", self.admission, "admit must return ADMIT or a Reject", verdict, request)
        decision = self.routing.route(request, cluster)
        if isinstance(decision, Route):
            return self.dispatch(now_ps, request, decision)
        if isinstance(decision, Reject) and isinstance(decision.reason, str):
            return decision
        right = "route must return a Route, as in Route(view.id), or a Reject"
        raise wrong_answer("routing", self.routing, right, decision, request)

    def dispatch(self, now_ps: int, request: Request, route: Route) -> InstanceView:
        try:
            view = self.views.get(route.target)
        except TypeError:  # not even hashable
            view = None
        if view is None:
            name = type(self.routing).__name__
            raise HeadwayError(
                f"policies.routing: {name} routed to {shown(route.target)}, which is not an instance of this cluster."
            )
        tokens, cached = request.prompt_tokens, route.cached_tokens
        if type(cached) is not int or cached < 0:
            right = "route must give cached_tokens as a whole number that is not negative"
            raise wrong_answer("routing", self.routing, right, cached, request)
        pending = tokens - cached
        if pending < 0:
            pending = 0
        view.inflight += 1
        view.inflight_tokens += tokens
        view.pending_prefill_tokens += pending
        self.flights[request.id] = Flight(request, view, pending)
        for index in self.indexes:
            index.touch(view.index, request.path)
        if self.observers:
            self.tell(Routed(now_ps, request, view))
        return view

    def first_token(self, now_ps: int, request_id: int) -> None:
        flight = self.flights[request_id]
        flight.view.pending_prefill_tokens -= flight.pending
        flight.pending = 0
        if self.observers:
            self.tell(FirstToken(now_ps, flight.request, flight.view))

    def finished(self, now_ps: int, request_id: int, outcome: str, output_tokens: int) -> None:
        flight = self.flights.pop(request_id)
        request, view = flight.request, flight.view
        view.inflight -= 1
        view.inflight_tokens -= request.prompt_tokens
        view.pending_prefill_tokens -= flight.pending
        if self.observers:
            self.tell(Finished(now_ps, request, view, outcome, output_tokens))

    def tell(self, event: Event) -> None:
        for observe in self.observers:
            observe(event)

    def metrics(self) -> dict[str, float]:
        """What the policies report of themselves."""
        found: dict[str, float] = {}
        for name, stage in (("admission", self.admission), ("routing", self.routing)):
            if hasattr(stage, "metrics"):
                found.update(figures(stage, f"policies.{name}"))
        return found


def wrong_answer(stage: str, policy: Any, right: str, answer: object, request: Request) -> HeadwayError:
    name = type(policy).__name__
    return HeadwayError(f"policies.{stage}: {name}.{right}, got {shown(answer)}, at request {request.id}.")
