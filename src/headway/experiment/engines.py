"""The instances of a cluster, ready to run and idle."""

from __future__ import annotations

from headway.cluster_spec import Cluster, Engines
from headway.kv_spec import TierSpec
from headway.latency import capacity_score
from headway.sim.setup import EngineSetup, TierSetup
from headway.types import InstanceView


def engines(cluster: Cluster) -> list[EngineSetup]:
    """instance-0, instance-1, ..., which serve whatever comes; or those of each deployment, NAME-0, NAME-1, ..."""
    if cluster.deployments is None:
        return _equal(cluster, 0, "instance", "default", ())
    found: list[EngineSetup] = []
    for name, deployment in cluster.deployments.items():
        found += _equal(deployment, len(found), name, name, deployment.names())
    return found


def _equal(spec: Engines, first: int, name: str, pool: str, serves: tuple[str, ...]) -> list[EngineSetup]:
    shape, card, blocks, model = spec.shape(), spec.card(), spec.kv_blocks(), spec.latency_model()
    capacity = capacity_score(shape, card, spec.tp)
    return [
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
                tier_blocks={} if spec.kv.tiers is None else {name: one.blocks for name, one in spec.kv.tiers.items()},
            ),
            model,
            idle_watts=card.idle_watts * spec.tp,
            busy_watts=card.busy_watts * spec.tp,
            gpus=spec.tp,
            usd_per_gpu_hour=card.usd_per_hour,
            adapter_load_ps=0 if spec.adapters is None else spec.adapters.load_ps,
            tiers=None if spec.kv.tiers is None else [_tier(name, tier) for name, tier in spec.kv.tiers.items()],
            offload=spec.kv.offload,
            offload_level=spec.kv.offload_level,
            swaps=spec.kv.preemption == "swap",
            block_bytes=shape.kv_bytes_per_token * spec.kv.block_tokens,
            eviction=spec.kv.eviction,
        )
        for number in range(spec.instances)
    ]


def _tier(name: str, spec: TierSpec) -> TierSetup:
    return TierSetup(name, spec.blocks, spec.bandwidth, spec.latency_ps, spec.shared)
