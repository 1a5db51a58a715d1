"""Model shapes: the dimensions of a transformer that determine its step time and the size of its KV cache."""

from fractions import Fraction
from functools import cache, partial
from typing import Annotated, Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from headway.config import section
from headway.config.keys import Doc, Form, Unit
from headway.config.schema import Names, Part
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.latency.exact_numbers import COUNT, count, plain_number, positive
from headway.latency.kv_layers import LAYERS, KvLayers, attention_weights, bytes_per_token, read_layers
from headway.latency.model_config import read_config
from headway.latency.tables import SPELLED, Table, document_of, load

MOST_PARAMS: Final = 10**15
# If one of these keys is set, the size of the weights is the sum over the parts of the model.
PARTS: Final = ("attention_dtype_bytes", "expert_dtype_bytes", "head_dtype_bytes")


class ModelShape(Struct, frozen=True):
    name: str
    layers: int
    heads: int
    head_dim: int
    active_params: int  # number of parameters that one token uses; in a mixture of experts, fewer than all
    weight_bytes: int
    kv_bytes_per_token: int
    hidden: int = 0  # 0 if this dimension and the dimensions below are unknown
    kv_heads: int = 0
    intermediate: int = 0  # width of a feed-forward layer
    vocab: int = 0
    experts: int = 0  # 0: not a mixture of experts
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0  # total width of the shared experts, which every token visits
    dense_layers: int = 0  # in a mixture of experts, number of layers without experts
    weight_size: Fraction = Fraction(2)  # bytes per weight of feed-forward layers, and of all that is not named below
    kv_size: Fraction = Fraction(2)  # bytes per number in the KV cache
    attention_size: Fraction = Fraction(2)  # bytes per weight of the attention matrices
    expert_size: Fraction = Fraction(2)  # bytes per weight of the routed experts
    head_size: Fraction = Fraction(2)  # bytes per weight of the embeddings and of the matrix to the vocabulary
    activation_size: Fraction = Fraction(2)  # bytes per number with which matmuls of quantised weights compute
    note: str = ""  # what Headway does not model of this model; runs print it
    kv_groups: tuple[KvLayers, ...] = ()  # kinds of layers; empty if every layer keeps every token


WIDTH: Final = Form.of(Literal[0], COUNT)
BYTES_EACH: Final = Form.of({"type": ["number", "string"], "minimum": 0.1, "maximum": 16})


def _read_width(value: Any, where: str) -> int:
    return 0 if value == 0 else count(value, where)


def _read_size(value: Any, where: str) -> Fraction:
    size = positive(value, where)
    if not Fraction(1, 10) <= size <= 16:
        raise HeadwayError(f"{where}: must lie between 0.1 and 16, got {shown(value)}.")
    return size


Count = Annotated[int, Unit("whole number above 0", count, int, form=COUNT)]
Params = Annotated[int, Unit("whole number above 0", partial(count, most=MOST_PARAMS), int, form=COUNT)]
Width = Annotated[int, Unit("whole number", _read_width, int, form=WIDTH)]
Size = Annotated[Fraction, Unit("number, 0.1 to 16", _read_size, plain_number, form=BYTES_EACH)]


