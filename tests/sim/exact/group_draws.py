"""Drawn models whose layers differ in what they keep: sliding windows, states, latent vectors."""

from __future__ import annotations

from typing import Any, Literal

from draw_sources import Draws, pick
from headway.latency import kv_layout, read_model

Json = dict[str, Any]
COSTLESS = dict.fromkeys(("prefill_token", "prefill_pair", "context_token"), "0s")
# Models of a few layers, on which a block has a page in one to four groups.
TOY = {"hidden": 64, "heads": 4, "kv_heads": 1, "params": 100_000, "name": "toy"}
MIXTURES = ((1, 1), (1, 2), (2, 2), (1, 3), (0, 2), (2, 5))  # layers that keep every token, layers with windows


def draw_groups(draws: Draws) -> Json:
    """Draw a model with groups of layers."""
    kind = pick(draws, "sliding", "sliding", "sliding", "sliding", "state", "latent")
    if kind == "latent":
        latent = {"kind": kind, "layers": 2, "rank": 32, "rope": 8, "nope": 16, "value": 16}
        return {**TOY, "layers": 2, "kv_groups": [latent]}
    if kind == "state":
        states = {"kind": kind, "layers": pick(draws, 1, 3), "state_bytes": 64}
        return {**TOY, "layers": 4, "kv_groups": [{"kind": "full", "layers": 1}, states]}
    full, windowed = pick(draws, *MIXTURES)
    window = pick(draws, 1, 3, 4, 5, 8, 16, 17, 40, 1000)
    groups = [{"kind": "full", "layers": full}] if full else []
    return {
        **TOY,
        "layers": full + windowed,
        "kv_groups": [*groups, {"kind": "sliding", "layers": windowed, "window": window}],
    }


def fits(scenario: Json) -> bool:
    """Whether a drawn scenario can have such a model: no tiers, no transfers, one deployment."""
    cluster = scenario["cluster"]
    kv = cluster.get("kv", {})
    return (
        "models" not in scenario["workload"]
        and "deployments" not in cluster
        and cluster.get("architecture", "monolithic") == "monolithic"
        and kv.get("tiers") is None
        and kv.get("eviction", "lru") == "lru"
        and kv.get("preemption", "recompute") == "recompute"
    )


def grouped(scenario: Json, draws: Draws) -> Json:
    """Give the instances of a scenario a model with groups of layers, and about as many pages as they had blocks."""
    model = draw_groups(draws)
    cluster = scenario["cluster"]
    size = cluster["kv"].get("block_tokens", 16)
    states: Literal["none", "align", "all"] = "none"
    if any(kind["kind"] == "state" for kind in model["kv_groups"]):
        cluster["kv"]["block_tokens"] = max(size, 16)
        states = cluster["kv"]["states"] = pick(draws, "none", "all", "align")
    shape = read_model(model, "model")
    layout = kv_layout(shape, 1, 16, kept=states)
    blocks = cluster["kv"].get("gpu_blocks", 1000)
    window = -(-(layout.window + cluster["max_batch_tokens"]) // size) + 1
    tight = layout.full * blocks + layout.windows * min(blocks, window) + layout.states
    cluster["kv"]["gpu_blocks"] = tight + pick(draws, 0, 0, 0, 1, 3, blocks)
    cluster["model"] = model
    if cluster.get("latency", {}).get("model") != "roofline":
        cluster["latency"] = pick(draws, cluster.get("latency"), {"model": "hardware", "host": "1ms"})
    return scenario


def pressed(draws: Draws) -> Json:
    """Draw a scenario with windows whose requests share prefixes, compete for few pages, and decode for long."""
    size, longest = pick(draws, 1, 2, 4, 4, 16), pick(draws, 30, 80, 150)
    full, windowed = pick(draws, *MIXTURES)
    window, budget = draws.between(1, pick(draws, 6, 40)), draws.between(4, pick(draws, 16, 60, 300))
    sliding = {"kind": "sliding", "layers": windowed, "window": window}
    model = {
        **TOY,
        "layers": full + windowed,
        "kv_groups": [*([{"kind": "full", "layers": full}] if full else []), sliding],
    }
    blocks = -(-longest // size)
    near = min(blocks, -(-(window + budget) // size) + 1)
    layout = kv_layout(read_model(model, "model"), 1, 16)
    alone = layout.full * blocks + layout.windows * near
    priced: Json = {"model": "linear", "step": "1ms", "sequence": pick(draws, "0s", "1ms"), **COSTLESS}
    return {
        "defaults": "2026-11",
        "seed": draws.between(0, 10**6),
        "workload": {
            "requests": draws.between(10, 40),
            "rate": pick(draws, "100/s", "300/s", "1000/s"),
            "arrival": pick(draws, "constant", "poisson"),
            "prompt_tokens": {"dist": "uniform", "min": 1, "max": longest // 2},
            "output_tokens": {"dist": "uniform", "min": 1, "max": longest // 2},
            "prefix": {"groups": draws.between(1, 4), "tokens": draws.between(1, longest // 2), "share": 0.8},
        },
        "cluster": {
            "instances": pick(draws, 1, 1, 2),
            "model": model,
            "gpu": "h200",
            "max_batch_tokens": budget,
            "max_batch_size": pick(draws, 3, 8, 256),
            "kv": {
                "block_tokens": size,
                "gpu_blocks": alone + draws.between(0, pick(draws, 3, 2 * alone)),
                "prefix_caching": pick(draws, True, True, True, False),
                "entry": pick(draws, "chunk", "prompt"),
            },
            "latency": pick(draws, priced, {"model": "hardware", "host": "1ms"}),
        },
        "policies": {
            "routing": pick(draws, "least-kv", "round-robin", "prefix-affinity"),
            "scheduler": pick(
                draws, {"name": "fcfs"}, {"name": "sjf"}, {"name": "shortest-prefill", "chunk_tokens": 7}
            ),
        },
        "signals": pick(draws, {}, {}, {"poll_interval": "7ms"}, {"kv_event_delay": "1ms", "belief": "stored"}),
        "warmup": 0,
        **pick(draws, {}, {"horizon": "80ms"}),
    }


def kept(draws: Draws, states: Literal["align", "all"] = "all") -> Json:
    """Draw such a scenario whose layers have states in place of windows, and keep them at the ends of blocks."""
    scenario = pressed(draws)
    cluster, size, longest = scenario["cluster"], 16, 160
    *full, other = cluster["model"]["kv_groups"]
    cluster["model"]["kv_groups"] = [*full, {"kind": "state", "layers": other["layers"], "state_bytes": 64}]
    layout = kv_layout(read_model(cluster["model"], "model"), 1, size, kept=states)
    near = 2 if states == "align" else min(longest // size, -(-cluster["max_batch_tokens"] // size) + 2)
    alone = layout.full * longest // size + layout.windows * near
    pages = alone + draws.between(0, pick(draws, 3, 2 * alone))
    cluster["kv"] |= {"block_tokens": size, "gpu_blocks": pages, "states": states}
    return scenario


def aligned(draws: Draws) -> Json:
    """Draw such a scenario whose states are kept at the ends of chunks alone."""
    return kept(draws, "align")
