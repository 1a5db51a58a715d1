"""A drawn scenario through the engine, without the public API around it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import headway.policies  # noqa: F401  declares the built-in policies
from drawn_tier import drawn_kv
from headway.policies import registry
from headway.sim.setup import ClusterSetup, EngineSetup
from headway.sim.simulation import Simulation
from headway.types import Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView
from headway.workload.traffic import Traffic
from strategies import Scenario


class Given:
    """Routes each request where the scenario says."""

    def __init__(self, targets: list[int]) -> None:
        self.targets = targets
        self.entry = registry.Entry("routing", "given", Given, (), (), False)

    def route(self, request: Request, cluster: ClusterView) -> Route:
        return Route(cluster.instances[self.targets[request.id]].id)


class Watching:
    """Sends requests in turn, and looks whenever it is told or asked something."""

    def __init__(self, look: Callable[[Simulation], None]) -> None:
        self.entry = registry.Entry("routing", "watching", Watching, (), (), False)
        self.look = look
        self.looks = 0
        self.simulation: Simulation

    def route(self, request: Request, cluster: ClusterView) -> Route:
        self.observe(None)
        return Route(cluster.instances[request.id % len(cluster.instances)].id)

    def observe(self, event: Any) -> None:
        self.looks += 1
        self.look(self.simulation)


class NoEstimate:
    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        return 0.0


def engine(
    scenario: Scenario, leap: bool | str, come: Traffic, routing: Any = None, trace: str = "minimal"
) -> Simulation:
    """The scenario, run; the requests are what comes."""
    drafts, most = scenario.speculation, scenario.max_batch_size
    if drafts is not None:
        most = drafts.sequences(most, scenario.max_batch_tokens)
    views = [
        InstanceView(
            index,
            f"instance-{index}",
            kv_blocks=scenario.blocks,
            max_batch_size=most,
            max_batch_tokens=scenario.max_batch_tokens,
            adapter_slots=scenario.slots,
        )
        for index in range(scenario.instances)
    ]
    setup = ClusterSetup(
        engines=[
            EngineSetup(
                view,
                scenario.latency if drafts is None else drafts.verification(scenario.latency),
                adapter_load_ps=scenario.load,
                kv=drawn_kv(scenario.tiers, scenario.offload, scenario.offload_level),
                block_bytes=scenario.block_bytes,
                schedules_ahead=scenario.ahead,
                rank=view.index if scenario.lockstep else 0,
                ranks=scenario.instances if scenario.lockstep else 1,
                lockstep=scenario.lockstep,
                speculation=None if drafts is None else drafts.setup(),
            )
            for view in views
        ],
        block_tokens=scenario.block_tokens,
        prefix_caching=scenario.prefix_caching,
        leap=leap,
        horizon_ps=scenario.horizon,
        warmup=scenario.warmup,
        trace=trace,
    )
    policy = scenario.policy
    if routing is None:
        routing = registry.build("routing", policy, "") if isinstance(policy, str) else Given(policy)
    admission = registry.build("admission", "always", "")
    scheduler = registry.build("scheduler", "fcfs", "")
    simulation = Simulation(
        setup, admission, registry.build("priority", "none", ""), routing, scheduler, Random, NoEstimate()
    )
    if isinstance(routing, Watching):
        routing.simulation = simulation
    simulation.run(come)
    return simulation
