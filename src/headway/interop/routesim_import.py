"""Read a configuration of RouteSim (TOML) as a scenario: its cluster, its compute model and its trace."""

import os
import tomllib
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from headway.config.documents import read_text
from headway.config.section import read
from headway.config.units import duration_text
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError, argument
from headway.interop import Translation, plain
from headway.scenario.scenario import validate
from headway.types import PS_PER_SECOND, PS_PER_US, Json
from headway.workload.traces.source import head

GPUS: Final = {"h100sxm": "h100", "h100": "h100", "a100sxm80": "a100-80gb", "a100": "a100-80gb", "l40s": "l40s"}
FORMATS: Final = {
    "compact_jsonl": "routesim",
    "jsonl": "routesim",
    "mooncake": "mooncake",
    "otel": "otel",
    "opentelemetry": "otel",
}
SYNTHETIC: Final = "synthetic"
MOONCAKE_BLOCK: Final = 16  # number of tokens in a block, as RouteSim reads Mooncake's traces
MOONCAKE_PUBLISHED: Final = 512  # number of tokens in a block of Mooncake's published traces
ALGORITHMS: Final = (
    "round_robin",
    "least_outstanding",
    "least_kv",
    "prefix_aware",
    "prefix_overlap",
    "session_affinity",
    "cost_escalation",
)


# --- keys of a configuration ----------------------------------------------------------------------------------------


_Count = Annotated[int, Meta(ge=1)]
_CountOrZero = Annotated[int, Meta(ge=0)]
_Positive = Annotated[float, Meta(gt=0)]
_PositiveOrZero = Annotated[float, Meta(ge=0)]


class _Simulation(Struct):
    name: str = "simulation"
    seed: _CountOrZero = 42
    warmup_requests: _CountOrZero = 0


class _ComputeModel(Struct):
    prefill_tokens_per_sec: _Positive = 50_000.0
    decode_tokens_per_sec_batch1: _Positive = 80.0
    decode_throughput_saturation_batch: _Count = 64
    decode_tokens_per_sec_saturated: _Positive = 3200.0


class _Disaggregated(Struct):
    enabled: bool = False
    prefill_backends: _CountOrZero = 0
    decode_backends: _CountOrZero = 0
    kv_transfer_latency_us: _CountOrZero = 500
    kv_transfer_bandwidth_gb_s: _Positive = 50.0
    num_layers: _Count = 80
    head_dim: _Count = 128
    num_kv_heads: _Count = 8


class _Cluster(Struct):
    num_backends: _Count
    gpu_type: str = "H100Sxm"
    max_batch_tokens: _Count = 16_384
    max_queue_depth: _Count = 256
    kv_cache_blocks: _Count = 32_768
    kv_block_size: _Count = 16
    compute_model: Any = None
    disaggregated: Any = None


class _Trace(Struct):
    format: str = "compact_jsonl"
    path: str | None = None
    generator: str | None = None
    rate: _Positive | None = None
    duration_sec: _Count | None = None
    prompt_tokens_mean: _Positive | None = None
    prompt_tokens_std: _PositiveOrZero | None = None
    gen_tokens_mean: _Positive | None = None
    gen_tokens_std: _PositiveOrZero | None = None
    num_prefixes: _CountOrZero | None = None
    prefix_len_mean: _Positive | None = None


class _Config(Struct):
    simulation: Any
    cluster: Any
    trace: Any


# --- translation ----------------------------------------------------------------------------------------------------


def import_config(
    file: Path, algorithm: str = "round_robin", trace: Path | None = None, folder: Path | None = None
) -> Translation:
    """Translate a configuration to a scenario. `trace` replaces the configuration's trace; the path of the trace is
    relative to `folder`, the folder of the scenario."""
    where, notes = file.name, list[str]()
    config = read(_Config, _parse(file), where)
    simulation = read(_Simulation, config.simulation, f"{where}.simulation")
    cluster = read(_Cluster, config.cluster, f"{where}.cluster")
    split = read(_Disaggregated, cluster.disaggregated or {}, f"{where}.cluster.disaggregated")
    source = read(_Trace, config.trace, f"{where}.trace")
    scenario: Json = {"name": simulation.name, "seed": simulation.seed}
    if simulation.warmup_requests:
        scenario["warmup"] = simulation.warmup_requests
        notes.append("warmup excludes the requests that arrive first; RouteSim excludes those that end first.")
    scenario["workload"] = _Workload(source, f"{where}.trace", notes).read(file, trace, folder or Path())
    scenario["cluster"] = _cluster(cluster, split, f"{where}.cluster", notes)
    scenario["policies"] = {"routing": _routing(algorithm, split.enabled)}
    try:
        validate(scenario)
    except HeadwayError as error:
        raise HeadwayError(f"{where}: the scenario would be invalid: {error}") from None
    return Translation(scenario, notes)