class ModelFigures(Struct):
    """A model as a mapping: `{layers: 32, hidden: 4096, heads: 32, kv_heads: 8, params: 8.03B}`."""

    layers: Annotated[Count, "number of layers"]
    hidden: Annotated[Count, "width of the hidden state"]
    heads: Annotated[Count, "query heads"]
    params: Annotated[Params, "parameters, as in 8.03B"]
    kv_heads: Annotated[Count | None, Doc("key-value heads", default="`heads`")] = None
    head_dim: Annotated[Count | None, Doc("width of a head", default="`hidden` / `heads`")] = None
    active_params: Annotated[Params | None, Doc("parameters that one token uses", default="`params`")] = None
    intermediate: Annotated[
        Width | None, Doc("width of a feed-forward layer", default="computed from the remaining parameters")
    ] = None
    vocab: Annotated[
        Width | None, Doc("size of the vocabulary", default="the output matmul counts as part of the layers")
    ] = None
    experts: Annotated[Width | None, "experts of a layer, in a mixture of experts"] = None
    experts_per_token: Annotated[Width | None, "experts that a token visits"] = None
    expert_intermediate: Annotated[Width | None, "width of an expert"] = None
    shared_intermediate: Annotated[Width | None, "total width of the experts that every token visits"] = None
    dense_layers: Annotated[Width | None, "layers without experts"] = None
    dtype_bytes: Annotated[Size, "bytes per weight: 2 for BF16, 1 for FP8"] = Fraction(2)
    kv_dtype_bytes: Annotated[Size | None, Doc("bytes per number in the KV cache", default="`dtype_bytes`")] = None
    attention_dtype_bytes: Annotated[
        Size | None, Doc("bytes per weight of the attention matrices", default="`dtype_bytes`")
    ] = None
    expert_dtype_bytes: Annotated[
        Size | None, Doc("bytes per weight of the routed experts", default="`dtype_bytes`")
    ] = None
    head_dtype_bytes: Annotated[
        Size | None,
        Doc("bytes per weight of embeddings and output matrix", default="the larger of `dtype_bytes` and 2"),
    ] = None
    activation_bytes: Annotated[
        Size | None,
        Doc("bytes per number with which quantised matmuls compute", default="1 if `dtype_bytes` is 1, else 2"),
    ] = None
    kv_groups: Annotated[
        Any,
        LAYERS,
        Doc(
            "kinds of layers by what they keep in the KV cache, below",
            type="list",
            default="every layer keeps every token",
        ),
    ] = None
    note: Annotated[str | None, Doc("what to print with each run of this model", default="none")] = None
    name: Annotated[str, "name in reports"] = "custom"


NAME: Final = Names(lambda: _model_names(), SPELLED)
ModelSpec = Annotated[  # the name of a model, the path of a published `config.json`, or a mapping with the model's data
    Any,
    Form.of(
        NAME,
        {"type": "string", "pattern": r"\.json$"},
        ModelFigures,
        Part(ModelFigures, changes=True, more={"like": NAME}, required=("like",)),
    ),
]


def read_model(data: object, where: str) -> ModelShape:
    """Return a model shape. `data` is a name in the table, a mapping of keys, or the path of a published `config.json`.

    A mapping may extend a model of the table: `{like: llama-3.1-8b, dtype_bytes: 1}`.
    """
    if isinstance(data, str):
        if data.endswith(".json"):
            published = read_config(data, where)
            shape = _shape(section.read(ModelFigures, published.keys, where), where)
            published.check(shape.weight_bytes)
            return shape
        return models().find(data, "model", where)
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected the name of a model or a mapping of its keys, got {shown(data)}.")
    if "like" in data:
        known = models().find(str(data["like"]), "model", f"{where}.like")
        entry: dict[str, Any] = document_of("models.yaml")["models"][known.name]
        keys = {"name": known.name, **entry, **data}
        data = {key: value for key, value in keys.items() if key not in ("like", "aliases")}
    return _shape(section.read(ModelFigures, data, where), where)


