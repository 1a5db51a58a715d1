"""What the stores below the GPUs were good for: figures of each tier, of one instance and of the whole cluster."""

from __future__ import annotations

from collections.abc import Sequence

from headway.results.percentiles import spread_of
from headway.results.recorder import InstanceStats, TierStats
from headway.results.sample import rate, ratio
from headway.types import PS_PER_SECOND, Json


def tiers(instances: Sequence[InstanceStats], length_ps: int) -> Json:
    """The sections `tiers` and `loads` of a summary, where there are any stores."""
    found: dict[str, dict[str, TierStats]] = {}  # by name and owner: a shared store once
    prompts: dict[str, int] = {}
    for stats in instances:
        for tier in stats.tiers:
            found.setdefault(tier.name, {})[tier.owner] = tier
            prompts[tier.name] = prompts.get(tier.name, 0) + stats.prompt_tokens
    if not found:
        return {}
    waits = [wait for stats in instances for wait in stats.load_waits_ps]
    sections = {"gpu": _gpu([stats for stats in instances if stats.tiers])}
    for name, by_owner in found.items():
        stores = list(by_owner.values())
        section = {"stores": len(stores), **_figures(stores, prompts[name], length_ps)}
        sections[name] = {**section, "samples": _samples(stores)}
    return {"tiers": sections, "loads": {"count": len(waits), "wait": spread_of(waits)}}


def _gpu(instances: list[InstanceStats]) -> Json:
    """The tier that the others lie below: what was found there, and how full it was."""
    blocks = sum(stats.kv_blocks for stats in instances)
    loaded = sum(store.hit_tokens for store in _stores(instances))
    hits = sum(stats.cached_tokens for stats in instances) - loaded
    used = [sum(at) for at in zip(*(stats.kv_samples for stats in instances), strict=True)]
    return {
        "stores": len(instances),
        "blocks": blocks,
        "hit_tokens": hits,
        "hit_ratio": ratio(hits, sum(stats.prompt_tokens for stats in instances)),
        "utilization": ratio(sum(used), len(used) * blocks),
        "peak_utilization": max(stats.peak_kv_blocks / stats.kv_blocks for stats in instances),
        "samples": {
            "interval_s": instances[0].kv_interval_ps / PS_PER_SECOND,
            "utilization": [count / blocks for count in used],
        },
    }


def _stores(instances: Sequence[InstanceStats]) -> list[TierStats]:
    """Each once."""
    return list({(tier.name, tier.owner): tier for stats in instances for tier in stats.tiers}.values())


def own_tiers(stats: InstanceStats, length_ps: int) -> Json:
    """The same of one instance; a shared store is nobody's own."""
    if not stats.tiers:
        return {}
    own = {
        tier.name: _figures([tier], stats.prompt_tokens, length_ps) for tier in stats.tiers if tier.owner == stats.id
    }
    waits = stats.load_waits_ps
    return {"tiers": own, "loads": {"count": len(waits), "wait": spread_of(waits)}}


def _figures(stores: list[TierStats], prompt_tokens: int, length_ps: int) -> Json:
    blocks = sum(store.blocks for store in stores)
    moved = sum(store.moved_bytes for store in stores)
    hits = sum(store.hit_tokens for store in stores)
    peaks = [store.peak_blocks / store.blocks for store in stores]
    return {
        "blocks": blocks,
        "hit_tokens": hits,
        "hit_ratio": ratio(hits, prompt_tokens),
        "stored_blocks": sum(store.stored_blocks for store in stores),
        "loaded_blocks": sum(store.loaded_blocks for store in stores),
        "thrashed_blocks": sum(store.thrashed_blocks for store in stores),
        "transfer_bytes": moved,
        "transfer_bytes_per_s": rate(moved, length_ps),
        "link_utilization": ratio(sum(store.link_busy_ps for store in stores), len(stores) * length_ps),
        "utilization": ratio(sum(store.block_ps for store in stores), blocks * length_ps),
        "peak_utilization": max(peaks),
    }


def _samples(stores: list[TierStats]) -> Json:
    """The share in use over time, of all the stores together: they are looked at together."""
    blocks = sum(store.blocks for store in stores)
    used = [sum(at) for at in zip(*(store.samples for store in stores), strict=True)]
    return {"interval_s": stores[0].interval_ps / PS_PER_SECOND, "utilization": [count / blocks for count in used]}
