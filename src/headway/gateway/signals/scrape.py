"""Reads an engine's load from its Prometheus page, for several engines and versions.

A page may have 50 kB, so `parse` reads only the lines with known names. It skips invalid lines.
"""

import math
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from headway.views.instance import REPORTED, SIGNALS

LABELS: Final = re.compile(r'([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"')
ESCAPED: Final = re.compile(r"\\(.)")
LARGEST: Final = 1e15
# These labels distinguish ranks that compute a request together. Each such rank reports the same request.
TOGETHER: Final = frozenset(("tp_rank", "pp_rank", "moe_ep_rank", "ep_rank", "pid"))


class Name(NamedTuple):
    """The meaning of a metric: the `signal` that it reports, a label that its lines must have (`only`), and the factor
    by which to multiply its values (`scale`)."""

    signal: str
    only: tuple[str, str] | None = None
    scale: float = 1.0

    def applies_to(self, labels: dict[str, str]) -> bool:
        """Return whether to use a line with these labels. Lines for a single priority are ignored, because the line for
        all priorities includes them."""
        return (self.only is None or labels.get(self.only[0]) == self.only[1]) and not labels.get("priority")


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
    "hicache_host_used_tokens": Name("cpu_tokens_used"),
    "hicache_host_total_tokens": Name("cpu_tokens"),
}
LMCACHE: Final = {  # used for every engine, because LMCache adds its series to the engine's page
    "local_cache_usage": Name("cpu_bytes_used"),
    "local_storage_usage": Name("disk_bytes_used"),
    "remote_cache_usage": Name("remote_bytes_used"),
}
LLAMACPP: Final = {
    "requests_deferred": Name("queued"),
    "requests_processing": Name("running"),
    "kv_cache_usage_ratio": Name("kv_usage"),  # only older builds of this engine have this series
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
TRITON: Final = {  # each series reports several signals; a label says which signal a line reports
    "nv_trt_llm_request_metrics": [
        Name("queued", ("request_type", "waiting")),
        Name("running", ("request_type", "scheduled")),
    ],
    "nv_trt_llm_kv_cache_block_metrics": [
        Name("kv_usage", ("kv_cache_block_type", "fraction")),
        Name("kv_blocks", ("kv_cache_block_type", "max")),
        Name("block_tokens", ("kv_cache_block_type", "tokens_per")),
    ],
}
DEVICE: Final = {  # used for every engine, because an engine's page may include the series of a GPU exporter
    "DCGM_FI_DEV_POWER_USAGE": Name("watts"),
    "DCGM_FI_PROF_SM_ACTIVE": Name("busy"),
    "DCGM_FI_DEV_GPU_UTIL": Name("busy", scale=0.01),
}
# If several engines share an address, the values of these signals are averaged. All other values are added up.
SHARES: Final = frozenset(("kv_usage", *[name for name in REPORTED if SIGNALS[name].kind == "share"]))
MEANS: Final = SHARES | {"block_tokens"}


def _spellings(prefix: str, names: dict[str, Name]) -> dict[str, list[Name]]:
    """Return all spellings of the names: with and without _total, with OpenTelemetry's underscores instead of colons,
    and with Ray's prefix."""
    prefixes = (f"{prefix}:", f"{prefix}_", f"ray_{prefix}:", f"ray_{prefix}_")
    return {
        before + name + end: [meaning]
        for name, meaning in names.items()
        for before in prefixes
        for end in ("", "_total")
    }


TABLES: Final[dict[str, dict[str, list[Name]]]] = {
    "vllm": _spellings("vllm", VLLM),
    "sglang": _spellings("sglang", SGLANG),
    "llamacpp": _spellings("llamacpp", LLAMACPP),
    "trtllm": {**_spellings("trtllm", TRTLLM), **TRITON},
}
TABLES["auto"] = {name: meanings for table in list(TABLES.values()) for name, meanings in table.items()}
for _table in TABLES.values():
    _table.update(_spellings("lmcache", LMCACHE))
    _table.update({name: [meaning] for name, meaning in DEVICE.items()})

Sums = dict[str, dict[tuple[tuple[str, str], ...], float]]  # signal -> labels of the engine that reports it -> value


def parse(text: str, engine: str = "auto", watts: str | None = None, rank: int | None = None) -> dict[str, Any]:
    """Return the values that the page has, or those of one data-parallel rank:

    queued, running        requests
    kv_usage               fraction of the KV cache in use
    kv_blocks, block_tokens, kv_tokens, kv_tokens_used   blocks, tokens in a block, tokens in total, tokens in use
    hits, queries          cached tokens and all prompt tokens since the engine started; or hit_rate, if the page has it
    cpu_tokens_used, cpu_tokens   tokens in CPU memory, and how many fit there
    cpu_bytes_used, disk_bytes_used, remote_bytes_used   bytes of KV cache in CPU memory, on disk and in a remote store
    adapters, adapter_slots   LoRA adapters with requests in the batch, sorted, and the maximum number in a batch
    busy, watts            utilisation and power of its GPUs; the argument `watts` names another series for the power

    Several engines may share an address (data-parallel ranks, models). Their counts are added up, and their fractions
    are averaged.
    """
    table = TABLES.get(engine, TABLES["auto"])
    own = None if rank is None else str(rank)
    if watts:
        table = {**table, watts: [Name("watts")]}
    sums: Sums = {}
    # Time and labels of the newest line with adapters. Older lines are ignored, because the page keeps outdated lines.
    adapters = (-1.0, "", "")
    for line in text.split("\n"):
        cut = line.find("{")
        name = line[:cut] if cut > 0 else line.partition(" ")[0]
        meanings = table.get(name)
        if meanings is None:
            continue
        read = _sample(line, len(name))
        if read is None:
            continue
        labels, value = read
        if own is not None and labels.get("engine", labels.get("dp_rank", own)) != own:
            continue  # it is about another rank; a line without these labels is about the whole engine
        for meaning in meanings:
            if meaning.signal == "cache_config":
                _cache_config(sums, labels)
            elif meaning.signal == "lora":
                adapters = max(adapters, (value, labels.get("running_lora_adapters", ""), labels.get("max_lora", "")))
            elif meaning.applies_to(labels):
                _put(sums, meaning.signal, labels.items(), value * meaning.scale)
    figures: dict[str, Any] = {signal: _together(signal, values) for signal, values in sums.items()}
    if adapters[0] >= 0:
        figures.update(_adapters(*adapters[1:]))
    return figures


def _sample(line: str, at: int) -> tuple[dict[str, str], float] | None:
    """Return the labels and the value of a line whose name ends at `at`. If the value is implausible, return None."""
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
    source = tuple(sorted(label for label in labels if label[0] not in TOGETHER))
    values = sums.setdefault(signal, {})
    values[source] = max(value, values.get(source, 0.0))


def _cache_config(sums: Sums, labels: dict[str, str]) -> None:
    source = [(label, labels[label]) for label in ("engine", "dp_rank", "model_name") if label in labels]
    for signal, names in (
        ("kv_blocks", ("num_gpu_blocks", "num_pages")),
        ("block_tokens", ("block_size", "page_size")),
    ):
        for name in names:
            value = _number(labels.get(name, ""))
            if value:
                _put(sums, signal, source, value)


def _together(signal: str, values: dict[tuple[tuple[str, str], ...], float]) -> float | int:
    total = math.fsum(values.values())
    if signal in MEANS:
        total /= len(values)
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
