"""The instances of a cluster, ready to run and idle."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from headway.latency.shards import capacity_score
from headway.scenario.cluster_spec import Cluster, Engines
from headway.scenario.scenario import DEFAULT, Source, load_data, validate
from headway.sim.setup import ClusterSetup, EngineSetup, PoolSetup, TransferSetup
from headway.views.instance import InstanceView


def engines(cluster: Cluster) -> list[EngineSetup]:
    """instance-0, instance-1, ..., which serve whatever comes; or those of each deployment, NAME-0, NAME-1, ...

    Where prompts are computed apart, they are prefill-0, ..., decode-0, ...; or NAME-prefill-0, ..., NAME-decode-0, ...
    """
    if cluster.deployments is None:
        return _halves(cluster, 0, "", "default", ()) or _equal(cluster, 0, "instance", "default", ())
    setups: list[EngineSetup] = []
    for name, deployment in cluster.deployments.items():
        halves = _halves(deployment, len(setups), f"{name}-", name, deployment.names())
        setups += halves or _equal(deployment, len(setups), name, name, deployment.names())
    return setups


def _halves(spec: Engines, first: int, before: str, pool: str, serves: tuple[str, ...]) -> list[EngineSetup]:
    """The instances of a disaggregated deployment; none where it is not."""
    setups: list[EngineSetup] = []
    for role, half in spec.halves().items():
        engines = _equal(half, first + len(setups), f"{before}{role}", pool, serves)
        for engine in engines:
            engine.view.role = role
            if role == "prefill":
                grain = spec.transfer.grain_tokens(half.kv.block_tokens, half.max_batch_tokens)
                engine.transfer = TransferSetup(spec.transfer, half.shape().kv_bytes_per_token, grain)
        setups += engines
    return setups


def _equal(spec: Engines, first: int, name: str, pool: str, serves: tuple[str, ...]) -> list[EngineSetup]:
    shape, card, blocks, model = spec.shape(), spec.card(), spec.kv_blocks(), spec.latency_model()
    capacity = capacity_score(shape, card, spec.tp)
    setups = [
        EngineSetup(
            InstanceView(
                first + number,
                f"{name}-{number}",
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
        )
        for number in range(spec.bounds()[1])
    ]
    for engine in setups[spec.instances :]:  # a place where one may come to stand
        engine.view.state = "stopped"
    return setups


def pools(cluster: Cluster, build: Callable[[Any, str], Any]) -> list[PoolSetup]:
    """The pools that are scaled, each with its policy, over the places that `engines` gives their instances."""
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


# The engines of a scenario, for the emulator.

ANY: Final = {"requests": 1, "rate": "1/s", "prompt_tokens": 1, "output_tokens": 1}  # it is never sent


def engine_room(source: Source | None, changes: Iterable[str] = ()) -> tuple[ClusterSetup, Any]:
    """Its instances, idle, each step planned alone; and their scheduler. What the scenario says of routers and of
    requests concerns others, and places where an instance may come to stand later are left out."""
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
