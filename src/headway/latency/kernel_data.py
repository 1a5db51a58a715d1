"""Look up kernel times for one model on one GPU. The package aiconfigurator-core contains the measurements."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import astuple

from headway.config.wording import join_words, shown
from headway.errors import HeadwayError, missing_extra
from headway.latency.gpus import Gpu
from headway.latency.shapes import ModelShape

T = TypeVar("T")

PACKAGE: Final = "aiconfigurator-core"
SYSTEMS: Final = {  # name of a GPU in Headway -> name of the system in the package aiconfigurator
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "a100-80gb": "a100_sxm",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
GEMMS: Final = {Fraction(2): "bfloat16", Fraction(1): "fp8", Fraction(1, 2): "int4_wo"}  # bytes per weight -> format
CACHES: Final = {Fraction(2): "bfloat16", Fraction(1): "fp8"}  # bytes per number in the KV cache -> format
ATTENTION: Final = ("context_attention", "generation_attention")
LOGITS: Final = ("context_logits_gemm", "generation_logits_gemm")


class Source(Struct, frozen=True):
    """The names that identify one set of measurements in the package."""

    system: str
    backend: str
    version: str

    def words(self) -> str:
        return f"{PACKAGE} {version_of(PACKAGE)}, {self.backend} {self.version} on {self.system}"


class Kernels:
    """The times of the kernels of a step, in milliseconds. Each method returns a sum over all layers."""

    def __init__(self, handle: Any) -> None:
        self._prompts = _Phase(handle.evaluate_context_ops)
        self._decodes = _Phase(handle.evaluate_generation_ops)

    def tokens(self, count: int, prompts: bool) -> float:
        """Return the time of the work that depends only on the number of tokens: matmuls, experts, norms and
        all-reduces. With `prompts`, the kernels of prefill are used, otherwise those of decode."""
        if prompts:
            return self._prompts.time(self._prompts.rest, 1, count)
        return self._decodes.time(self._decodes.rest, count, 1)

    def logits(self, sequences: int) -> float:
        return self._decodes.time(self._decodes.logits, sequences, 1)

    def decodes(self, count: int, context: int) -> float:
        """Return the attention time of `count` decoding sequences whose contexts sum to `context` tokens."""
        return self._decodes.time(self._decodes.attention, count, max(1, context // count))

    def chunk(self, tokens: int, past: int) -> float:
        return self._prompts.time(self._prompts.attention, 1, tokens, prefix=past)


class _Phase:
    """The operations of one phase (prompts or decodes), as indexes into the package's list of operations."""

    def __init__(self, evaluate: Any) -> None:
        self._evaluate = evaluate
        names = list(self._names())
        self.attention = [place for place, name in enumerate(names) if name in ATTENTION]
        self.logits = [place for place, name in enumerate(names) if name in LOGITS]
        self.rest = [place for place, name in enumerate(names) if name not in (*ATTENTION, *LOGITS)]

    def time(self, places: list[int], batch: int, length: int, **more: int) -> float:
        total = 0.0
        for _, milliseconds, _, _ in self._evaluate(places, batch_size=batch, s=length, **more):
            total += milliseconds
        return total

    def _names(self) -> Iterator[str]:
        place = 0
        while True:
            try:
                ((name, _, _, _),) = self._evaluate([place], batch_size=1, s=1)
            except ValueError as error:
                if "out of range" in str(error):  # this index is beyond the last operation
                    return
                raise
            yield name
            place += 1


def find_source(system: object, backend: object, version: object, gpu: Gpu, where: str) -> Source:
    """Return the set of measurements that a `latency:` section names. If it does not exist, raise an error that lists
    the existing sets."""
    try:
        data = import_module("aiconfigurator_core.sdk.perf_database")
    except ImportError:
        raise missing_extra(f"{where}.model", PACKAGE, "aiconfigurator") from None
    for key, value in (("system", system), ("backend", backend), ("version", version)):
        if not isinstance(value, str):
            raise HeadwayError(f"{where}.{key}: expected a name, got {shown(value)}.")
    system_name = SYSTEMS.get(gpu.name, gpu.name) if system == "auto" else str(system)
    with _quiet():
        slots = data.get_version_slots(system_name, backend)
        if slots is None:
            known = data.get_supported_databases()
            key, value, options = "system", shown(system_name), known
            if system_name in known:
                key, value, options = "backend", f"{shown(backend)} on {system_name}", known[system_name]
            choices = join_words(sorted(options), "or")
            raise HeadwayError(f"{where}.{key}: {PACKAGE} has no kernel times of {value}. Set {key!r} to {choices}.")
    chosen = slots["current"] if version == "auto" else slots.get(version, version)
    if chosen not in slots.values():
        versions = join_words(list(dict.fromkeys(slots.values())))
        raise HeadwayError(
            f"{where}.version: {PACKAGE} has no {backend} {shown(version)} on {system_name}, only {versions}."
        )
    return Source(system_name, str(backend), chosen)


