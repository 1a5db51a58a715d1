"""Requests in flight, as the router that sent them counts them; and the other answers that a request may get."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import Hints, Reject, Request
from headway.views.instance import InstanceView


class Flight(Struct, eq=False, gc=False):
    """Where a request went, and the priority that its instance gives it."""

    request: Request
    view: InstanceView
    cached: int  # prompt tokens believed cached there
    pending: int  # those believed uncached, until the first token comes
    priority: float
    hints: Hints
    reason: str = ""  # the policy's
    prefill: InstanceView | None = None  # where the prompt is computed, if elsewhere, until it is computed
    first_ps: int = -1  # when the first token came


class Queued:
    """A request was admitted and waits in the router's queue."""

    __slots__ = ()


QUEUED: Final = Queued()


class TimedOut(Struct, frozen=True, gc=False):
    """A request waited in the router's queue for as long as one may."""

    reason: str


class Unserved(Reject, frozen=True, gc=False):
    """No instance came up for as long as a request may wait for one."""


Answer = Flight | Reject | TimedOut | Queued | None  # None: the request waits, and `ControlPlane.wake` answers later
Decision = tuple[Request, Answer]  # on a request that waited


class Flights:
    """Requests in flight by id. The view of an instance counts each of them once while it is there."""

    __slots__ = ("by_id",)

    def __init__(self) -> None:
        self.by_id: dict[int, Flight] = {}

    def send(self, flight: Flight) -> None:
        request, view, prefill = flight.request, flight.view, flight.prefill
        self.by_id[request.id] = flight
        view.inflight += 1
        view.inflight_tokens += request.prompt_tokens
        view.routed += 1
        if prefill is not None:
            prefill.inflight += 1
            prefill.inflight_tokens += request.prompt_tokens
            prefill.routed += 1
            view = prefill
        view.pending_prefill_tokens += flight.pending

    def first_token(self, now_ps: int, request_id: int) -> Flight:
        flight = self.by_id[request_id]
        (flight.prefill or flight.view).pending_prefill_tokens -= flight.pending
        flight.view.decode_tokens += flight.request.prompt_tokens
        flight.pending = 0
        flight.first_ps = now_ps
        return flight

    def hand_over(self, request_id: int) -> tuple[Flight, InstanceView]:
        """The prompt is computed on one instance, and the request moves to the other. Returns the first as well."""
        flight = self.by_id[request_id]
        prefill = flight.prefill
        assert prefill is not None
        _leave_prefill(flight, prefill)
        return flight, prefill

    def finish(self, request_id: int, completed: bool, output_tokens: int) -> Flight:
        flight = self.by_id.pop(request_id)
        if flight.prefill is not None:
            _leave_prefill(flight, flight.prefill)
        view, tokens = flight.view, flight.request.prompt_tokens
        view.inflight -= 1
        view.inflight_tokens -= tokens
        view.pending_prefill_tokens -= flight.pending
        if flight.first_ps >= 0:
            view.decode_tokens -= tokens
        if completed:
            view.completed += 1
        view.output_tokens += output_tokens
        return flight

    def check(self, views: Iterable[InstanceView], foreign: Sequence[int] | None = None) -> None:
        """Raise if a view shows another number of requests in flight than there are. `foreign` is how many of them
        other routers have reported, by instance."""
        counts = Counter(flight.view.index for flight in self.by_id.values())
        counts.update(flight.prefill.index for flight in self.by_id.values() if flight.prefill is not None)
        for view in views:
            expected = counts[view.index] + (0 if foreign is None else foreign[view.index])
            if view.inflight != expected:
                raise HeadwayError(
                    f"policies: {view.id} shows {shown(view.inflight)} requests in flight and has {expected}; "
                    f"a policy reads the views and must not write to them."
                )


def _leave_prefill(flight: Flight, prefill: InstanceView) -> None:
    """Count a request no longer at the instance that computed its prompt, or at which it ended."""
    prefill.inflight -= 1
    prefill.inflight_tokens -= flight.request.prompt_tokens
    prefill.pending_prefill_tokens -= flight.pending
    flight.pending = 0
    flight.prefill = None
