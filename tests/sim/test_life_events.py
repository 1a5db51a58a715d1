"""What must hold at every event of any run in which instances come and go: the bounds of each pool, the states that
every router knows, and who is said to be where."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings

import headway
import test_exactness as drawn
from headway import Route
from headway.experiment.run import prepare
from headway.registry import Entry
from headway.results.recorder import IN_FLIGHT
from headway.sim.clock import Simulation
from headway.types import SERVING, Scale
from lived import MS


class Absurd:
    """Asks for numbers that no pool may have, and for others; after a while only for more, so that all may end."""

    def scale(self, pool: Any) -> Scale:
        if pool.now_ps > 200 * MS:
            return Scale(10**6, "more")
        wanted = (0, 10**6, 1, pool.maximum + 1, pool.replicas + 1, max(0, pool.replicas - 1), 2)
        return Scale(wanted[(pool.now_ps // 10**8 + pool.inflight) % len(wanted)], "why not")


class Watcher:
    """A router that looks behind the scenes at every event: at the states of all instances, and at who is where."""

    simulation: ClassVar[Simulation]
    seen: ClassVar[dict[str, int]]

    def __init__(self) -> None:
        self.entry = Entry("routing", "watcher", Watcher, (), (), oracle=False)

    def route(self, request: Any, cluster: Any) -> Route:
        assert all(view.state in SERVING for view in cluster.instances)
        self.states()
        self.bound()
        return Route(cluster.instances[request.id * 7 % len(cluster.instances)].id)

    def observe(self, event: Any) -> None:
        kind = type(event).__name__
        self.seen[kind] = self.seen.get(kind, 0) + 1
        places = self.simulation.capacity.lifecycle.places
        if kind == "Routed":
            for view in (event.instance, event.prefill):
                assert view is None or view.state == places[view.index].state in SERVING
        elif kind == "InstanceChanged":
            assert event.instance.state == places[event.instance.index].state
            self.bounds(event.at_ps)
            self.bound()

    def states(self) -> None:
        """Every router knows them as they are."""
        simulation = self.simulation
        places = simulation.capacity.lifecycle.places
        for plane in [simulation.control] if simulation.routers is None else simulation.routers.planes:
            assert [view.state for view in plane.ordered] == [place.state for place in places]

    def bounds(self, now: int) -> None:
        simulation = self.simulation
        lifecycle = simulation.capacity.lifecycle
        struck = simulation.recorder.struck
        crashed = bool(struck) and struck[-1].at_ps == now  # it is being replaced
        for pool in simulation.capacity.setup.pools:
            held = [place for place in lifecycle.of(pool) if place.state != "stopped"]
            assert len(held) <= pool.maximum
            assert crashed or lifecycle.count(pool) >= pool.minimum

    def bound(self) -> None:
        """Who is said to be at an instance is there, or is about to come from where its prompt is computed."""
        simulation = self.simulation
        ended = {job.row for job in simulation.done}
        for instance, said in zip(simulation.instances, simulation.losses.bound, strict=True):
            there = [
                *instance.running,
                *instance.loading,
                *instance.ready,
                *instance.waiting.values(),
                *instance.handing,
            ]
            found = {job.row for job in there if not job.withdrawn}
            assert found <= set(said)
            for row in set(said) - found - ended:
                handover = said[row].awaits
                assert handover is not None and (not handover.begun or handover.source.expired)


def watched(found: dict[str, Any], leap: bool | str) -> dict[str, int]:
    """What the watcher saw of a run in which it routes and somebody absurd scales."""
    found = {key: value for key, value in found.items() if key not in ("sessions", "shedder")} | {"leap": leap}
    found["policies"] = {
        stage: spec for stage, spec in found["policies"].items() if stage not in ("routing", "scaling")
    }
    if found["scaling"]["interval"] == "137us":
        found["scaling"] = found["scaling"] | {"interval": "3ms"}  # it would take too long
    prepared = prepare(headway.Scenario.load(found), routing=Watcher(), scaling=Absurd())
    Watcher.simulation, Watcher.seen = prepared.simulation(), {}
    recorder = Watcher.simulation.run(prepared.traffic())
    if found.get("horizon") is None:
        assert not any(Watcher.simulation.losses.bound)
        assert not Watcher.simulation.losses.moving
        assert not recorder.outcome.count(IN_FLIGHT)
    return Watcher.seen


@pytest.mark.parametrize(("leap", "examples"), [(True, 40), (False, 10), ("random-cuts", 10)])
def test_bounds_states_and_places_are_right_at_every_event_of_any_run(
    leap: bool | str, examples: int, tmp_path: Path
) -> None:
    seen: dict[str, int] = {}

    @settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(drawn.scenarios("living, scattered", tmp_path))
    def holds(found: dict[str, Any]) -> None:
        for kind, count in watched(found, leap).items():
            seen[kind] = seen.get(kind, 0) + count

    holds()
    assert min(seen["InstanceChanged"], seen["Routed"]) > 5 * examples