def _parse(file: Path) -> Any:
    text = read_text(file, "TOML")
    try:
        return tomllib.loads(text, parse_float=_finite)
    except HeadwayError as error:
        raise HeadwayError(f"{file}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise HeadwayError(f"{file}: is not TOML ({str(error).rstrip('.')}).") from None


def _finite(text: str) -> float:
    if not isfinite(value := float(text)):
        raise HeadwayError(f"{text} is not a finite number.")
    return value


def _routing(algorithm: str, disaggregated: bool) -> Any:
    if algorithm.replace("-", "_") not in ALGORITHMS:
        raise HeadwayError(f"{argument('algorithm')}: {shown(algorithm)} is unknown.{suggest(algorithm, ALGORITHMS)}")
    name = algorithm.replace("_", "-")
    return {"name": "pair", "prefill": name, "decode": "least-outstanding"} if disaggregated else name


def _cluster(cluster: _Cluster, split: _Disaggregated, where: str, notes: list[str]) -> Json:
    gpu = GPUS.get(cluster.gpu_type.lower())
    if gpu is None:
        raise HeadwayError(f"{where}.gpu_type: {shown(cluster.gpu_type)} is unknown. Known: H100Sxm, A100Sxm80, L40S.")
    notes.append("max_batch_tokens limits the tokens of a step; RouteSim limits all tokens of the running requests.")
    notes.append("max_queue scales load scores; RouteSim also sends no request to a backend with a full queue.")
    result: Json = {
        "gpu": gpu,
        "max_batch_tokens": cluster.max_batch_tokens,
        "max_queue": cluster.max_queue_depth,
        "kv": {"gpu_blocks": cluster.kv_cache_blocks, "block_tokens": cluster.kv_block_size},
        "latency": _latency(read(_ComputeModel, cluster.compute_model or {}, f"{where}.compute_model"), where),
    }
    if not split.enabled:
        if split.prefill_backends or split.decode_backends:
            notes.append("disaggregated is ignored: it is not enabled.")
        return {"instances": cluster.num_backends, **result}
    return result | _halves(cluster, split, f"{where}.disaggregated", notes)


def _latency(model: _ComputeModel, where: str) -> Json:
    if model.decode_throughput_saturation_batch < 2:
        wrong = "must be at least 2. For the same decode rate at every batch size, set both decode rates to that rate"
        raise HeadwayError(f"{where}.compute_model.decode_throughput_saturation_batch: {wrong}.")
    return {
        "model": "piecewise",
        "prefill_tokens_per_s": plain(model.prefill_tokens_per_sec),
        "decode_tokens_per_s": plain(model.decode_tokens_per_sec_batch1),
        "saturation_batch": model.decode_throughput_saturation_batch,
        "saturated_tokens_per_s": plain(model.decode_tokens_per_sec_saturated),
    }


def _halves(cluster: _Cluster, split: _Disaggregated, where: str, notes: list[str]) -> Json:
    total = split.prefill_backends + split.decode_backends
    if total != cluster.num_backends or not (split.prefill_backends and split.decode_backends):
        wrong = f"prefill_backends and decode_backends must be above 0 and add up to {cluster.num_backends}"
        raise HeadwayError(f"{where}: {wrong}, got {split.prefill_backends} and {split.decode_backends}.")
    notes.append("prefill backends compute every prompt; RouteSim may send whole requests to decode backends.")
    heads, width = split.num_kv_heads, split.head_dim
    shape = {"name": "routesim", "layers": split.num_layers, "hidden": heads * width, "heads": heads, "params": "1B"}
    return {
        "model": {**shape, "kv_heads": heads, "head_dim": width},
        "architecture": "disaggregated",
        "prefill": {"instances": split.prefill_backends},
        "decode": {"instances": split.decode_backends},
        "transfer": {
            "latency": duration_text(split.kv_transfer_latency_us * PS_PER_US),
            "bandwidth": f"{plain(split.kv_transfer_bandwidth_gb_s)}GB/s",
            "first_token": "decode",
        },
    }


class _Workload:
    """Reads the section `trace`: a file, or the figures of a synthetic workload."""

    def __init__(self, source: _Trace, where: str, notes: list[str]) -> None:
        self.source, self.where, self.notes = source, where, notes

    def read(self, config: Path, trace: Path | None, folder: Path) -> Json:
        source, where = self.source, self.where
        if source.format == SYNTHETIC and trace is None:
            return self._synthetic()
        if source.format not in FORMATS:
            known = ", ".join((*FORMATS, SYNTHETIC))
            raise HeadwayError(f"{where}.format: {shown(source.format)} is unknown. Known: {known}.")
        for name in source.__struct_fields__[2:]:
            if getattr(source, name) is not None:
                self.notes.append(f"trace.{name} is ignored: it belongs to the format {SYNTHETIC}.")
        if trace is None and source.path is None:
            raise HeadwayError(f"{where}.path: is missing. Set it, or pass {argument('trace')}.")
        path = trace if trace is not None else self._find(Path(str(source.path)), config)
        keys: Json = {"path": os.path.relpath(path, folder), "format": FORMATS[source.format]}
        if source.format == "mooncake":
            keys |= self._block_size(path)
        return {"trace": keys}

    def _block_size(self, path: Path) -> Json:
        """Return `block_tokens` of a Mooncake trace as a mapping. RouteSim assumes 16 tokens per block. If the first
        line has more than twice as many tokens per id, use 512, as in the traces that Mooncake publishes."""
        first = head(path)[:1] if path.is_file() else []
        try:
            line = msgspec.json.decode(first[0]) if first else {}
            tokens_per_id = line["input_length"] / len(line["hash_ids"])
        except (msgspec.DecodeError, KeyError, TypeError, ZeroDivisionError):
            tokens_per_id = MOONCAKE_BLOCK
        if tokens_per_id <= 2 * MOONCAKE_BLOCK:
            return {"block_tokens": MOONCAKE_BLOCK}
        self.notes.append("blocks have 512 tokens, as in Mooncake's published traces; RouteSim assumes 16 tokens.")
        return {"block_tokens": MOONCAKE_PUBLISHED}

    def _find(self, path: Path, config: Path) -> Path:
        """Return the path of the trace. Look for it relative to the working folder, as RouteSim does, and then relative
        to the folders above the configuration."""
        for folder in (Path(), *config.resolve().parents):
            if (folder / path).is_file():
                return folder / path
        self.notes.append(f"trace.path: {path} was not found, neither here nor in a folder above {config.name}.")
        return path

    def _synthetic(self) -> Json:
        source, where = self.source, self.where
        for name in ("rate", "duration_sec", "prompt_tokens_mean", "gen_tokens_mean"):
            if getattr(source, name) is None:
                raise HeadwayError(f"{where}.{name}: is missing. A synthetic trace needs it.")
        self.notes.append("RouteSim reads the keys of synthetic traces but does not run them.")
        if source.generator is not None:
            self.notes.append(f"trace.generator: {source.generator} is ignored: arrivals are a Poisson process.")
        assert source.duration_sec is not None and source.rate is not None
        workload: Json = {
            "rate": f"{plain(source.rate)}/s",
            "duration": duration_text(source.duration_sec * PS_PER_SECOND),
            "prompt_tokens": _normal(source.prompt_tokens_mean, source.prompt_tokens_std),
            "output_tokens": _normal(source.gen_tokens_mean, source.gen_tokens_std),
        }
        if source.num_prefixes:
            tokens = max(1, round(256 if source.prefix_len_mean is None else source.prefix_len_mean))
            workload["prefix"] = {"groups": source.num_prefixes, "tokens": tokens}
        return workload


def _normal(mean: float | None, std: float | None) -> Json:
    assert mean is not None
    return {"dist": "normal", "mean": plain(mean), "std": plain(std or 0.0)}
