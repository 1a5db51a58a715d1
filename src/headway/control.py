"""The control plane: admission, then priority, then routing, over the router's own counts.

It does no I/O and has no clock: the event loop of the simulator or the asyncio loop of a gateway tells it the time and
what happened, and carries out what it answers. What it holds back comes up again at `next_ps`.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import isfinite
from typing import Any, Final

from headway.policies.context import Context
from headway.registry import figures
from headway.types import (
    ADMIT,
    NO_PRIORITY,
    Admit,
    ClusterView,
    Delay,
    Event,
    Finished,
    FirstToken,
    HeadwayError,
    InstanceView,
    Priority,
    Reject,
    Request,
    Route,
    Routed,
)
from headway.wording import shown

NEVER: Final = 1 << 120  # later than any instant
LONGEST_PS: Final = 1 << 62  # of a delay


class Flight:
    """A request on its way: where it went and how much it matters there, and its prompt tokens believed uncached until
    the first token comes."""

    __slots__ = ("pending", "priority", "request", "view")

    def __init__(self, request: Request, view: InstanceView, pending: int, priority: float) -> None:
        self.request = request
        self.view = view
        self.pending = pending
        self.priority = priority


class ControlPlane:
    """Runs the policies in order and keeps the exact counters of each instance."""

    def __init__(self, context: Context, admission: Any, priority: Any, routing: Any) -> None:
        self.cluster = ClusterView(context.instances)
        self.views = {view.id: view for view in context.instances}
        self.admission = admission
        self.priority = priority
        self.routing = routing
        self.stages = {"admission": admission, "priority": priority, "routing": routing}
        for stage in self.stages.values():
            bind = getattr(stage, "bind", None)
            if bind is not None:
                bind(context)
        self.indexes = context.indexes
        self.observers = [stage.observe for stage in self.stages.values() if hasattr(stage, "observe")]
        self.flights: dict[int, Flight] = {}
        self.held: list[tuple[int, int, Request]] = []  # heap of what admission put off: when to ask again, id
        self.next_ps = NEVER  # when the first of them comes up again

    # --- the way of a request ----------------------------------------------------------------------------------

    def arrive(self, now_ps: int, request: Request) -> Flight | Reject | None:
        """Decide on a request, one that comes or one that comes up again: its flight, why it is turned away, or None
        where it is held back."""
        cluster = self.cluster
        cluster.now_ps = now_ps
        cluster.priority = NO_PRIORITY
        verdict = self.admission.admit(request, cluster)
        if verdict is not ADMIT and not isinstance(verdict, Admit):
            return self.not_admitted(now_ps, request, verdict)
        priority = self.priority.prioritise(request, cluster)
        if priority is not NO_PRIORITY:
            check_priority(self.priority, priority, request)
            cluster.priority = priority
        decision = self.routing.route(request, cluster)
        if isinstance(decision, Route):
            return self.dispatch(now_ps, request, decision, priority.score)
        if isinstance(decision, Reject) and isinstance(decision.reason, str):
            return decision
        right = "route must return a Route, as in Route(view.id), or a Reject"
        raise wrong_answer("routing", self.routing, right, decision, request)

    def not_admitted(self, now_ps: int, request: Request, verdict: object) -> Reject | None:
        if isinstance(verdict, Reject) and isinstance(verdict.reason, str):
            return verdict
        right = "admit must return ADMIT, a Reject, or a Delay of at least 1 ps"
        if not isinstance(verdict, Delay):
            raise wrong_answer("admission", self.admission, right, verdict, request)
        duration = verdict.duration_ps
        if type(duration) is not int or not 1 <= duration <= LONGEST_PS:
            raise wrong_answer("admission", self.admission, right, verdict, request)
        heappush(self.held, (now_ps + duration, request.id, request))
        self.next_ps = self.held[0][0]
        return None

    def due(self, now_ps: int) -> Request | None:
        """The next request that was held back until now; the caller lets it `arrive` again."""
        if self.next_ps != now_ps:
            return None
        _, _, request = heappop(self.held)
        self.next_ps = self.held[0][0] if self.held else NEVER
        return request

    def dispatch(self, now_ps: int, request: Request, route: Route, priority: float) -> Flight:
        try:
            view = self.views.get(route.target)
        except TypeError:  # not even hashable
            view = None
        if view is None:
            name = type(self.routing).__name__
            raise HeadwayError(
                f"policies.routing: {name} routed to {shown(route.target)}, which is not an instance of this cluster, "
                f"at request {request.id}."
            )
        tokens, cached = request.prompt_tokens, route.cached_tokens
        if type(cached) is not int or cached < 0:
            right = "route must give cached_tokens as a whole number that is not negative"
            raise wrong_answer("routing", self.routing, right, cached, request)
        if route.priority is not None:
            if not is_number(route.priority):
                right = "route must give priority as a finite number"
                raise wrong_answer("routing", self.routing, right, route.priority, request)
            priority = route.priority
        pending = tokens - cached
        if pending < 0:
            pending = 0
        view.inflight += 1
        view.inflight_tokens += tokens
        view.pending_prefill_tokens += pending
        flight = self.flights[request.id] = Flight(request, view, pending, priority)
        for index in self.indexes:
            index.touch(view.index, request.path)
        if self.observers:
            self.tell(Routed(now_ps, request, view))
        return flight

    # --- what happened -----------------------------------------------------------------------------------------

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

    def give_up(self, request_id: int) -> bool:
        """The client of a request that is held back has gone. False if it is not held back."""
        kept = [entry for entry in self.held if entry[1] != request_id]
        found = len(kept) < len(self.held)
        if found:
            heapify(kept)
            self.held = kept
            self.next_ps = kept[0][0] if kept else NEVER
        return found

    def tell(self, event: Event) -> None:
        for observe in self.observers:
            observe(event)

    def metrics(self) -> dict[str, float]:
        """What the policies report of themselves."""
        found: dict[str, float] = {}
        for name, stage in self.stages.items():
            if hasattr(stage, "metrics"):
                found.update(figures(stage, f"policies.{name}"))
        return found


def check_priority(policy: Any, priority: object, request: Request) -> None:
    right = "prioritise must return a Priority with a finite score"
    if not isinstance(priority, Priority) or not is_number(priority.score):
        raise wrong_answer("priority", policy, right, priority, request)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def wrong_answer(stage: str, policy: Any, right: str, answer: object, request: Request) -> HeadwayError:
    name = type(policy).__name__
    return HeadwayError(f"policies.{stage}: {name}.{right}, got {shown(answer)}, at request {request.id}.")
