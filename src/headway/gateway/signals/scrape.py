"""What an engine's Prometheus page says of its load, whichever engine and version it is.

Names are looked up whole, so that of a page of 50 kB only the lines that are wanted are taken apart. A line that cannot
be read is passed over: a page is never a reason to fail.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from headway.views.instance import REPORTED, SIGNALS

LABELS: Final = re.compile(r'([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"')
ESCAPED: Final = re.compile(r"\\(.)")
LARGEST: Final = 1e15
# Ranks that compute one request together each tell of it.
TOGETHER: Final = frozenset(("tp_rank", "pp_rank", "moe_ep_rank", "ep_rank", "pid"))


class Name(NamedTuple):
    """What a series means: `signal` is what it is called here, `only` the label that a line must have, and `scale`
    what its number is multiplied with."""

    signal: str
    only: tuple[str, str] | None = None
    scale: float = 1.0


VLLM: Final = {
    "num_requests_waiting": Name("queued"),
    "num_requests_running": Name("running"),
    "kv_cache_usage_perc": Name("kv_usage"),
    "gpu_cache_usage_perc": Name("kv_usage"),
    "cache_config_info": Name("cache_config"),
    "prefix_cache_hits": Name("hits"),
    "prefix_cache_queries": Name("queries"),
    "gpu_prefix_cache_hits": Name("hits"),
    "gpu_prefix_cache_queries": Name("queries"),
    "gpu_prefix_cache_hit_rate": Name("hit_rate"),
    "lora_requests_info": Name("lora"),
}
SGLANG: Final = {
    "num_queue_reqs": Name("queued"),
    "num_running_reqs": Name("running"),
    "token_usage": Name("kv_usage"),
    "cache_hit_rate": Name("hit_rate"),
    "max_total_num_tokens": Name("kv_tokens"),
    "num_pages": Name("kv_blocks"),
    "page_size": Name("block_tokens"),
    "cache_config_info": Name("cache_config"),
}
LLAMACPP: Final = {
    "requests_deferred": Name("queued"),
    "requests_processing": Name("running"),
    "kv_cache_usage_ratio": Name("kv_usage"),  # of older builds only
    "kv_cache_tokens": Name("kv_tokens_used"),
}
TRTLLM: Final = {
    "num_requests_waiting": Name("queued"),
    "num_requests_running": Name("running"),
    "kv_cache_utilization": Name("kv_usage"),
    "kv_cache_max_blocks": Name("kv_blocks"),
    "kv_cache_tokens_per_block": Name("block_tokens"),
    "kv_cache_hit_rate": Name("hit_rate"),
}
TRITON: Final = {  # one series for several figures, told apart by a label
    ("nv_trt_llm_request_metrics", "request_type", "waiting"): "queued",
    ("nv_trt_llm_request_metrics", "request_type", "scheduled"): "running",
    ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "fraction"): "kv_usage",
    ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "max"): "kv_blocks",
    ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "tokens_per"): "block_tokens",
}
DEVICE: Final = {  # of whichever engine: an exporter of the GPU's figures may share its page
    "DCGM_FI_DEV_POWER_USAGE": Name("watts"),
    "DCGM_FI_PROF_SM_ACTIVE": Name("busy"),
    "DCGM_FI_DEV_GPU_UTIL": Name("busy", scale=0.01),
}
# How the figures of several engines behind one address become one; all others are added up.
SHARES: Final = frozenset(("kv_usage", *[name for name in REPORTED if SIGNALS[name].kind == "share"]))
MEANS: Final = SHARES | {"block_tokens"}


def _spelt(prefix: str, names: dict[str, Name]) -> dict[str, list[Name]]:
    """As they are written: counters with and without _total, and colons as underscores where they went through
    OpenTelemetry or Ray, which puts its own name before them."""
    found: dict[str, list[Name]] = {}
    for name, meant in names.items():
        for before in (f"{prefix}:", f"{prefix}_", f"ray_{prefix}:", f"ray_{prefix}_"):
            for end in ("", "_total"):
                found[before + name + end] = [meant]
    return found


def _triton() -> dict[str, list[Name]]:
    found: dict[str, list[Name]] = {}
    for (name, label, value), signal in TRITON.items():
        found.setdefault(name, []).append(Name(signal, (label, value)))
    return found


TABLES: Final[dict[str, dict[str, list[Name]]]] = {
    "vllm": _spelt("vllm", VLLM),
    "sglang": _spelt("sglang", SGLANG),
    "llamacpp": _spelt("llamacpp", LLAMACPP),
    "trtllm": {**_spelt("trtllm", TRTLLM), **_triton()},
}
TABLES["auto"] = {name: meant for table in list(TABLES.values()) for name, meant in table.items()}
for _table in TABLES.values():
    _table.update({name: [meant] for name, meant in DEVICE.items()})

Sums = dict[str, dict[tuple[tuple[str, str], ...], float]]  # signal -> who says so -> value


def parse(text: str, engine: str = "auto", watts: str | None = None) -> dict[str, Any]:
    """What is on the page, and nothing else:

    queued, running        requests
    kv_usage               share of the KV cache that requests hold
    kv_blocks, block_tokens, kv_tokens, kv_tokens_used   its size: blocks, tokens of each, tokens in all; tokens in use
    hits, queries          tokens found cached and asked for since the engine began; or hit_rate, the engine's own share
    adapters, adapter_slots   LoRA adapters with requests in the batch, sorted, and how many there may be
    busy, watts            of its GPUs together, where the page has them; `watts` names another series for the latter

    The figures of several engines behind one address (data-parallel ranks, models) are added up, shares averaged.
    """
    table = TABLES.get(engine, TABLES["auto"])
    if watts:
        table = {**table, watts: [Name("watts")]}
    sums: Sums = {}
    adapters = (-1.0, "", "")  # the newest line counts: those of the past stay on the page
    for line in text.split("\n"):
        cut = line.find("{")
        name = line[:cut] if cut > 0 else line.partition(" ")[0]
        meant = table.get(name)
        if meant is None:
            continue
        read = _sample(line, len(name))
        if read is None:
            continue
        labels, value = read
        for one in meant:
            if one.signal == "cache_config":
                _cache_config(sums, labels)
            elif one.signal == "lora":
                adapters = max(adapters, (value, labels.get("running_lora_adapters", ""), labels.get("max_lora", "")))
            elif (one.only is None or labels.get(one.only[0]) == one.only[1]) and not labels.get("priority"):
                _put(sums, one.signal, labels.items(), value * one.scale)
    found: dict[str, Any] = {signal: _together(signal, says) for signal, says in sums.items()}
    if adapters[0] >= 0:
        found.update(_adapters(*adapters[1:]))
    return found


def _sample(line: str, at: int) -> tuple[dict[str, str], float] | None:
    """Labels and value of a line whose name ends at `at`; None where it has no value that makes sense."""
    labels: dict[str, str] = {}
    if line[at : at + 1] == "{":
        end = line.rfind("}")
        if end < at:
            return None
        for name, value in LABELS.findall(line, at + 1, end):
            labels[name] = ESCAPED.sub(r"\1", value) if "\\" in value else value
        at = end + 1
    words = line[at : at + 100].split(None, 1)
    value = _number(words[0]) if words else None
    return None if value is None else (labels, value)


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= LARGEST else None


def _put(sums: Sums, signal: str, labels: Iterable[tuple[str, str]], value: float) -> None:
    who = tuple(sorted(label for label in labels if label[0] not in TOGETHER))
    says = sums.setdefault(signal, {})
    says[who] = max(value, says.get(who, 0.0))


def _cache_config(sums: Sums, labels: dict[str, str]) -> None:
    who = [(label, labels[label]) for label in ("engine", "dp_rank", "model_name") if label in labels]
    for signal, names in (
        ("kv_blocks", ("num_gpu_blocks", "num_pages")),
        ("block_tokens", ("block_size", "page_size")),
    ):
        for name in names:
            value = _number(labels.get(name, ""))
            if value:
                _put(sums, signal, who, value)


def _together(signal: str, says: dict[tuple[tuple[str, str], ...], float]) -> float | int:
    total = math.fsum(says.values())
    if signal in MEANS:
        total /= len(says)
    if signal == "block_tokens":
        return max(1, round(total))
    if signal in SHARES:
        return min(1.0, total)
    return total if signal in SIGNALS and SIGNALS[signal].type is float else round(total)


def _adapters(running: str, most: str) -> dict[str, Any]:
    slots = int(most) if most.isascii() and most.isdecimal() and len(most) < 7 else 0
    if not slots and not running:
        return {}
    names = tuple(sorted({name.strip() for name in running.split(",")} - {""}))
    return {"adapters": names, **({"adapter_slots": slots} if slots else {})}
