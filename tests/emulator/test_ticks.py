"""Metrics pages of fixed instants show what a simulated router sees that polls at those instants."""

from __future__ import annotations

from typing import Any

from test_follows_the_simulator import PLAIN, SHARED, Kept, SlowClock

import headway
from headway.emulator.emulated_metrics import EmulatedMetrics
from headway.emulator.room import Room
from headway.experiment.engines import engine_room
from headway.gateway.signals.scrape import parse
from headway.scenario.scenario import Scenario
from headway.types import PS_PER_SECOND, Request, Route
from headway.views.cluster import ClusterView

TICK_S = 0.05
Told = dict[int, list[tuple[int, int, int]]]  # by tick: running, queued, blocks of each instance
CROWDED: dict[str, Any] = PLAIN | {
    "workload": SHARED | {"rate": "80/s"},
    "cluster": {"instances": 3, "kv": {"gpu_blocks": 150}, "max_batch_size": 4},
    "signals": {"poll_interval": "50ms"},
}


class Noting:
    """Routes in turn, and records the signals."""

    def __init__(self) -> None:
        self.told: Told = {}
        self.count = 0

    def route(self, request: Request, cluster: ClusterView) -> Route:
        views = cluster.instances
        assert views[0].observed_at is not None
        self.told[views[0].observed_at] = [(view.running, view.queued, view.kv_used) for view in views]
        self.count += 1
        return Route(views[self.count % len(views)].id)


def test_a_tick_finds_the_engines_as_a_simulated_poll_does_however_late_the_timers_are() -> None:
    scenario, noting, clock = Scenario.load(CROWDED), Noting(), SlowClock()
    result = headway.simulate(scenario, routing=noting)
    room = Room(clock, *engine_room(scenario), tick_s=TICK_S)  # type: ignore[arg-type]
    room.now_ps = lambda: clock.now  # type: ignore[method-assign]
    figures = [EmulatedMetrics(instance, "m", 16, True) for instance in room.instances]
    outcome: Told = {}

    def hear() -> None:
        for one in figures:
            one.freeze()
        outcome[room.tick_ps] = [(one.frozen[0], one.frozen[1], one.frozen[2]) for one in figures if one.frozen]

    room.on_tick.append(hear)
    for row, planned in enumerate(scenario.workload.plan(scenario.seed.workload, scenario.cluster.default_model())):
        clock.now = planned.request.arrival_ps
        job = room.job(planned.request, planned.output_tokens, planned.output_key)
        room.submit(result.requests["instance"][row], job, Kept())
    told = {tick: values for tick, values in noting.told.items() if tick > 0}
    assert len(told) > 10 and any(queued for values in told.values() for _, queued, _ in values)
    assert {tick: outcome[tick] for tick in told} == told


def test_a_page_tells_of_the_last_tick_and_not_of_now() -> None:
    scenario, clock = Scenario.load(PLAIN), SlowClock()
    room = Room(clock, *engine_room(scenario), speed=0.5, tick_s=TICK_S)  # type: ignore[arg-type]
    room.now_ps = lambda: clock.now  # type: ignore[method-assign]
    figures = EmulatedMetrics(room.instances[0], "m", 16, True)
    room.on_tick.append(figures.freeze)
    assert room.tick_ps == TICK_S * 0.5 * PS_PER_SECOND  # in simulated time
    planned = next(iter(scenario.workload.plan(1, scenario.cluster.default_model())))
    clock.now = room.tick_ps + 1
    room.catch_up()
    room.submit(0, room.job(planned.request, planned.output_tokens, 7), Kept())
    assert len(room.instances[0].batch.running) == 1 and parse(figures.page(), "vllm", None)["running"] == 0
    clock.now = room.tick_ps
    room.catch_up()
    assert parse(figures.page(), "vllm", None)["running"] == 1