def _shape(figures: ModelFigures, where: str) -> ModelShape:
    layers, hidden, heads, params = figures.layers, figures.hidden, figures.heads, figures.params
    kv_heads = figures.kv_heads or heads
    active = figures.active_params or params
    if figures.head_dim is None and hidden % heads:
        raise HeadwayError(f"{where}: set 'head_dim', since hidden ({hidden}) is not a multiple of heads ({heads}).")
    head_dim = figures.head_dim or hidden // heads
    if heads % kv_heads:
        raise HeadwayError(f"{where}.kv_heads: must divide heads ({heads}), got {kv_heads}.")
    if active > params:
        raise HeadwayError(f"{where}.active_params: must be at most params ({params}), got {active}.")
    size, attended = figures.dtype_bytes, 2 * (heads + kv_heads) * head_dim
    kinds = () if figures.kv_groups is None else read_layers(figures.kv_groups, layers, f"{where}.kv_groups")
    kv_size = figures.kv_dtype_bytes or size
    shape = ModelShape(
        figures.name,
        layers,
        heads,
        head_dim,
        active,
        round(params * size),
        bytes_per_token(kinds, layers, 2 * kv_heads * head_dim, kv_size),  # the factor 2 stands for keys and values
        hidden,
        kv_heads,
        weight_size=size,
        kv_size=kv_size,
        attention_size=figures.attention_dtype_bytes or size,
        expert_size=figures.expert_dtype_bytes or size,
        head_size=figures.head_dtype_bytes or max(size, Fraction(2)),
        activation_size=figures.activation_bytes or Fraction(1 if size == 1 else 2),
        note=figures.note or "",
        kv_groups=kinds,
        **_widths(figures, where, active, attention_weights(kinds, layers, hidden, heads, attended)),
    )
    if any(getattr(figures, key) for key in PARTS):
        return replace(shape, weight_bytes=_weight_bytes(shape, params))
    return shape


def _weight_bytes(shape: ModelShape, params: int) -> int:
    """Return the size of all weights, if the parts of the model have different numbers of bytes per weight."""
    hidden, sparse = shape.hidden, shape.layers - shape.dense_layers if shape.experts else 0
    attended = 2 * (shape.heads + shape.kv_heads) * shape.head_dim
    attention = attention_weights(shape.kv_groups, shape.layers, hidden, shape.heads, attended)
    experts = sparse * 3 * hidden * shape.expert_intermediate * shape.experts
    routers = sparse * hidden * shape.experts
    layers = 3 * hidden * (sparse * shape.shared_intermediate + (shape.layers - sparse) * shape.intermediate)
    # The rest of the parameters shows whether the embeddings and the output matrix are one matrix or two.
    matrix = hidden * shape.vocab
    rest = params - attention - experts - routers - layers
    head = matrix * (2 if 2 * rest > 3 * matrix else 1)
    small = max(0, params - attention - experts - layers - head)  # routers, norms, biases: never quantised
    quantised = attention * shape.attention_size + experts * shape.expert_size + layers * shape.weight_size
    return round(quantised + head * shape.head_size + small * max(shape.weight_size, Fraction(2)))


def _widths(figures: ModelFigures, where: str, active: int, attention: int) -> dict[str, int]:
    """Return the widths of layers, experts and vocabulary. `attention` is the number of weights of all attention
    layers."""
    mixture = ("experts", "experts_per_token", "expert_intermediate")
    absent = [key for key in mixture if getattr(figures, key) is None]
    if 0 < len(absent) < len(mixture):
        raise HeadwayError(f"{where}: {absent[0]!r} is missing. A mixture of experts needs {', '.join(mixture)}.")
    optional = ("intermediate", "vocab", *mixture, "shared_intermediate", "dense_layers")
    widths: dict[str, int] = {key: width for key in optional if (width := getattr(figures, key))}
    for key, limit in (("experts_per_token", "experts"), ("dense_layers", "layers")):
        most = getattr(figures, limit) or 0
        if widths.get(key, 0) > most:
            raise HeadwayError(f"{where}.{key}: must be at most {limit} ({most}), got {widths[key]}.")
    if "intermediate" not in widths and "experts" not in widths:
        left = active - widths.get("vocab", 0) * figures.hidden - attention
        widths["intermediate"] = max(0, left // (3 * figures.hidden * figures.layers))
    return widths


def _model_names() -> list[str]:
    return models().names


@cache
def models() -> Table[ModelShape]:
    return load("models.yaml", "models", lambda name, figures: read_model({"name": name, **figures}, f"models.{name}"))
