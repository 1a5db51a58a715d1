"""The `kv:` section: the blocks of one instance's GPU, and the stores below it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from headway.config.keys import QUIET, Doc, Duration, Positive, write
from headway.config.section import read
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.latency.links import ProfileName, Speed, fill_link
from headway.types import Json

Share = Annotated[float, Meta(gt=0, le=1)]
TIERS: Final = {  # the fastest first, each with its usual link
    "cpu": {"latency": "20us", "bandwidth": "50GB/s"},
    "storage": {"latency": "1ms", "bandwidth": "5GB/s"},
}


class TierSpec(Struct, frozen=True):
    """A store of KV blocks below the GPU's: how many it holds, and the link to it."""

    blocks: Annotated[Positive, "what the store holds, for each instance, or in all where it is shared"]
    bandwidth: Annotated[
        Speed,
        Doc(
            "of the link to it, both ways together; transfers on it share it equally",
            default="cpu 50GB/s, storage 5GB/s",
        ),
    ]
    latency_ps: Annotated[Duration, Doc("added to each transfer", default="cpu 20us, storage 1ms")]
    shared: Annotated[bool, "one store and one link for all instances of the deployment"] = False
    profile: ProfileName = None


class Kv(Struct, frozen=True):
    """The KV cache of one instance."""

    block_tokens: Annotated[int, Meta(ge=1, le=65_536), "tokens of a KV block"] = 16
    gpu_blocks: Annotated[
        Positive | Literal["auto"],
        "blocks of an instance; `auto`: what `utilization` of the memory leaves beside the weights. The resolved "
        "scenario of a run has the number",
    ] = "auto"
    utilization: Annotated[Share, "share of the GPU's memory that the engine may take"] = 0.9
    prefix_caching: Annotated[bool, "whether blocks are found again"] = True
    entry: Annotated[
        Literal["chunk", "prompt"],
        "what must find room for a waiting request to enter: its first chunk, or its whole prompt "
        "(vLLM since 2026: scheduler_reserve_full_isl)",
        QUIET,
    ] = "chunk"
    eviction: Annotated[
        Literal["lru", "lfu", "priority"],
        "which cached content goes first, on the GPU and in the stores below it: the least recently released; the "
        "least often used, then that; the one whose last user has the lowest priority, then that",
    ] = "lru"
    tiers: Annotated[Any, Doc("stores below the GPU, below", type="mapping")] = None
    offload: Annotated[
        Literal["lazy", "eager", "threshold"],
        "when content comes down to `tiers`, if there are any: when the GPU evicts it; a copy as soon as it is "
        "computed; when the GPU is fuller than `offload_level`",
    ] = "lazy"
    preemption: Annotated[
        Literal["recompute", "swap"],
        "what becomes of a decoding request that has to yield its blocks: swap puts them into the CPU's memory, where "
        "there is room, and brings them back",
    ] = "recompute"
    offload_level: Annotated[
        Share,
        "of threshold: share of the GPU's blocks, cached ones included, above which the next to be evicted come down",
    ] = 0.9

    def resolved(self) -> Json:
        """Keys about tiers are written only if there are tiers."""
        if self.tiers is not None:
            return write(self) | {"tiers": {name: write(tier) for name, tier in self.tiers.items()}}
        eviction = ("eviction",) if self.eviction == "lru" else ()
        return write(self, without=("tiers", "offload", "offload_level", "preemption", *eviction))

    def validate(self, where: str) -> Kv:
        if self.preemption == "swap" and (not isinstance(self.tiers, dict) or "cpu" not in self.tiers):
            raise HeadwayError(f"{where}.preemption: to swap takes a CPU tier; give 'tiers' with 'cpu'.")
        if self.tiers is None:
            return self
        if not isinstance(self.tiers, dict):
            raise HeadwayError(f"{where}.tiers: expected a mapping of {', '.join(TIERS)}, got {shown(self.tiers)}.")
        tiers = {}
        for name, tier in self.tiers.items():
            place = f"{where}.tiers.{name}"
            if name not in TIERS:
                raise HeadwayError(f"{place}: there is no such tier.{suggest(str(name), TIERS)}")
            if not isinstance(tier, TierSpec):
                tier = read(TierSpec, fill_link(tier, place, TIERS[name]), place)
            tiers[name] = tier
        if not self.prefix_caching:
            raise HeadwayError(f"{where}.tiers: keep cached prefixes; leave 'prefix_caching' on with them.")
        return msgspec.structs.replace(self, tiers={name: tiers[name] for name in TIERS if name in tiers} or None)
