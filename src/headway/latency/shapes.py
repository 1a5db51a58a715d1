"""Model shapes: the few figures of a transformer that its step time and its KV cache follow from."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any, Final

from msgspec import Struct

from headway import section
from headway.latency.figures import count, positive
from headway.latency.tables import Table, load
from headway.types import HeadwayError
from headway.wording import shown

MOST_PARAMS: Final = 10**15


class ModelShape(Struct, frozen=True):
    name: str
    layers: int
    heads: int
    head_dim: int
    active_params: int  # used for one token; below all of them for a mixture of experts
    weight_bytes: int
    kv_bytes_per_token: int


class ModelFigures(Struct):
    """A model as a mapping: `{layers: 32, hidden: 4096, heads: 32, kv_heads: 8, params: 8.03B}`."""

    layers: Any
    hidden: Any
    heads: Any
    params: Any
    kv_heads: Any = None  # default: heads
    head_dim: Any = None  # default: hidden / heads
    active_params: Any = None  # default: params
    dtype_bytes: Any = 2  # of weights and KV cache alike: 2 for BF16, 1 for FP8
    name: str = "custom"


def read_model(data: object, where: str) -> ModelShape:
    """A model shape from its name in the table or from its figures."""
    if isinstance(data, str):
        return models().find(data, "model", where)
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected a model's name or a mapping of its figures, got {shown(data)}.")
    given = section.read(ModelFigures, data, where)
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
    size = positive(given.dtype_bytes, f"{where}.dtype_bytes")
    if not Fraction(1, 10) <= size <= 16:
        raise HeadwayError(f"{where}.dtype_bytes: must lie between 0.1 and 16, got {shown(given.dtype_bytes)}.")
    kv_bytes = 2 * layers * kv_heads * head_dim * size  # keys and values
    weights = round(params * size)
    kv = max(1, round(kv_bytes))
    return ModelShape(given.name, layers, heads, head_dim, active, weights, kv)


@cache
def models() -> Table[ModelShape]:
    return load("models.yaml", "models", lambda name, figures: read_model({"name": name, **figures}, f"models.{name}"))
