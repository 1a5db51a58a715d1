"""Model shapes: the figures of a transformer that its step time and its KV cache follow from."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any, Final

from msgspec import Struct

from headway.config import section
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.latency.exact_numbers import count, positive
from headway.latency.model_config import read_config
from headway.latency.tables import Table, figures_of, load

MOST_PARAMS: Final = 10**15


class ModelShape(Struct, frozen=True):
    name: str
    layers: int
    heads: int
    head_dim: int
    active_params: int  # used for one token; below all of them for a mixture of experts
    weight_bytes: int
    kv_bytes_per_token: int
    hidden: int = 0  # 0: the shape below is not known
    kv_heads: int = 0
    intermediate: int = 0  # width of a feed-forward layer
    vocab: int = 0
    experts: int = 0  # 0: not a mixture
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0  # of the experts that every token visits, together
    dense_layers: int = 0  # of a mixture, layers without experts
    weight_size: Fraction = Fraction(2)  # bytes of a weight
    kv_size: Fraction = Fraction(2)  # bytes of a number in the KV cache


class ModelFigures(Struct):
    """A model as a mapping: `{layers: 32, hidden: 4096, heads: 32, kv_heads: 8, params: 8.03B}`."""

    layers: Any
    hidden: Any
    heads: Any
    params: Any
    kv_heads: Any = None  # default: heads
    head_dim: Any = None  # default: hidden / heads
    active_params: Any = None  # default: params
    intermediate: Any = None  # default: what the params leave for it
    vocab: Any = None  # default: the last matmul counts as part of the layers
    experts: Any = None
    experts_per_token: Any = None
    expert_intermediate: Any = None
    shared_intermediate: Any = None
    dense_layers: Any = None
    dtype_bytes: Any = 2  # of weights, and of the KV cache where it has none of its own: 2 for BF16, 1 for FP8
    kv_dtype_bytes: Any = None
    name: str = "custom"


def read_model(data: object, where: str) -> ModelShape:
    """A model shape from its name in the table, from its figures, or from a `config.json` as published with weights.

    A mapping may start from a model of the table: `{like: llama-3.1-8b, dtype_bytes: 1}`.
    """
    if isinstance(data, str):
        if data.endswith(".json"):
            return _shape(section.read(ModelFigures, read_config(data, where), where), where)
        return models().find(data, "model", where)
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected a model's name or a mapping of its figures, got {shown(data)}.")
    if "like" in data:
        known = models().find(str(data["like"]), "model", f"{where}.like")
        own = {key: value for key, value in data.items() if key != "like"}
        data = {"name": known.name} | figures_of("models.yaml", "models")[known.name] | own
    return _shape(section.read(ModelFigures, data, where), where)


def _shape(given: ModelFigures, where: str) -> ModelShape:
    layers = count(given.layers, f"{where}.layers")
    hidden = count(given.hidden, f"{where}.hidden")
    heads = count(given.heads, f"{where}.heads")
    params = count(given.params, f"{where}.params", MOST_PARAMS)
    kv_heads = heads if given.kv_heads is None else count(given.kv_heads, f"{where}.kv_heads")
    active = (
        params if given.active_params is None else count(given.active_params, f"{where}.active_params", MOST_PARAMS)
    )
    if given.head_dim is None and hidden % heads:
        raise HeadwayError(f"{where}: 'head_dim' is missing, and hidden ({hidden}) is no multiple of heads ({heads}).")
    head_dim = hidden // heads if given.head_dim is None else count(given.head_dim, f"{where}.head_dim")
    if heads % kv_heads:
        raise HeadwayError(f"{where}.kv_heads: must divide heads ({heads}), got {kv_heads}.")
    if active > params:
        raise HeadwayError(f"{where}.active_params: must not be above params ({params}), got {active}.")
    size = _size(given.dtype_bytes, f"{where}.dtype_bytes")
    kv_size = size if given.kv_dtype_bytes is None else _size(given.kv_dtype_bytes, f"{where}.kv_dtype_bytes")
    kv_bytes = 2 * layers * kv_heads * head_dim * kv_size  # keys and values
    widths = _widths(given, where, layers, hidden, active, 2 * (heads + kv_heads) * head_dim)
    return ModelShape(
        given.name,
        layers,
        heads,
        head_dim,
        active,
        round(params * size),
        max(1, round(kv_bytes)),
        hidden,
        kv_heads,
        weight_size=size,
        kv_size=kv_size,
        **widths,
    )


def _size(value: object, where: str) -> Fraction:
    size = positive(value, where)
    if not Fraction(1, 10) <= size <= 16:
        raise HeadwayError(f"{where}: must lie between 0.1 and 16, got {shown(value)}.")
    return size


def _widths(given: ModelFigures, where: str, layers: int, hidden: int, active: int, attended: int) -> dict[str, int]:
    """Of feed-forward layers, experts and vocabulary; `attended` is the width of the attention's matrices together."""
    mixture = ("experts", "experts_per_token", "expert_intermediate")
    absent = [key for key in mixture if getattr(given, key) is None]
    if 0 < len(absent) < len(mixture):
        raise HeadwayError(f"{where}: {absent[0]!r} is missing; a mixture of experts has {', '.join(mixture)}.")
    optional = ("intermediate", "vocab", *mixture, "shared_intermediate", "dense_layers")
    found = {
        key: count(getattr(given, key), f"{where}.{key}") for key in optional if getattr(given, key) not in (None, 0)
    }
    if found.get("experts_per_token", 0) > found.get("experts", 0):
        raise HeadwayError(f"{where}.experts_per_token: must not be above experts ({found['experts']}).")
    if found.get("dense_layers", 0) > layers:
        raise HeadwayError(f"{where}.dense_layers: must not be above layers ({layers}).")
    if "intermediate" not in found and "experts" not in found:
        left = active - found.get("vocab", 0) * hidden - layers * attended * hidden
        found["intermediate"] = max(0, left // (3 * hidden * layers))
    return found


@cache
def models() -> Table[ModelShape]:
    return load("models.yaml", "models", lambda name, figures: read_model({"name": name, **figures}, f"models.{name}"))
