"""What the layers of a model keep in the KV cache: every token, a latent vector of every token, the tokens of a sliding
window, or one state for each sequence."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from headway.config import section
from headway.config.keys import QUIET, Form
from headway.config.wording import shown
from headway.errors import HeadwayError

Whole = Annotated[int, Meta(ge=0, le=10**12)]
LINKED: Final = {"sliding": ("window",), "latent": ("rank", "rope", "nope", "value"), "state": ("state_bytes",)}


class KvLayers(Struct, frozen=True):
    """The layers of a model that keep the same kind of content: `{kind: sliding, layers: 18, window: 128}`."""

    kind: Annotated[
        Literal["full", "latent", "sliding", "state"],
        "full: keys and values of every token; latent: a compressed vector of every token (MLA), which every GPU "
        "keeps whole; sliding: keys and values of the last `window` tokens; state: one state for each sequence (Mamba, "
        "linear attention)",
    ]
    layers: Annotated[int, Meta(ge=1, le=10_000), "number of such layers"]
    window: Annotated[Whole, "sliding: tokens to which a token attends, itself included", QUIET] = 0
    rank: Annotated[Whole, "latent: numbers in the compressed vector (kv_lora_rank)", QUIET] = 0
    rope: Annotated[Whole, "latent: numbers of the rotary key beside it (qk_rope_head_dim)", QUIET] = 0
    nope: Annotated[Whole, "latent: width of a head without rotary key (qk_nope_head_dim)", QUIET] = 0
    value: Annotated[Whole, "latent: width of a value (v_head_dim)", QUIET] = 0
    query_rank: Annotated[Whole, "latent: width of compressed queries (q_lora_rank); 0: queries are not compressed"] = 0
    state_bytes: Annotated[Whole, "state: bytes of one sequence's state in one layer, on all GPUs together", QUIET] = 0
    weights: Annotated[Whole, "state: weights of one layer, without its feed-forward part", QUIET] = 0

    def validate(self, where: str) -> KvLayers:
        for key in LINKED.get(self.kind, ()):
            if not getattr(self, key):
                raise HeadwayError(f"{where}.{key}: is missing; layers of kind '{self.kind}' need it.")
        known = (*LINKED.get(self.kind, ()), *{"latent": ("query_rank",), "state": ("weights",)}.get(self.kind, ()))
        for key in self.__struct_fields__[2:]:
            if getattr(self, key) and key not in known:
                raise HeadwayError(f"{where}.{key}: layers of kind '{self.kind}' have no such key; remove it.")
        return self

    def latent_numbers(self) -> int:
        """Return how many numbers a latent layer keeps of a token."""
        return self.rank + self.rope

    def latent_weights(self, hidden: int, heads: float) -> tuple[float, float]:
        """Return the weights of a latent layer that every GPU has, and those of `heads` heads."""
        queries = heads * (self.nope + self.rope)
        split = heads * (self.rank * (self.nope + self.value) + self.value * hidden)
        whole = float(hidden * (self.rank + self.rope))
        if self.query_rank:
            return whole + hidden * self.query_rank, split + queries * self.query_rank
        return whole, split + queries * hidden


LAYERS: Final = Form.of(list[KvLayers])


def read_layers(data: Any, layers: int, where: str) -> tuple[KvLayers, ...]:
    """Return the kinds of layers that a list describes. A model whose layers all keep every token has an empty
    tuple."""
    if not isinstance(data, list) or not data:
        raise HeadwayError(
            f"{where}: expected a list of layers, such as [{{kind: full, layers: 32}}], got {shown(data)}."
        )
    kinds = tuple(section.read(KvLayers, one, f"{where}[{place}]") for place, one in enumerate(data))
    total = 0
    for kind in kinds:
        total += kind.layers
    if total > layers:
        raise HeadwayError(f"{where}: has {total} layers, but the model has {layers}; make them at most equal.")
    for name in ("full", "latent", "sliding", "state"):
        if sum(kind.kind == name for kind in kinds) > 1:
            raise HeadwayError(f"{where}: has several entries of kind '{name}'; Headway models one of each kind.")
    names = {kind.kind for kind in kinds}
    if {"full", "latent"} <= names or ("sliding" in names and names - {"sliding", "full"}):
        wrong = " and ".join(sorted(names))
        raise HeadwayError(
            f"{where}: Headway does not model {wrong} layers together; use full or latent layers, alone or with state "
            "layers, or full layers with sliding ones."
        )
    return () if names == {"full"} and total == layers else kinds


def find_layers(kinds: tuple[KvLayers, ...], name: str) -> KvLayers | None:
    return next((kind for kind in kinds if kind.kind == name), None)


def bytes_per_token(kinds: tuple[KvLayers, ...], layers: int, numbers: int, size: Fraction) -> int:
    """Return the bytes of a token in all layers that keep tokens. `numbers` is the number of keys and values that a
    full or sliding layer keeps of it."""
    total = 0 if kinds else layers * numbers
    for kind in kinds:
        total += kind.layers * {"latent": kind.latent_numbers(), "state": 0}.get(kind.kind, numbers)
    return max(1, round(total * size))


def attention_weights(kinds: tuple[KvLayers, ...], layers: int, hidden: int, heads: int, attended: int) -> int:
    """Return the weights of all attention and state layers of a model. `attended` is the width of the attention
    matrices of a full layer, together."""
    if not kinds:
        return layers * attended * hidden
    total = 0
    for kind in kinds:
        if kind.kind == "latent":
            whole, split = kind.latent_weights(hidden, heads)
            total += kind.layers * round(whole + split)
        else:
            total += kind.layers * (kind.weights if kind.kind == "state" else attended * hidden)
    return total
