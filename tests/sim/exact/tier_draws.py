"""Stores below the GPU for drawn scenarios: transfers take from less than a step to many of them."""

from __future__ import annotations

from typing import Any

from draw_sources import Draws, pick

Json = dict[str, Any]
OFFLOADS = ("lazy", "eager", "threshold")


def sometimes_tiered(draws: Draws, scenario: Json) -> Json:
    """With stores below the GPU in a third of all cases where prefixes are cached."""
    if not scenario["cluster"]["kv"]["prefix_caching"] or pick(draws, True, True, False):
        return scenario
    return tiered(draws, scenario)


def shared_prefixes(draws: Draws) -> Json:
    """More content that comes again than a GPU with room for one or two of the longest requests can keep."""
    prefix = draws.between(10, 60)
    return {
        "requests": draws.between(12, 40),
        "rate": pick(draws, "1000/s", "200/s", "100/s", "20/s"),
        "arrival": pick(draws, "constant", "poisson", {"process": "gamma", "cv": 3}),
        "prompt_tokens": {"dist": "uniform", "min": prefix, "max": 70},
        "output_tokens": {"dist": "uniform", "min": 1, "max": pick(draws, 1, 5, 20)},
        "prefix": {"groups": draws.between(2, 8), "tokens": prefix},
    }


def tiered(draws: Draws, scenario: Json) -> Json:
    """The scenario with stores below the GPU. Clients may give up on what they wait for."""
    cluster = scenario["cluster"]
    needed = cluster["kv"]["gpu_blocks"]
    tiers: Json = {}
    if pick(draws, True, True, True, False):
        tiers["cpu"] = tier(draws, cluster, needed, False)
    if not tiers or pick(draws, True, False):
        tiers["storage"] = tier(draws, cluster, needed, pick(draws, True, False))
    kv = {
        **cluster["kv"],
        "tiers": tiers,
        "offload": pick(draws, *OFFLOADS),
        "offload_level": pick(draws, 0.2, 0.6, 0.95),
        "eviction": pick(draws, "lru", "lru", "lfu", "priority"),
        "preemption": "swap" if "cpu" in tiers and pick(draws, True, False, False) else "recompute",
    }
    workload = scenario["workload"]
    if "tenants" not in workload and "sessions" not in scenario and pick(draws, True, False):
        workload = {**workload, "timeout": pick(draws, "10ms", "50ms", "200ms", "12.345ms")}
    return {**scenario, "cluster": {**cluster, "kv": kv}, "workload": workload}


def tier(draws: Draws, cluster: Json, blocks: int, shared: bool) -> Json:
    """A block of the toy model has some hundred bytes, one of the usual model some hundred thousand."""
    toy = not isinstance(cluster.get("model", ""), str)
    speeds = ("1MB/s", "100MB/s", "5GB/s") if toy else ("500MB/s", "10GB/s", "1TB/s")
    return {
        "blocks": pick(draws, 1, max(1, blocks // 2), blocks, 3 * blocks, 1000),
        "bandwidth": pick(draws, *speeds),
        "latency": pick(draws, "0s", "0s", "20us", "1ms", "5ms"),
        "shared": shared,
    }
