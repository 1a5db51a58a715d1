"""The requests that a router has sent to instances, as it counts them itself, and who hears what becomes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from headway.config.wording import shown
from headway.control.flight import Flight
from headway.control.router_state import RouterState
from headway.errors import HeadwayError
from headway.policies.context import Context
from headway.views.cluster import ClusterView
from headway.views.events import Event, Finished, FirstToken, Handed


class FlightBook:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.cluster = ClusterView(context.instances)
        self.ordered = context.instances
        self.views = {view.id: view for view in context.instances if view.id}
        self.flights: dict[int, Flight] = {}
        self.state: RouterState | None = None  # what it keeps of its past, where a policy reads that
        self.observers: list[Callable[[Event], None]] = []

    def first_token(self, now_ps: int, request_id: int) -> None:
        flight = self.flights[request_id]
        request, view = flight.request, flight.view
        flight.first_token(now_ps)
        if self.state is not None:
            self.state.first_token(now_ps, request, view)
        if self.observers:
            self.tell(FirstToken(now_ps, request, view))

    def flight(self, request_id: int) -> Flight:
        return self.flights[request_id]

    def handed(self, now_ps: int, request_id: int) -> Flight:
        """A request's prompt has been computed on one instance, and it goes on to the other."""
        flight = self.flights[request_id]
        prefill = flight.prefill
        assert prefill is not None
        flight.leave_prefill()
        if self.observers:
            self.tell(Handed(now_ps, flight.request, flight.view, prefill))
        return flight

    def finished(self, now_ps: int, request_id: int, outcome: str, output_tokens: int) -> None:
        flight = self.flights.pop(request_id)
        request, view = flight.request, flight.view
        flight.arrive(outcome == "completed", output_tokens)
        if self.state is not None:
            streamed = outcome == "completed" and flight.first_ps >= 0  # an answer may also come all at once
            decode_ps = now_ps - flight.first_ps if streamed else None
            self.state.finished(now_ps, request, view, output_tokens, decode_ps)
        if self.observers:
            self.tell(Finished(now_ps, request, view, outcome, output_tokens))

    def tell(self, event: Event) -> None:
        self.cluster.now_ps = event.at_ps
        for observe in self.observers:
            observe(event)

    def check(self, foreign: Sequence[int] | None = None) -> None:
        """What the views show in flight is what this router has there, and what it knows of others': views are not for
        policies to write to."""
        there = Counter(flight.view.index for flight in self.flights.values())
        there.update(flight.prefill.index for flight in self.flights.values() if flight.prefill is not None)
        for view in self.views.values():
            wanted = there[view.index] + (0 if foreign is None else foreign[view.index])
            if view.inflight != wanted:
                raise HeadwayError(
                    f"policies: {view.id} shows {shown(view.inflight)} requests in flight and has {wanted}; "
                    f"a policy reads the views and must not write to them."
                )
