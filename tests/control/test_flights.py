"""Requests in flight: the views count each of them once at each instance where it is."""

from __future__ import annotations

import pytest

from headway.control.flights import Flight, Flights
from headway.errors import HeadwayError
from headway.types import Path, Request
from headway.views.instance import InstanceView


def flight(number: int, view: InstanceView, prefill: InstanceView | None = None) -> Flight:
    return Flight(Request(number, 0, 100, Path((), ())), view, 20, 80, 0.0, {}, prefill=prefill)


def counts(view: InstanceView) -> tuple[int, int, int, int]:
    return view.inflight, view.inflight_tokens, view.pending_prefill_tokens, view.decode_tokens


def test_a_flight_is_counted_from_when_it_is_sent_until_it_ends() -> None:
    flights, view = Flights(), InstanceView(0, "i0")
    flights.send(flight(7, view))
    assert counts(view) == (1, 100, 80, 0) and list(flights.by_id) == [7]
    assert flights.first_token(5, 7).first_ps == 5
    assert counts(view) == (1, 100, 0, 100)
    flights.finish(7, completed=True, output_tokens=3)
    assert counts(view) == (0, 0, 0, 0) and flights.by_id == {}
    assert (view.completed, view.output_tokens) == (1, 3)


def test_a_request_whose_prompt_is_computed_apart_counts_at_both_until_it_is_handed_over() -> None:
    flights, decode, prefill = Flights(), InstanceView(0, "d"), InstanceView(1, "p")
    flights.send(flight(0, decode, prefill))
    assert counts(decode) == (1, 100, 0, 0) and counts(prefill) == (1, 100, 80, 0)
    flights.check([decode, prefill])
    assert flights.hand_over(0)[1] is prefill
    assert counts(decode) == (1, 100, 0, 0) and counts(prefill) == (0, 0, 0, 0)
    flights.check([decode, prefill])


def test_a_view_that_somebody_has_written_to_is_found() -> None:
    flights, view = Flights(), InstanceView(0, "i0")
    flights.send(flight(0, view))
    flights.check([view])
    view.inflight = 3
    flights.check([view], foreign=[2])
    with pytest.raises(HeadwayError, match="the view of i0 shows 3 requests in flight instead of 1"):
        flights.check([view])
