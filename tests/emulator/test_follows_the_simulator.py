"""The emulator follows the simulator: exactly by its own clock, and closely by the wall clock."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from emulated import Emulated
from paced_client import Paced, drive

import headway
from headway.emulator.room import Room
from headway.experiment.engines import engine_room
from headway.scenario.scenario import Scenario
from headway.sim.job import Job

SHARED = {
    "requests": 60,
    "rate": "12/s",
    "prompt_tokens": 600,
    "output_tokens": 24,
    "prefix": {"groups": 4, "tokens": 400},
}
PLAIN: dict[str, Any] = {"workload": SHARED, "cluster": {"instances": 3}, "policies": {"routing": "round-robin"}}
CASES = {
    "plain": PLAIN,
    "preempted": PLAIN
    | {
        "workload": SHARED | {"output_tokens": 200},
        "cluster": {"instances": 3, "kv": {"gpu_blocks": 90}, "max_batch_tokens": 256},
    },
    "shortest first": PLAIN | {"policies": {"routing": "round-robin", "scheduler": "sjf"}},
    "tiers": PLAIN | {"cluster": {"instances": 3, "kv": {"gpu_blocks": 150, "tiers": {"cpu": {"blocks": 2000}}}}},
}


class SlowClock:
    """A loop whose timers never fire, so that every event is late."""

    def __init__(self) -> None:
        self.now = 0

    def time(self) -> float:
        return 0.0

    def call_later(self, delay: float, callback: Any) -> asyncio.TimerHandle:
        class Handle:
            def cancel(self) -> None: ...

        return Handle()  # type: ignore[return-value]


class Kept:
    def __init__(self) -> None:
        self.tokens: list[tuple[int, int]] = []
        self.end = -1

    def on_tokens(self, tokens: int, now: int) -> None:
        self.tokens.append((tokens, now))

    def on_finished(self, tokens: int, now: int) -> None:
        if not self.tokens or self.tokens[-1][0] < tokens:
            self.tokens.append((tokens, now))
        self.end = now


@pytest.mark.parametrize("name", CASES)
def test_its_times_are_those_of_the_simulator_however_late_its_timers_are(name: str) -> None:
    scenario = Scenario.load(CASES[name])
    result = headway.simulate(scenario)
    clock = SlowClock()
    room = Room(clock, *engine_room(scenario))  # type: ignore[arg-type]
    room.now_ps = lambda: clock.now  # type: ignore[method-assign]
    kept: list[Kept] = []
    places = result.requests["instance"]
    for row, planned in enumerate(scenario.workload.plan(scenario.seed.workload, scenario.cluster.default_model())):
        clock.now = planned.request.arrival_ps
        kept.append(Kept())
        job: Job = room.job(planned.request, planned.output_tokens, planned.output_key)
        room.submit(places[row], job, kept[-1])
    clock.now = 10**16
    room.catch_up()
    assert not room.sinks
    assert [one.tokens[0] for one in kept] == [(1, at) for at in result.requests["first_token_ps"]]
    assert [one.end for one in kept] == list(result.requests["finished_ps"])
    for one, count in zip(kept, result.requests["output_tokens"], strict=True):
        assert [tokens for tokens, _ in one.tokens] == list(range(1, count + 1))
    if name == "preempted":
        assert any(result.requests["preemptions"])


@pytest.mark.full
def test_clients_see_the_simulators_times_by_the_wall_clock() -> None:
    """Steps last more than 20 ms. The bounds, in simulated time, allow for a busy machine."""
    scenario = Scenario.load(
        PLAIN | {"workload": SHARED | {"requests": 30, "rate": "24/s"}, "cluster": {"instances": 1}}
    )
    result, speed = headway.simulate(scenario), 0.25
    one = Emulated(scenario=scenario, speed=speed)
    try:
        plan = list(scenario.workload.plan(scenario.seed.workload, scenario.cluster.default_model()))
        seen: list[Paced] = asyncio.run(drive(one.url(), plan, speed))
    finally:
        one.stop()
    came, tokens = result.requests["arrival_ps"], result.requests["output_tokens"]
    assert [len(paced.times) for paced in seen] == tokens
    for column, token in (("first_token_ps", 0), ("finished_ps", -1)):
        simulated = [(at - start) / 1e12 for at, start in zip(result.requests[column], came, strict=True)]
        measured = [(paced.times[token] - paced.due) * speed for paced in seen]
        late = sorted(there - here for there, here in zip(measured, simulated, strict=True))
        print(f"{column}: {mean(simulated) * 1e3:.2f} ms simulated, {mean(measured) * 1e3:.2f} ms seen")
        assert abs(late[len(late) // 2]) < 0.02
        assert mean(measured) == pytest.approx(mean(simulated), rel=0.5, abs=0.05)


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
