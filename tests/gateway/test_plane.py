"""What the plane is told is enough to decide the same again."""

from __future__ import annotations

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from headway.control.flights import Flight
from headway.gateway.live_policies import read_policies
from headway.gateway.plane import Plane
from headway.types import Path, Request


@pytest.mark.parametrize("routing", ["round-robin", "lmetric", "power-of-two", "kv-aware"])
def test_inputs_that_were_written_down_decide_the_same_again(routing):
    def plane(tape=None):
        return Plane(4, read_policies({"routing": routing}), tape=tape)

    inputs, decided, again = [], [], []
    first = plane(lambda *one: inputs.append(one))
    for place in range(3):
        first.join(0, place, {"id": f"e{place}", "serves": []})
        first.changed(0, place, "ready")
    for number in range(40):
        request = Request(number, number * 10, 64, Path((number % 7,), (64,)))
        answer = first.arrive(number * 10, request)
        assert isinstance(answer, Flight)
        decided.append(answer.view.id)
        if number % 5 == 4:
            first.first_token(number * 10 + 1, number)
            first.finished(number * 10 + 2, number, "completed", 3)
        if number % 11 == 10:
            first.changed(number * 10 + 3, number % 3, "unreachable")
            first.changed(number * 10 + 4, number % 3, "ready")
    other = plane()
    for now_ps, kind, payload in [one for one in inputs if one[1] != "decided"]:
        answer = getattr(other, kind)(now_ps, *payload)
        if kind == "arrive":
            again.append(answer.view.id)
    assert again == decided
    assert len(set(decided)) > 1
