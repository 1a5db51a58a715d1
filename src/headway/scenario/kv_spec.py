"""The `kv:` section: the blocks of one instance's GPU, and the stores below it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from headway.config.section import read
from headway.config.units import duration_text
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.latency import read_link
from headway.types import Json

BlockTokens = Annotated[int, Meta(ge=1, le=65_536)]
Positive = Annotated[int, Meta(ge=1, le=10**9)]
Share = Annotated[float, Meta(gt=0, le=1)]
TIERS: Final = {"cpu": ("20us", "50GB/s"), "storage": ("1ms", "5GB/s")}  # latency and bandwidth, the fastest first


class TierSpec(Struct, frozen=True):
    """A store of KV blocks below the GPU's: how many it holds, and the link to it."""

    blocks: int
    bandwidth: int  # bytes a second
    latency_ps: int
    shared: bool = False  # one store for all instances of the deployment

    def explicit(self) -> Json:
        return {
            "blocks": self.blocks,
            "bandwidth": f"{self.bandwidth}B/s",
            "latency": duration_text(self.latency_ps),
            "shared": self.shared,
        }


class _TierKeys(Struct):
    blocks: Positive
    profile: str | None = None
    bandwidth: Any = None
    latency: Any = None
    shared: bool = False


class Kv(Struct, frozen=True):
    """The KV cache of one instance."""

    block_tokens: BlockTokens = 16
    gpu_blocks: Positive | Literal["auto"] = "auto"  # auto: what the GPU's memory leaves beside the weights
    utilization: Share = 0.9  # share of the GPU's memory that the engine may take
    prefix_caching: bool = True
    entry: Literal["chunk", "prompt"] = "chunk"  # what must find room for a request to enter the batch
    eviction: Literal["lru", "lfu", "priority"] = "lru"  # of the GPU's cache, and of the stores below it
    tiers: Any = None  # stores below the GPU's, by name
    offload: Literal["lazy", "eager", "threshold"] = "lazy"
    preemption: Literal["recompute", "swap"] = "recompute"
    offload_level: Share = 0.9  # of the GPU's blocks: above it, threshold moves content down

    def explicit(self) -> Json:
        found: Json = msgspec.to_builtins(self)
        if self.entry == "chunk":
            del found["entry"]
        if self.eviction == "lru" and self.tiers is None:
            del found["eviction"]
        if self.tiers is None:
            for name in ("tiers", "offload", "offload_level", "preemption"):
                del found[name]
        else:
            found["tiers"] = {name: tier.explicit() for name, tier in self.tiers.items()}
        return found


def read_kv(section: Any, where: str) -> Kv:
    kv = read(Kv, section, where)
    if kv.preemption == "swap" and (not isinstance(kv.tiers, dict) or "cpu" not in kv.tiers):
        raise HeadwayError(f"{where}.preemption: to swap takes a CPU tier; give 'tiers' with 'cpu'.")
    if kv.tiers is None:
        return kv
    if not isinstance(kv.tiers, dict):
        raise HeadwayError(f"{where}.tiers: expected a mapping of {', '.join(TIERS)}, got {shown(kv.tiers)}.")
    found = {}
    for name, keys in kv.tiers.items():
        place = f"{where}.tiers.{name}"
        if name not in TIERS:
            raise HeadwayError(f"{place}: there is no such tier.{suggest(str(name), TIERS)}")
        if not isinstance(keys, TierSpec):
            keys = read_tier(keys, str(name), place)
        found[name] = keys
    if not kv.prefix_caching:
        raise HeadwayError(f"{where}.tiers: keep cached prefixes; leave 'prefix_caching' on with them.")
    return msgspec.structs.replace(kv, tiers={name: found[name] for name in TIERS if name in found} or None)


def read_tier(keys: Any, name: str, where: str) -> TierSpec:
    given = read(_TierKeys, keys, where)
    latency_ps, bandwidth = read_link(given.profile, given.latency, given.bandwidth, TIERS[name], where)
    return TierSpec(given.blocks, bandwidth, latency_ps, given.shared)
