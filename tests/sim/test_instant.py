"""What a policy is told of one instant comes in a fixed order: by kind, then by request, never by instance."""

from __future__ import annotations

from typing import Any

import pytest

import headway
from headway import ClusterView, Request, Route

Json = dict[str, Any]
Heard = tuple[float, str, int]  # when in ms, what, of which request
MS = 10**9
LEAPS = pytest.mark.parametrize("leap", [True, False, "random-cuts"])


class Listener:
    """Sends the first request to the last instance, the next to the one before, and so on; notes all it hears."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []

    def route(self, request: Request, cluster: ClusterView) -> Route:
        return Route(cluster.instances[-1 - request.id % len(cluster.instances)].id)

    def observe(self, event: Any) -> None:
        self.heard.append((event.at_ps / MS, type(event).__name__, event.request.id))


def hear(workload: Json, leap: bool | str) -> tuple[list[Heard], headway.Result]:
    """All that is told of a run on three instances that take 1 ms a token."""
    listener = Listener()
    even = {"model": "fixed", "prefill_tokens_per_s": 1000, "decode_tokens_per_s": 1000}
    cluster = {"instances": 3, "latency": even}
    workload = {"arrival": "constant", **workload}
    result = headway.simulate({"workload": workload, "cluster": cluster, "leap": leap}, routing=listener)
    return listener.heard, result


@LEAPS
def test_what_happens_at_one_instant_is_told_by_request_and_not_by_instance(leap: bool | str) -> None:
    """Six requests at once, two on each instance, in step with one another from the first to the last."""
    workload = {"requests": 6, "rate": "1000000000/s", "prompt_tokens": 4, "output_tokens": 3}
    heard, result = hear(workload, leap)
    assert result.requests["instance"] == [2, 1, 0, 2, 1, 0]
    together = [("Routed", 0), ("FirstToken", 8), ("Finished", 10)]
    assert heard == [(at, kind, request) for kind, at in together for request in range(6)]


@LEAPS
def test_first_tokens_are_told_before_the_arrivals_of_their_instant_and_ends_after_them(leap: bool | str) -> None:
    """One request a millisecond, each with 1 ms of prefill and 1 ms of decode on an idle instance."""
    heard, result = hear({"requests": 4, "rate": "1000/s", "prompt_tokens": 1, "output_tokens": 2}, leap)
    assert result.requests["arrival_ps"] == [0, MS, 2 * MS, 3 * MS]
    assert heard == [
        (0, "Routed", 0),
        (1, "FirstToken", 0),
        (1, "Routed", 1),
        (2, "FirstToken", 1),
        (2, "Routed", 2),
        (2, "Finished", 0),
        (3, "FirstToken", 2),
        (3, "Routed", 3),
        (3, "Finished", 1),
        (4, "FirstToken", 3),
        (4, "Finished", 2),
        (5, "Finished", 3),
    ]
