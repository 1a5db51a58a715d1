"""Builds the idle instances of a cluster."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from headway.latency import KvLayout
from headway.latency.shards import capacity_score
from headway.scenario.cluster_spec import Cluster
from headway.scenario.engines_spec import Engines
from headway.scenario.scenario import DEFAULT, Source, load_data, validate
from headway.scenario.speculation_spec import DEFAULT_CLASS
from headway.sim.front_end import engine_view
from headway.sim.setup import ClusterSetup, EngineSetup, KvGroups, PoolSetup, SpeculationSetup, TransferSetup
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
                if engine.target is not None:
                    engine.target.role = role
                if role == "prefill":
                    grain = deployment.transfer.grain_tokens(half.kv.block_tokens, half.max_batch_tokens)
                    engine.transfer = TransferSetup(deployment.transfer, half.shape().kv_bytes_per_token, grain)
            if role != "prefill":  # a prefill instance never decodes
                _speculate(equal, half)
            setups += equal
    return setups


def _equal(spec: Engines, ids: list[str], first: int, pool: str, serves: tuple[str, ...]) -> list[EngineSetup]:
    """Return the instances of a pool: for each engine, one for each of its data-parallel ranks."""
    shape, card, blocks, model = spec.shape(), spec.card(), spec.kv_blocks(), spec.latency_model()
    capacity = capacity_score(shape, card, spec.tp, spec.dp)
    speculation = spec.speculates()
    groups = _groups(spec.kv_layout(), blocks, 0 if speculation is None else speculation.tokens)
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
                usd_per_hour=card.usd_per_hour * spec.tp,
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
            rank=(index - first) % spec.dp,
            ranks=spec.dp,
            lockstep=spec.in_lockstep(),
            schedules_ahead=spec.schedules_ahead(),
            groups=groups,
        )
        for index in range(first, first + spec.bounds()[1] * spec.dp)
    ]
    if spec.dp > 1 and spec.dp_balance == "vllm":
        hide_ranks(setups, spec.dp, spec.api_servers or spec.dp)
    for engine in setups[spec.instances * spec.dp :]:  # instances that the autoscaler may start
        engine.view.state = "stopped"
        if engine.target is not None:
            engine.target.state = "stopped"
    return setups


def hide_ranks(setups: list[EngineSetup], dp: int, servers: int) -> None:
    """Let the router see engines in the places of their ranks, because the engines choose ranks themselves."""
    for first in range(0, len(setups), dp):
        ranks = setups[first : first + dp]
        for engine in ranks:
            engine.target = InstanceView(engine.view.index, "")
        leader = ranks[0]
        leader.target = engine_view([engine.view for engine in ranks], leader.view.id.removesuffix("-rank-0"))
        leader.servers = servers


def _speculate(engines: list[EngineSetup], spec: Engines) -> None:
    """Let the engines speculate, if their pool does. A step has budget for all drafts of its decodes, so they limit the
    number of sequences."""
    speculation, verification = spec.speculates(), spec.verification()
    if speculation is None or verification is None:
        return
    rates, width = speculation.rates("cluster.speculation"), speculation.tokens + 1
    ahead = speculation.ahead("cluster.speculation")
    for engine in engines:
        engine.latency = verification
        engine.speculation = SpeculationSetup(rates, rates[DEFAULT_CLASS], width, ahead)
        engine.view.max_batch_size = min(engine.view.max_batch_size, engine.view.max_batch_tokens // width)
        engine.view._decode_tokens = width
        if engine.target is not None and engine.servers:
            engine.target.max_batch_size = engine.view.max_batch_size * engine.ranks
            engine.target._decode_tokens = width


def _groups(layout: KvLayout | None, pages: int, drafts: int) -> KvGroups | None:
    if layout is None:
        return None
    states = layout.sequence_pages(drafts)
    return KvGroups(pages, layout.full, layout.windows, layout.window, states, not layout.states, layout.aligned)


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
            direct = half.dp > 1 and half.dp_balance == "direct"
            setups.append(PoolSetup(id, name, first, half.instances, low, high, policy, half.dp, direct))
            first += high * half.dp
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
        if engine.target is not None:
            engine.target.index = index
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
