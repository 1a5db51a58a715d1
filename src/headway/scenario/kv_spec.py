"""The `kv:` section: the KV blocks on the GPUs of an instance, and the slower tiers."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from headway.config.keys import QUIET, Doc, Duration, Form, Positive, write
from headway.config.schema import Mapped
from headway.config.section import read
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.latency.links import ProfileName, Speed, fill_link
from headway.types import Json

Share = Annotated[float, Meta(gt=0, le=1)]
TIERS: Final = {  # the tiers, from the fastest to the slowest, with the default values of the link to each
    "cpu": {"latency": "20us", "bandwidth": "50GB/s"},
    "storage": {"latency": "1ms", "bandwidth": "5GB/s"},
}


class TierSpec(Struct, frozen=True):
    """A tier: a store of KV blocks that is slower than the GPU, and the link to it."""

    blocks: Annotated[Positive, "capacity of the store in blocks: for each instance, or in total if it is shared"]
    bandwidth: Annotated[
        Speed,
        Doc(
            "bandwidth of the link, both directions together; concurrent transfers share it equally",
            default="cpu 50GB/s, storage 5GB/s",
        ),
    ]
    latency_ps: Annotated[Duration, Doc("latency of each transfer", default="cpu 20us, storage 1ms")]
    shared: Annotated[bool, "whether all instances of the deployment share one store and one link"] = False
    profile: ProfileName = None


TIER_FORM: Final = Form.of(Mapped(dict.fromkeys(TIERS, TierSpec)))


class Kv(Struct, frozen=True):
    """The KV cache of one instance."""

    block_tokens: Annotated[int, Meta(ge=1, le=65_536), "tokens per KV block"] = 16
    gpu_blocks: Annotated[
        Positive | Literal["auto"],
        "KV blocks of an instance; `auto` computes them from the memory that the weights leave free, up to "
        "`utilization`. If `latency` names an `engine`, it also subtracts what that engine takes. The resolved "
        "scenario of a run shows the number. If the model has groups of layers, as with sliding windows, this is the "
        "number of pages that the groups share, which vLLM calls GPU blocks",
    ] = "auto"
    utilization: Annotated[Share, "share of the GPU's memory that the engine may use"] = 0.9
    prefix_caching: Annotated[bool, "whether requests reuse cached blocks of equal prefixes"] = True
    entry: Annotated[
        Literal["chunk", "prompt"],
        "what must fit into the free blocks before a waiting request enters the batch: its first chunk, or its whole "
        "prompt (vLLM since 2026: scheduler_reserve_full_isl)",
        QUIET,
    ] = "chunk"
    hybrid: Annotated[
        bool,
        "for models with sliding windows: whether blocks behind the window are released, as vLLM's hybrid KV cache "
        "manager does; if false, every layer keeps every token",
        QUIET,
    ] = True
    states: Annotated[
        Literal["none", "align", "all"],
        "for models with state layers: from which states later requests can continue (vLLM: mamba_cache_mode). all: "
        "those at the ends of blocks; align: those at the ends of chunks, which then end with blocks; none: prefixes "
        "are not cached at all",
        QUIET,
    ] = "none"
    eviction: Annotated[
        Literal["lru", "lfu", "priority"],
        "which cached content is evicted first, on the GPU and in the tiers: the least recently released (lru), the "
        "least often used (lfu), or that of the lowest priority of its last user; lru order decides ties",
    ] = "lru"
    tiers: Annotated[Any, TIER_FORM, Doc("stores below the GPU, see below", type="mapping")] = None
    offload: Annotated[
        Literal["lazy", "eager", "threshold"],
        "when content moves to the tiers: when the GPU evicts it (lazy), as a copy when it is computed (eager), or "
        "when the GPU's use exceeds `offload_level` (threshold)",
    ] = "lazy"
    preemption: Annotated[
        Literal["recompute", "swap"],
        "what happens to the blocks of a preempted decoding request: they are recomputed later, or swapped to the "
        "CPU tier, if it has room, and loaded again",
    ] = "recompute"
    offload_level: Annotated[
        Share,
        "with threshold: share of the GPU's blocks, cached ones included, above which the GPU offloads content in "
        "eviction order",
    ] = 0.9

    def resolved(self) -> Json:
        """Return the section in the form that it has in a YAML file. Include the keys about tiers only if the cache has
        tiers."""
        if self.tiers is not None:
            return write(self) | {"tiers": {name: write(tier) for name, tier in self.tiers.items()}}
        eviction = ("eviction",) if self.eviction == "lru" else ()
        return write(self, without=("tiers", "offload", "offload_level", "preemption", *eviction))

    def validate(self, where: str) -> Kv:
        if self.preemption == "swap" and (not isinstance(self.tiers, dict) or "cpu" not in self.tiers):
            raise HeadwayError(f"{where}.preemption: swap needs a CPU tier; add 'cpu' to 'tiers'.")
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
            raise HeadwayError(f"{where}.tiers: tiers need prefix caching; set 'prefix_caching: true'.")
        return msgspec.structs.replace(self, tiers={name: tiers[name] for name in TIERS if name in tiers} or None)
