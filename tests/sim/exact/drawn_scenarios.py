"""Random scenarios of every kind, as mappings that the public API takes, for all checks of exactness.

Clusters and outputs are small: mistakes show where things coincide, not where there are many of them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

import ahead_draws
import control_draws
import life_draws
import pd_draws
import rank_draws
import session_plans
from deployment_draws import deployed
from draw_sources import Draws, Scattered, Searched, pick, pick_several
from tier_draws import shared_prefixes, sometimes_tiered, tiered

Json = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """A workload, and how long its longest sequence may be: what a tight KV cache is measured by."""

    workload: Json
    longest: int


PREFILL = (1000, 500, 2000, 10_000, 333)
DECODE = (1000, 1000, 500, 200, 137)
# A toy model on toy GPUs: reading the weights takes 0.2 ms; computing overtakes reading within a few hundred tokens of
# context on the first, within a few sequences on the second, never on the third.
TOY = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 1, "params": 100_000, "name": "toy"}
TOY_GPUS = [
    {"memory": "1GB", "bandwidth": "1GB/s", "tflops": figure, "usd_per_hour": 1, "idle_watts": 10, "busy_watts": 99}
    for figure in (0.0012, 0.0025, 1)
]
PLAIN = ("round-robin", "random", "least-loaded", "always-busiest", "power-of-two", "load-only", "sticky")
BELIEVING = ("lmetric", "unified", "lmetric-plus-one", "least-prefill-work", "prefix-affinity")
ROUTESIM = ("least-outstanding", "prefix-aware", "prefix-overlap", "session-affinity")
LOOKING = ("least-kv", "weighted", "weighted", "kv-aware", "cost-escalation", "witness")  # into the middle of runs
ROUTING = (*LOOKING, *LOOKING, *PLAIN, *BELIEVING, *ROUTESIM)
SCORERS = (
    "kv-utilization",
    "oracle-prefix",
    "queue-depth",
    "prefix-affinity",
    "predicted-latency",
    "no-hit-lru",
    "load-balance",
    "active-requests",
    "session-affinity",
    "adapter-affinity",
)


TRUTH = {"name": "oracle-prefix", "weight": 1}
SCHEDULERS = ("priority", "sjf", "shortest-prefill", "slo-slack", "fair")


def draw_latency(draws: Draws) -> Json:
    """The keys of `cluster` that decide step times, mostly in whole milliseconds."""
    kind = pick(draws, "fixed", "fixed", "linear", "linear", "piecewise", "roofline", "hardware", "table")
    if kind == "fixed":
        rates = {"prefill_tokens_per_s": pick(draws, *PREFILL), "decode_tokens_per_s": pick(draws, *DECODE)}
        return {"latency": {"model": "fixed", **rates}}
    if kind == "linear":
        terms = {
            "step": pick(draws, "1ms", "2ms", "5ms", "1ps", "1.000001ms"),
            "prefill_token": pick(draws, "0s", "1ms", "20us"),
            "prefill_pair": pick(draws, "0s", "1us", "0.7ps", "1ms"),
            "sequence": pick(draws, "0s", "1ms", "13us"),
            "context_token": pick(draws, "0s", "41ns", "1us", "1ms"),
        }
        return {"latency": {"model": "linear", **terms}}
    if kind == "piecewise":
        curve = {
            "prefill_tokens_per_s": pick(draws, *PREFILL),
            "decode_tokens_per_s": pick(draws, 100, 80),
            "saturation_batch": draws.between(2, 6),
            "saturated_tokens_per_s": pick(draws, 400, 90),
        }
        return {"latency": {"model": "piecewise", **curve}}
    if kind == "table":
        return {"latency": {"model": "table", "rows": draw_table(draws), "host": pick(draws, "0ms", "1ms")}}
    if kind == "hardware":
        keys = {"model": "hardware", "host": pick(draws, "auto", "0s", "1ms")}
        return {"model": TOY, "gpu": pick(draws, "h200", *TOY_GPUS), "latency": keys}
    shares = {"mfu": pick(draws, 0.6, 1, 0.37), "mbu": pick(draws, 0.8, 1), "overhead": pick(draws, "1ms", "0s")}
    return {"model": TOY, "gpu": pick(draws, *TOY_GPUS), "latency": {"model": "roofline", **shares}}


def draw_table(draws: Draws) -> list[Json]:
    """Steps of a table, close to each other, so that many runs end where a piece does."""
    milliseconds = [draws.between(1, 6) for _ in range(7)]
    places = ((1, 5), (1, 20), (4, 0), (4, 33), (4, 90), (7, 40), (7, 200))
    decode = [
        {"decodes": decodes, "context": context, "time": f"{time}ms"}
        for (decodes, context), time in zip(places, milliseconds, strict=True)
    ]
    prefill = [
        {"prefill": tokens, "past": past, "time": f"{time}ms"}
        for (tokens, past), time in zip(
            ((4, 0), (4, 9), (16, 0), (16, 50)), (1, 2, draws.between(2, 9), 9), strict=True
        )
    ]
    return decode + prefill


TOY_EXPERTS = {**TOY, "experts": 8, "experts_per_token": 2, "expert_intermediate": 32, "dense_layers": 1}


def draw_priced(draws: Draws) -> Json:
    """The keys of `cluster` that decide step times, for the model `hardware` with experts, 8 bits or several GPUs."""
    size, kv_size = pick(draws, 2, 1, 0.53125), pick(draws, 2, 1)
    model = {**pick(draws, TOY, TOY_EXPERTS), "dtype_bytes": size, "kv_dtype_bytes": kv_size}
    keys = {"model": "hardware", "engine": pick(draws, "auto", "vllm-0.18", "vllm-0.19")}
    keys["expert_skew"] = pick(draws, 0, 0.5, 1)
    if pick(draws, True, False):
        keys["host_sequence"] = pick(draws, "0s", "7us", "1ms")
    return {
        "model": model,
        "gpu": pick(draws, "h200", "l40s", "rtx-4090"),
        "tp": pick(draws, 1, 2, 3, 4),
        "latency": keys,
    }


def draw_even_latency(draws: Draws) -> Json:
    """Steps of whole milliseconds, whatever is in them."""
    if pick(draws, True, False):
        rates = {"prefill_tokens_per_s": pick(draws, 1000, 500), "decode_tokens_per_s": pick(draws, 1000, 500)}
        return {"latency": {"model": "fixed", **rates}}
    none = dict.fromkeys(("prefill_token", "prefill_pair", "sequence", "context_token"), "0s")
    return {"latency": {"model": "linear", "step": pick(draws, "1ms", "2ms", "5ms"), **none}}


def draw_routing(draws: Draws, names: Sequence[str]) -> Any:
    name = pick(draws, *names)
    if name in BELIEVING:
        return {"name": name, "block_tokens": pick(draws, 1, 4, 16), "lru_blocks": pick(draws, 2, 30)}
    if name == "weighted":
        return draw_weighted(draws)
    if name == "cost-escalation":
        return {"name": name, "decay": pick(draws, 0.1, 5, 100), "kv_weight": pick(draws, 2, 20)}
    if name == "kv-aware":
        return {
            "name": name,
            "kv": pick(draws, 0.55, 0.05),
            "power": pick(draws, 0.1, 1),
            "epsilon": pick(draws, 0.01, 0, 0.2),
            "max_concurrent": pick(draws, None, 3),
            "prefix_tokens": pick(draws, 64, None),
        }
    return name


def draw_weighted(draws: Draws) -> Json:
    believing = {"lru_blocks": pick(draws, 3, 20, 31_250), "block_tokens": pick(draws, 1, 4, 16)}
    scorers: list[Json] = []
    for name in pick_several(draws, 4, SCORERS, least=1):
        own = believing if name in ("prefix-affinity", "no-hit-lru", "predicted-latency") else {}
        scorers.append({"name": name, "weight": pick(draws, 1, 2, 3, 0.3), **own})
    filters: list[Json] = [
        {"name": "kv-below", "threshold": pick(draws, 0.3, 0.6, 0.9)},
        {"name": "load-below", "max_load": pick(draws, 1, 3)},
        {"name": "load-spread", "absolute": pick(draws, 0, 2), "relative": 1.5},
    ]
    picker: Any = pick(draws, "max-score", "max-score", "weighted-random", {"name": "weighted-random", "seed": 3})
    chosen = pick_several(draws, 2, range(len(filters)))
    return {"name": "weighted", "scorers": scorers, "filters": [filters[at] for at in chosen], "picker": picker}


def draw_lengths(draws: Draws, longest: int) -> Any:
    """A length distribution that never exceeds `longest`."""
    kind = pick(draws, "constant", "normal", "exponential", "lognormal", "empirical")
    mean = draws.between(1, longest)
    if kind == "constant":
        return mean
    if kind == "empirical":
        return {"dist": kind, "values": [draws.between(1, longest) for _ in range(draws.between(1, 4))]}
    spread = {} if kind == "exponential" else {"std": pick(draws, mean / 3, mean)}
    return {"dist": kind, "mean": mean, **spread, "min": 1, "max": longest}


def draw_synthetic(draws: Draws) -> Load:
    prompt, output = pick(draws, 8, 40, 40, 120), pick(draws, 2, 20, 20, 50)
    workload: Json = {
        "requests": draws.between(*pick(draws, (1, 8), (8, 24), (16, 40))),
        # Gaps of 1, 2, 5, 10 or 50 ms where they are constant: where steps last whole milliseconds they end there.
        "rate": pick(draws, "1000/s", "500/s", "200/s", "100/s", "20/s"),
        "arrival": pick(draws, "constant", "poisson", {"process": "gamma", "cv": 3}),
        "prompt_tokens": draw_lengths(draws, prompt),
        "output_tokens": draw_lengths(draws, output),
    }
    if pick(draws, True, True, False):
        workload["prefix"] = {
            "groups": draws.between(1, 4),
            "tokens": draws.between(1, 2 * prompt),  # also longer than the prompts, which then are its beginning
            "share": pick(draws, 1.0, 0.7),
            "popularity": pick(draws, "uniform", {"dist": "zipf", "s": 1.2}),
        }
    if pick(draws, False, False, False, True):
        workload["duration"] = pick(draws, "20ms", "100ms")
    if pick(draws, False, False, True):
        workload["max_tokens"] = pick(draws, 5, 200)
    return Load(workload, prompt + output)


def draw_trace(draws: Draws, folder: Path) -> Load:
    """A Mooncake file with few distinct stamps and prompts that grow out of one another."""
    size, most = pick(draws, 1, 2, 4, 8, 16), pick(draws, 3, 12, 12, 30)
    at = fresh = longest = 0
    rows: list[Json] = []
    for _ in range(draws.between(*pick(draws, (2, 8), (8, 24)))):
        at += pick(draws, 0, 0, 0, 1, 1, 2, 5, 10, 40)
        ids: list[int] = []
        if rows and pick(draws, True, True, False):
            parent = rows[draws.between(0, len(rows) - 1)]["hash_ids"]
            ids = parent[: draws.between(1, len(parent))]
        added = draws.between(0 if ids else 1, most)
        ids = (ids + list(range(fresh, fresh + added)))[:most]
        fresh += added
        prompt = len(ids) * size - draws.between(0, size - 1)
        output = draws.between(1, pick(draws, 5, 40))
        longest = max(longest, prompt + output)
        rows.append({"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": ids})
    file = write_trace(folder, rows)
    speed = pick(draws, 1.0, 1.0, 1.0, 0.3)
    return Load({"trace": {"format": "mooncake", "path": str(file), "block_tokens": size, "speed": speed}}, longest)


def write_trace(folder: Path, rows: list[Json]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    file = folder / f"{zlib.crc32(text.encode()):08x}.jsonl"
    file.write_text(text)
    return file


def draw_sessions(draws: Draws, even: bool) -> tuple[Load, Json]:
    """Sessions, and the keys of a scenario that they come by: they are made in the test, not read from YAML."""
    longest = pick(draws, 40, 120, 120)
    unit_ps = 10**9 if even else pick(draws, 10**9, 137_000_000)
    drawn: Json = {"sessions": session_plans.plan(draws, unit_ps, longest)}
    if pick(draws, True, False, False):
        drawn["shedder"] = [pick(draws, 3, 7, 10**9), pick(draws, 2, 4, 10**9)]
    return Load({"requests": 1, "rate": "1/s"}, longest), drawn


def draw_controlled(draws: Draws) -> Json:
    """Every stage of the control plane, and clients of several classes who give up, try again, or wait for answers."""
    prompt, output = pick(draws, 8, 40, 100), pick(draws, 2, 20, 40)
    workload: Json = {
        "requests": draws.between(*pick(draws, (2, 10), (12, 36), (12, 36))),
        "tenants": control_draws.tenants(draws, prompt, output),
    }
    if pick(draws, False, False, True):
        workload["duration"] = pick(draws, "20ms", "100ms")
    drawn = draw_scenario(draws, Load(workload, prompt + output), pick(draws, True, False))
    drawn["policies"] |= control_draws.policies(draws)
    return drawn


def draw_scenario(draws: Draws, load: Load, coinciding: bool) -> Json:
    """A scenario of any kind, or one in which arrivals fall on step ends and policies look into running steps."""
    block = pick(draws, 1, 2, 4, 4, 16)
    needed = -(-load.longest // block)
    # Just enough for the longest, a little more, plenty; sometimes the longest are rejected.
    sizes = (needed, needed, needed + 1, needed + needed // 2, 3 * needed, 1000, max(1, needed * 2 // 3))
    blocks = sizes[pick(draws, *range(len(sizes)))]
    cluster: Json = {
        "instances": pick(draws, 1, 2, 2, 3, 4),
        "max_batch_tokens": draws.between(*pick(draws, (1, 3), (4, 64), (4, 64), (256, 256), (2048, 2048))),
        "max_batch_size": pick(draws, 1, 2, 3, 5, 8, 256),
        "max_queue": pick(draws, 4, 256),
        "kv": {
            "block_tokens": block,
            "gpu_blocks": blocks,
            "prefix_caching": pick(draws, True, True, True, False),
            "entry": pick(draws, "chunk", "chunk", "prompt"),
        },
        **(draw_even_latency if coinciding else draw_latency)(draws),
    }
    drawn: Json = {
        "seed": draws.between(0, 1000),
        "workload": load.workload,
        "cluster": cluster,
        "policies": {"routing": draw_routing(draws, LOOKING if coinciding else ROUTING)},
        "warmup": pick(draws, 0, 0, 3),
        "slo": pick(draws, {}, {"ttft": "20ms", "tpot": "3ms"}, {"ttft": "100ms"}),
    }
    if pick(draws, False, False, True):
        drawn["horizon"] = pick(draws, "10ms", "50ms", "51234567ns", "200ms")
    if pick(draws, False, False, True):
        polled = {
            "poll_interval": pick(draws, "1ms", "5ms", "50ms", "137us"),
            "poll_delay": pick(draws, "0s", "1ms", "23ms"),
        }
        drawn["signals"] = polled
    if pick(draws, False, False, True):
        drawn.setdefault("signals", {})["kv_event_delay"] = pick(draws, "0s", "1ms", "23ms")
    if pick(draws, False, False, True):
        interval = pick(draws, None, "1ms", "7ms", "50ms", "137us")
        spread = pick(draws, "requests", "sessions")
        drawn["routers"] = {"count": pick(draws, 2, 3, 5), "sync_interval": interval, "spread": spread}
    if pick(draws, False, True):
        drawn["policies"]["scheduler"] = control_draws.policy(draws, "scheduler", *SCHEDULERS)
    if "poll_interval" in drawn.get("signals", {}):
        drawn["signals"]["effective_load"] = pick(draws, "snapshot", "outstanding")
    return drawn


def add_adapters(draws: Draws, drawn: Json) -> Json:
    """Some with more adapters than an instance has slots, so that the first in its queue waits for one."""
    if pick(draws, False, True):
        drawn["workload"]["adapters"] = ["base", *"abcde"[: draws.between(1, 5)]]
        load_time = pick(draws, "0s", "1ms", "137us", "20ms")
        drawn["cluster"]["adapters"] = {"slots": pick(draws, 1, 1, 2, 3), "load_time": load_time}
    return drawn


# --- families ----------------------------------------------------------------------------------------------------


def synthetic_family(draws: Draws, folder: Path) -> Json:
    drawn = add_adapters(draws, draw_scenario(draws, draw_synthetic(draws), False))
    return sometimes_tiered(draws, deployed(draws, drawn))


def traced_family(draws: Draws, folder: Path) -> Json:
    return sometimes_tiered(draws, deployed(draws, draw_scenario(draws, draw_trace(draws, folder), False)))


def coinciding_family(draws: Draws, folder: Path) -> Json:
    """Arrivals fall on step ends, and policies look into running steps."""
    return sometimes_tiered(draws, deployed(draws, draw_scenario(draws, draw_trace(draws, folder), True)))


def sessions_family(draws: Draws, folder: Path) -> Json:
    even = pick(draws, True, True, False)
    load, keys = draw_sessions(draws, even)
    return sometimes_tiered(draws, {**draw_scenario(draws, load, even), **keys})


def controlled_family(draws: Draws, folder: Path) -> Json:
    return sometimes_tiered(draws, deployed(draws, add_adapters(draws, draw_controlled(draws))))


def tiered_family(draws: Draws, folder: Path) -> Json:
    drawn = draw_scenario(draws, Load(shared_prefixes(draws), 100), pick(draws, True, False))
    drawn["cluster"]["kv"]["prefix_caching"] = True
    return tiered(draws, add_adapters(draws, drawn))


def split_family(draws: Draws, folder: Path) -> Json:
    """Prompts are computed apart."""
    drawn = add_adapters(draws, draw_scenario(draws, draw_synthetic(draws), False))
    return sometimes_tiered(draws, pd_draws.split(draws, drawn))


def living_family(draws: Draws, folder: Path) -> Json:
    """Instances come and go."""
    base = pick(draws, "synthetic", "controlled", "split")
    drawn = draw_controlled(draws) if base == "controlled" else draw_scenario(draws, draw_synthetic(draws), False)
    drawn = add_adapters(draws, drawn)
    drawn = pd_draws.split(draws, drawn) if base == "split" else deployed(draws, drawn)
    return life_draws.living(draws, sometimes_tiered(draws, drawn))


def reporting_family(draws: Draws, folder: Path) -> Json:
    """Any of the others, with routers that hear what the instances store and evict."""
    drawn = FAMILIES[pick(draws, *BASES)](draws, folder)
    believing = {"block_tokens": pick(draws, 1, 2, 4, 4, 8, 16), "lru_blocks": pick(draws, "auto", 3, 20, 31_250)}
    routing: Json = {"name": pick(draws, *BELIEVING, "prefix-overlap"), **believing}
    if pick(draws, True, False):
        scorers = [{"name": "prefix-affinity", "weight": pick(draws, 1, 3), **believing}, *pick(draws, [], [TRUTH])]
        scorers.append({"name": "queue-depth", "weight": 1})
        routing = {"name": "weighted", "scorers": scorers, "filters": [], "picker": "max-score"}
    replaced = drawn["policies"]["routing"]
    if isinstance(replaced, dict) and replaced["name"] in pd_draws.PAIRS:
        routing = {"name": "pair", "prefill": routing, "decode": routing}
    drawn["policies"]["routing"] = routing
    drawn.setdefault("signals", {})["kv_event_delay"] = pick(draws, "0s", "0s", "1ms", "5ms", "23ms", "137us")
    drawn["signals"]["belief"] = pick(draws, "stored", "both", "stored", "both", "routed")
    return drawn


def ranked_family(draws: Draws, folder: Path) -> Json:
    """Any of the others, with engines that have data-parallel ranks."""
    base = pick(draws, *[name for name in (*BASES, "reporting") if name != "split"])
    return rank_draws.ranked(draws, FAMILIES[base](draws, folder))


def ahead_family(draws: Draws, folder: Path) -> Json:
    """Any of the others, with engines that schedule asynchronously."""
    return ahead_draws.ahead(draws, FAMILIES[pick(draws, *BASES, "reporting")](draws, folder))


def yielding_family(draws: Draws, folder: Path) -> Json:
    """Waiting requests preempt running ones of a lower priority."""
    return ahead_draws.yielding(draws, deployed(draws, add_adapters(draws, draw_controlled(draws))))


BASES = ("synthetic", "traced", "coinciding", "sessions", "controlled", "tiered", "split", "living")
FAMILIES: dict[str, Callable[[Draws, Path], Json]] = {
    "synthetic": synthetic_family,
    "traced": traced_family,
    "coinciding": coinciding_family,
    "sessions": sessions_family,
    "controlled": controlled_family,
    "tiered": tiered_family,
    "split": split_family,
    "living": living_family,
    "reporting": reporting_family,
    "ranked": ranked_family,
    "ahead": ahead_family,
    "yielding": yielding_family,
}


DATED = {"defaults": "2026-11"}  # so that signals are fresh, unless a family draws how old they are


def scattered(family: str, number: int, folder: Path) -> Json:
    """Draw the scenario of a family that a number stands for. Traces are written into the folder."""
    return {**DATED, **FAMILIES[family](Scattered(number), folder)}


@st.composite
def searched(draw: DrawFn, family: str, folder: Path) -> Json:
    """Let Hypothesis draw a scenario of a family."""
    return {**DATED, **FAMILIES[family](Searched(draw), folder)}
