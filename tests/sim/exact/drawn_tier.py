"""A store below the GPU as tests draw it, and the settings that give an engine such stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

from headway.scenario.kv_spec import Kv, TierSpec


class DrawnTier(NamedTuple):
    name: str
    blocks: int
    bandwidth: int  # bytes a second
    latency_ps: int
    shared: bool = False


def drawn_kv(tiers: Sequence[DrawnTier], offload: str, level: float) -> Kv:
    """The fastest store first."""
    specs = {tier.name: TierSpec(tier.blocks, tier.bandwidth, tier.latency_ps, tier.shared) for tier in tiers}
    return Kv(tiers=specs or None, offload=cast(Literal["lazy"], offload), offload_level=level)
