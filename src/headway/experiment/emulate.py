"""The engines of a scenario, for the emulator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from headway.experiment.engines import engines
from headway.scenario.scenario import DEFAULT, Source, load_data, validate
from headway.sim.setup import ClusterSetup

ANY: Final = {"requests": 1, "rate": "1/s", "prompt_tokens": 1, "output_tokens": 1}  # nobody sends it


def engine_room(source: Source | None, changes: Iterable[str] = ()) -> tuple[ClusterSetup, Any]:
    """Its instances, idle, each step planned alone; and their scheduler. What the scenario says of routers and of
    requests concerns others, and places where an instance may come to stand later are left out."""
    data = load_data(DEFAULT if source is None else source, tuple(changes))
    scenario = validate({"workload": ANY, **data})
    kv = scenario.cluster.kv
    found = [engine for engine in engines(scenario.cluster) if engine.view.state == "ready"]
    for index, engine in enumerate(found):
        engine.view.index = index
    setup = ClusterSetup(
        engines=found,
        block_tokens=kv.block_tokens,
        prefix_caching=kv.prefix_caching,
        leap=False,
        horizon_ps=None,
        warmup=0,
        jitter_seed=scenario.seed.jitter,
    )
    return setup, scenario.policies.build("scheduler")
