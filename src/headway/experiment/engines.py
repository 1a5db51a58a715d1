"""Builds the idle instances of a cluster."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from headway.latency import KvLayout
from headway.latency.shards import capacity_score
from headway.scenario.cluster_spec import Cluster, Engines
from headway.scenario.scenario import DEFAULT, Source, load_data, validate
from headway.sim.grouped_cache import KvGroups
from headway.sim.setup import ClusterSetup, EngineSetup, PoolSetup, TransferSetup
from headway.views.instance import InstanceView


def engines(cluster: Cluster) -> list[EngineSetup]:
    """Return the instances of all pools, including those that scaling may add, in the order of `instance_ids`."""
    ids = cluster.instance_ids()
    setups: list[EngineSetup] = []
    for name, deployment in cluster.by_name().items():
        for role, half in (deployment.halves() or {"": deployment}).items():
            equal = _equal(half, ids, len(setups), name, deployment.names())
            for engine in equal if role else ():
                engine.view.role = role
                if role == "prefill":
                    grain = deployment.transfer.grain_tokens(half.kv.block_tokens, half.max_batch_tokens)
                    engine.transfer = TransferSetup(deployment.transfer, half.shape().kv_bytes_per_token, grain)
            setups += equal
    return setups


def _equal(spec: Engines, ids: list[str], first: int, pool: str, serves: tuple[str, ...]) -> list[EngineSetup]:
    shape, card, blocks, model = spec.shape(), spec.card(), spec.kv_blocks(), spec.latency_model()
    capacity = capacity_score(shape, card, spec.tp)
    groups = _groups(spec.kv_layout(), blocks)
    if groups is not None:
        blocks = groups.blocks
    setups = [
        EngineSetup(
            InstanceView(
                index,
                ids[index],
                model=shape.name,
                pool=pool,
                kv_blocks=blocks,
                max_batch_size=spec.max_batch_size,
                max_batch_tokens=spec.max_batch_tokens,
                max_queue=spec.max_queue,
                capacity=capacity,
                adapter_slots=None if spec.adapters is None else spec.adapters.slots,
                serves=serves,
                tier_blocks={name: tier.blocks for name, tier in (spec.kv.tiers or {}).items()},
            ),
            model,
            idle_watts=card.idle_watts * spec.tp,
            busy_watts=card.busy_watts * spec.tp,
            gpus=spec.tp,
            usd_per_gpu_hour=card.usd_per_hour,
            adapter_load_ps=0 if spec.adapters is None else spec.adapters.load_time_ps,
            kv=spec.kv,
            block_bytes=shape.kv_bytes_per_token * spec.kv.block_tokens,
            groups=groups,
        )
        for index in range(first, first + spec.bounds()[1])
    ]
    for engine in setups[spec.instances :]:  # instances that the autoscaler may start
        engine.view.state = "stopped"
    return setups


def _groups(layout: KvLayout | None, pages: int) -> KvGroups | None:
    if layout is None:
        return None
    return KvGroups(pages, layout.full, layout.windows, layout.window, layout.states)


def pools(cluster: Cluster, build: Callable[[Any, str], Any]) -> list[PoolSetup]:
    """Return the pools with their scaling policies and the indices of their instances in `engines`."""
    setups: list[PoolSetup] = []
    first = 0
    for name, deployment in cluster.by_name().items():
        where = "cluster" if cluster.deployments is None else f"cluster.deployments.{name}"
        for role, half in (deployment.halves() or {"": deployment}).items():
            low, high = half.bounds()
            id = list(cluster.scaling_pools())[len(setups)]
            policy = build(half.scaling, f"{where}.{role}.scaling" if role else f"{where}.scaling")
            setups.append(PoolSetup(id, name, first, half.instances, low, high, policy))
            first += high
    return setups


ANY: Final = {"requests": 1, "rate": "1/s", "prompt_tokens": 1, "output_tokens": 1}  # a placeholder, never sent


def engine_room(source: Source | None, changes: Iterable[str] = ()) -> tuple[ClusterSetup, Any]:
    """Return the ready instances of a scenario and their scheduler, for the emulator. `leap` is off, so that the
    instances simulate each step separately."""
    data = load_data(DEFAULT if source is None else source, tuple(changes))
    scenario = validate({"workload": ANY, **data})
    kv = scenario.cluster.kv
    ready = [engine for engine in engines(scenario.cluster) if engine.view.state == "ready"]
    for index, engine in enumerate(ready):
        engine.view.index = index
    setup = ClusterSetup(
        engines=ready,
        block_tokens=kv.block_tokens,
        prefix_caching=kv.prefix_caching,
        leap=False,
        horizon_ps=None,
        warmup=0,
        jitter_seed=scenario.seed.jitter,
    )
    return setup, scenario.policies.build("scheduler")
