"""One scenario, simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from headway.latency import Estimator, capacity_score
from headway.results.recorder import RunFacts
from headway.results.result import Result
from headway.scenario import DEFAULT, STAGES, Cluster, Scenario, Source
from headway.sim.cluster import ClusterSetup, Simulation
from headway.streams import stream
from headway.types import InstanceView

Progress = Callable[[int, int], None]  # requests arrived so far, simulated picoseconds so far


def simulate(
    scenario: Source = DEFAULT,
    *,
    overrides: Iterable[str] = (),
    admission: Any = None,
    routing: Any = None,
    scheduler: Any = None,
    progress: Progress | None = None,
) -> Result:
    """Run a scenario (a path, a preset's name, a mapping or a `Scenario`) and give its result.

    `overrides` are `key.path=value` changes. A stage's policy may be given as an object of the caller's own; the
    scenario's is used otherwise.
    """
    loaded = Scenario.load(scenario, overrides)
    policies = {"admission": admission, "routing": routing, "scheduler": scheduler}
    resolved = loaded.resolved()
    for stage in STAGES:
        if policies[stage] is None:
            policies[stage] = loaded.policies.build(stage)
        else:
            resolved["policies"][stage] = {"name": type(policies[stage]).__name__}
    setup = cluster_setup(loaded)
    rng = partial(stream, loaded.seed.simulation)
    simulation = Simulation(setup, **policies, rng=rng, estimator=Estimator(setup.latency))
    recorder = simulation.run(loaded.workload.plan(loaded.seed.workload, loaded.cluster.shape().name), progress)
    return Result.of(resolved, recorder, simulation.stats, run_facts(loaded, simulation))


def cluster_setup(scenario: Scenario) -> ClusterSetup:
    """The instances of a scenario, all alike and all idle."""
    cluster, card = scenario.cluster, scenario.cluster.card()
    return ClusterSetup(
        views=views(cluster),
        latency=cluster.latency_model(),
        block_tokens=cluster.kv.block_tokens,
        max_batch_tokens=cluster.max_batch_tokens,
        max_batch_size=cluster.max_batch_size,
        prefix_caching=cluster.kv.prefix_caching,
        idle_watts=card.idle_watts * cluster.tp,
        busy_watts=card.busy_watts * cluster.tp,
        leap=scenario.leap,
        horizon_ps=scenario.horizon_ps,
        warmup=scenario.warmup,
    )


def views(cluster: Cluster) -> list[InstanceView]:
    """One view an instance, named instance-0, instance-1, ..."""
    shape, blocks = cluster.shape(), cluster.kv_blocks()
    capacity = capacity_score(shape, cluster.card(), cluster.tp)
    return [
        InstanceView(
            index,
            f"instance-{index}",
            model=shape.name,
            kv_blocks=blocks,
            max_batch_size=cluster.max_batch_size,
            max_batch_tokens=cluster.max_batch_tokens,
            max_queue=cluster.max_queue,
            capacity=capacity,
        )
        for index in range(cluster.instances)
    ]


def run_facts(scenario: Scenario, simulation: Simulation) -> RunFacts:
    return RunFacts(
        started_ps=simulation.started_ps,
        ended_ps=simulation.ended_ps,
        block_tokens=scenario.cluster.kv.block_tokens,
        warmup=scenario.warmup,
        slo_ttft_ps=scenario.slo.ttft_ps,
        slo_tpot_ps=scenario.slo.tpot_ps,
        gpus_per_instance=scenario.cluster.tp,
        usd_per_gpu_hour=scenario.cluster.card().usd_per_hour,
        policy_metrics=simulation.policy_metrics,
    )
