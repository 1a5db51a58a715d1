"""The requests in flight, and the control plane's answers for requests that are not in flight. The router's views also
count the requests in flight."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import Hints, Reject, Request
from headway.views.instance import InstanceView


class Flight(Struct, eq=False, gc=False):
    """A request in flight: its instance and its priority there."""

    request: Request
    view: InstanceView
    cached: int  # number of prompt tokens that are expected in the instance's cache
    pending: int  # number of prompt tokens that the instance is expected to compute; 0 after the first token
    priority: float
    hints: Hints
    reason: str = ""  # the reason that the policy gave for the route
    prefill: InstanceView | None = None  # the instance that computes the prompt, if it is not `view`; None afterwards
    first_ps: int = -1  # time of the first token; -1 if there is none yet
    expected: int = 0  # number of output tokens that the request is expected to generate; 0 without an estimator


class Queued:
    """The answer for a request that was admitted and waits in the router's queue."""


QUEUED: Final = Queued()


class TimedOut(Struct, frozen=True, gc=False):
    """The answer for a request that timed out in the router's queue."""

    reason: str


class Unserved(Reject, frozen=True, gc=False):
    """The answer for a request that waited too long for an instance to start."""


Answer = Flight | Reject | TimedOut | Queued | None  # None: the request waits, and `ControlPlane.wake` answers later
Decision = tuple[Request, Answer]  # a request that has waited, and the answer to it


class Flights(Struct, eq=False):
    """Stores the requests in flight by id, and updates the counts in the views of their instances."""

    by_id: dict[int, Flight] = {}

    def send(self, flight: Flight) -> None:
        request, view, prefill = flight.request, flight.view, flight.prefill
        self.by_id[request.id] = flight
        view.inflight += 1
        view.inflight_tokens += request.prompt_tokens
        view.routed += 1
        if flight.expected:
            view.expected_output_tokens += flight.expected
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
        """Move a request from its prefill instance, which has computed the prompt, to its decode instance. Return the
        request's flight and the prefill instance."""
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
        if flight.expected:
            view.expected_output_tokens -= flight.expected
        if completed:
            view.completed += 1
        view.output_tokens += output_tokens
        return flight

    def check(self, views: Iterable[InstanceView], foreign: Sequence[int] | None = None) -> None:
        """Raise an error if a view shows a wrong number of requests in flight. If other routers send requests to the
        same instances, `foreign` lists for each instance how many requests of other routers are in flight there."""
        counts = Counter(flight.view.index for flight in self.by_id.values())
        counts.update(flight.prefill.index for flight in self.by_id.values() if flight.prefill is not None)
        for view in views:
            expected = counts[view.index] + (0 if foreign is None else foreign[view.index])
            if view.inflight != expected:
                wrong = f"the view of {view.id} shows {shown(view.inflight)} requests in flight instead of {expected}"
                raise HeadwayError(f"policies: {wrong}. A policy must not write to the views.")


def _leave_prefill(flight: Flight, prefill: InstanceView) -> None:
    """Remove a request from the counts of its prefill instance."""
    prefill.inflight -= 1
    prefill.inflight_tokens -= flight.request.prompt_tokens
    prefill.pending_prefill_tokens -= flight.pending
    flight.pending = 0
    flight.prefill = None
