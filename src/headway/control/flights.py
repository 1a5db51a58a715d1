"""The requests that a router has sent to instances and that have not ended, as the router counts them itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from headway.config.wording import shown
from headway.control.flight import Flight
from headway.errors import HeadwayError
from headway.views.instance import InstanceView


class Flights:
    """Requests in flight by id. The view of an instance counts each of them once while it is there."""

    __slots__ = ("by_id",)

    def __init__(self) -> None:
        self.by_id: dict[int, Flight] = {}

    def send(self, flight: Flight) -> None:
        self.by_id[flight.request.id] = flight
        flight.depart()

    def first_token(self, now_ps: int, request_id: int) -> Flight:
        flight = self.by_id[request_id]
        flight.first_token(now_ps)
        return flight

    def hand_over(self, request_id: int) -> tuple[Flight, InstanceView]:
        """Count a request no longer at the instance that has computed its prompt; its flight, and that instance."""
        flight = self.by_id[request_id]
        prefill = flight.prefill
        assert prefill is not None
        flight.leave_prefill()
        return flight, prefill

    def finish(self, request_id: int, completed: bool, output_tokens: int) -> Flight:
        flight = self.by_id.pop(request_id)
        flight.arrive(completed, output_tokens)
        return flight

    def check(self, views: Iterable[InstanceView], foreign: Sequence[int] | None = None) -> None:
        """Raise if a view shows another number of requests in flight than there are. `foreign` is how many of them
        other routers have reported, by instance."""
        counts = Counter(flight.view.index for flight in self.by_id.values())
        counts.update(flight.prefill.index for flight in self.by_id.values() if flight.prefill is not None)
        for view in views:
            wanted = counts[view.index] + (0 if foreign is None else foreign[view.index])
            if view.inflight != wanted:
                raise HeadwayError(
                    f"policies: {view.id} shows {shown(view.inflight)} requests in flight and has {wanted}; "
                    f"a policy reads the views and must not write to them."
                )