def with_kernels(model: ModelShape, tp: int, source: Source, use: Callable[[Kernels], T]) -> T:
    """Call `use` with the kernels of a model, and return the result. The package gets only the shape of the model, not
    its name.

    Errors do not name a section of the scenario, because callers cache the result and may use it for several sections.
    """
    sdk = import_module("aiconfigurator_core.sdk")
    config, quantised = _config(model, tp)
    try:
        with _quiet(), TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
            handle = sdk.EngineHandle.compile(
                folder,
                source.system,
                source.backend,
                backend_version=source.version,
                tp_size=tp,
                moe_tp_size=tp if model.experts else 1,
                **quantised,
            )
            return use(Kernels(handle))
    except (RuntimeError, ValueError, AssertionError) as error:  # the package raises these if it has no data
        why = str(error).strip().partition("\n")[0].removeprefix("perf database error: ")
        why = why.partition(" at /")[0].rstrip(".")  # drop the path of the package's file
        there = _mixtures(model, source) if model.experts else ""
        raise HeadwayError(
            f"{source.words()} has no kernel times of {model.name} with tp {tp} ({why}).{there}"
        ) from None


def _config(model: ModelShape, tp: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return two things: the shape of a model, as the content of a config.json that the package can read, and the
    number formats, by the names that the package uses."""
    if not (model.hidden and model.vocab and (model.experts or model.intermediate)):
        raise HeadwayError(
            f"the shape of {model.name} is incomplete. aiconfigurator needs hidden, intermediate and vocab."
        )
    if model.shared_intermediate or model.dense_layers:
        raise HeadwayError(
            f"{model.name} has shared experts or layers without experts, which aiconfigurator supports only for models "
            "that it knows. Use the latency model 'hardware'."
        )
    if model.heads % tp:
        raise HeadwayError(f"aiconfigurator cannot split {model.heads} heads evenly over {tp} GPUs.")
    for key, size, known in (("dtype_bytes", model.weight_size, GEMMS), ("kv_dtype_bytes", model.kv_size, CACHES)):
        if size not in known:
            sizes = " or ".join(f"{float(known_size):g}" for known_size in known)
            raise HeadwayError(f"aiconfigurator has no kernels for {key} {float(size):g}. It has {sizes}.")
    config: dict[str, Any] = {
        "architectures": ["MixtralForCausalLM" if model.experts else "LlamaForCausalLM"],
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.intermediate or model.expert_intermediate,
        "vocab_size": model.vocab,
        "max_position_embeddings": 1 << 20,
    }
    quantised = {"gemm_quant_mode": GEMMS[model.weight_size], "kvcache_quant_mode": CACHES[model.kv_size]}
    if model.experts:
        quantised["moe_quant_mode"] = GEMMS[model.weight_size]
        config |= {
            "num_local_experts": model.experts,
            "num_experts_per_tok": model.experts_per_token,
            "moe_intermediate_size": model.expert_intermediate,
        }
    return config, quantised | {"fmha_quant_mode": "bfloat16"}


def _mixtures(model: ModelShape, source: Source) -> str:
    """Return a sentence that lists the measured mixtures of experts that have the model's weight format."""
    with _quiet():
        data = import_module("aiconfigurator_core.sdk.perf_database").get_database(*astuple(source))
        import_module("aiconfigurator_core.sdk.operations").MoE.load_data(data)
    measured: dict[str, None] = {}
    for mode, spread in dict(data._moe_data or {}).items():
        if mode.name == GEMMS[model.weight_size]:
            for topk, counts in next(iter(spread.values())).items():
                for experts, hidden in counts.items():
                    measured |= {f"{topk} of {experts} × {w} from {h}": None for h in hidden for w in hidden[h]}
    if not measured:
        return ""
    form = "experts per token of all experts × width of an expert from hidden size"
    return f" Measured mixtures ({form}): {', '.join(sorted(measured))}."


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the package's log messages about tables that Headway does not use."""
    logger = logging.getLogger("aiconfigurator_core")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
