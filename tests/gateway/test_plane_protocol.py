"""The simulator and the gateway call one control plane in the same way: one recorded input, the same actions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from headway.control.flights import Decision, Flight
from headway.control.plane import ControlPlane
from headway.gateway.deciding.policy_versions import UNSERVED, PlaneSettings, StepTimes
from headway.gateway.live_policies import build_policies, read_policies
from headway.gateway.plane import Plane, in_words
from headway.policies.context import Context
from headway.streams import stream
from headway.types import RETRIED, Path, Priority, Request
from headway.views.instance import InstanceView

ENGINES = 3
MS = 10**9
PATIENCE_PS = 8 * MS
BUCKET = {"name": "token-bucket", "rate": 220, "burst": 2, "on_empty": "delay"}
BANDS = {"name": "bands", "saturation": "concurrency", "max_inflight": 2, "ttl": "90ms"}
Input = tuple[int, str, tuple[Any, ...]]


def record(policies: Any) -> tuple[list[Input], list[tuple[int, str]]]:
    """Record traffic of a gateway: engines join and leave, clients give up, requests get lost."""
    tape: list[Input] = []
    plane = Plane(PlaneSettings(ENGINES, policies, patience_ps=PATIENCE_PS), lambda *entry: tape.append(entry))
    for place in range(ENGINES):
        plane.join(0, place, {"id": f"e{place}", "serves": []})
    rng = Random(5)
    for now in range(MS, 1200 * MS, MS):
        while plane.next_ps <= now:
            plane.wake(now)
        event, flights = rng.random(), plane.control.flights.by_id
        if event < 0.25:
            number = len(plane_requests(tape))
            prompt = Path((number % 6,), (64,))
            plane.arrive(now, Request(number, now, 64, prompt, session=f"s{number % 6}"))
        elif event < 0.5 and flights:
            plane.finished(now, rng.choice(list(flights)), "completed", 4)
        elif event < 0.6:
            waiting = [flight.request.id for flight in flights.values() if flight.first_ps < 0]
            if waiting:
                plane.first_token(now, waiting[0])
        elif event < 0.63 and tape:
            plane.give_up(now, rng.randrange(max(1, len(plane_requests(tape)))))
        elif event < 0.7:
            place = rng.randrange(ENGINES)
            plane.changed(now, place, "unreachable" if plane.views[place].state == "ready" else "ready")
            for number in [flight.request.id for flight in flights.values() if flight.view.state == "unreachable"]:
                plane.resend(now, number)
        plane.wake(now)
    inputs = [entry for entry in tape if entry[1] != "decided"]
    return inputs, [entry[2] for entry in tape if entry[1] == "decided"]  # type: ignore[misc]


def plane_requests(tape: list[Input]) -> list[Input]:
    return [entry for entry in tape if entry[1] == "arrive"]


class Loop:
    """Calls a control plane as the event loop of the simulator does."""

    def __init__(self, policies: Any) -> None:
        views = [InstanceView(place, f"e{place}") for place in range(ENGINES)]
        for view in views:
            view.state = "stopped"
        stages = build_policies(policies)
        context = Context(views, partial(stream, 0), StepTimes(), 16)
        order = [stages[name] for name in ("admission", "priority", "routing", "flow")]
        self.control = ControlPlane(context, *order, patience_ps=PATIENCE_PS, unserved=UNSERVED)
        self.actions: list[tuple[int, str]] = []

    def carry_out(self, request: Request, answer: Any) -> None:
        self.actions.append((request.id, in_words(answer)))

    def follow(self, now_ps: int, ask: Callable[[int], Decision | None]) -> None:
        while (decision := ask(now_ps)) is not None:
            self.carry_out(*decision)

    def arrive(self, now_ps: int, request: Request) -> None:
        self.carry_out(request, self.control.arrive(now_ps, request))

    def wake(self, now_ps: int) -> None:
        self.follow(now_ps, self.control.wake)
        self.follow(now_ps, self.control.pump)

    def resend(self, now_ps: int, number: int, prefill: bool, tried: list[int]) -> None:
        flight = self.control.flight(number)
        self.control.on_finished(now_ps, number, RETRIED, 0)
        priority = Priority(flight.priority, flight.hints)
        self.carry_out(flight.request, self.control.resend(now_ps, flight.request, priority))

    def changed(self, now_ps: int, place: int, state: str) -> None:
        self.control.instance_changed(now_ps, place, state)

    def give_up(self, now_ps: int, number: int) -> None:
        self.control.give_up(number)

    def first_token(self, now_ps: int, number: int) -> None:
        self.control.on_first_token(now_ps, number)

    def finished(self, now_ps: int, number: int, outcome: str, output_tokens: int) -> None:
        self.control.on_finished(now_ps, number, outcome, output_tokens)


@pytest.mark.parametrize("routing", ["round-robin", "power-of-two", "random"])
@pytest.mark.parametrize("flow", ["none", BANDS])
def test_one_recorded_input_gives_the_same_actions_in_both_loops(routing: str, flow: Any) -> None:
    policies = read_policies({"routing": routing, "admission": BUCKET, "flow": flow})
    inputs, decided = record(policies)
    loop = Loop(policies)
    for now_ps, kind, values in inputs:
        if kind != "join":  # the simulator's instances have their places from the beginning
            getattr(loop, kind)(now_ps, *values)
    assert loop.actions == decided
    words = {words for _, words in decided}
    assert {"later", "e0", "e1", "e2", f"refused: {UNSERVED}"} <= words
    assert flow == "none" or "queued" in words
    loop.control.check()


def test_both_loops_give_the_same_kinds_of_answers() -> None:
    policies = read_policies({"routing": "round-robin"})
    plane, loop = Plane(PlaneSettings(1, policies)), Loop(policies)
    plane.join(0, 0, {"id": "e0", "serves": []})
    plane.changed(0, 0, "ready")
    loop.changed(0, 0, "ready")
    request = Request(0, 1, 64, Path((), ()))
    answers = [plane.arrive(1, request), loop.control.arrive(1, request)]
    assert all(isinstance(answer, Flight) and answer.view.id == "e0" for answer in answers)
    assert plane.next_ps == loop.control.next_ps
