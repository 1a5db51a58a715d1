"""What one GPU of a tensor-parallel group computes of a model: its matrix multiplications, heads and widths."""

from __future__ import annotations

from msgspec import Struct

from headway.latency.shapes import ModelShape
from headway.types import HeadwayError


class Matmul(Struct, frozen=True):
    """Weights of `rows` x `columns` that a step uses `times`; of `experts` like it a token visits `visits`."""

    rows: int
    columns: float
    times: int
    bytes_a_weight: float
    experts: int = 1
    visits: int = 1


class Shard(Struct, frozen=True):
    layers: int
    hidden: int
    heads: float  # of queries, on this GPU
    head_dim: int
    kv_bytes: float  # of keys and values, a token and layer, on this GPU
    matmuls: tuple[Matmul, ...]
    head: Matmul  # from the last hidden state to the vocabulary
    moved: float  # bytes that norms, rotary embedding and activation read and write, a token and layer
    tp: int = 1

    @property
    def weight_bytes(self) -> float:
        """Of all that a step may read."""
        total = 0.0
        for matmul in (*self.matmuls, self.head):
            total += matmul.rows * matmul.columns * matmul.times * matmul.experts * matmul.bytes_a_weight
        return total


def shard(model: ModelShape, tp: int, where: str = "model") -> Shard:
    """The part of each of `tp` GPUs: heads, widths and vocabulary are split; fewer KV heads than GPUs are repeated."""
    if not model.hidden:
        raise HeadwayError(
            f"{where}: the hardware model needs the shape of {model.name}: hidden, kv_heads, intermediate and vocab."
        )
    hidden, size = model.hidden, float(model.weight_size)
    queries = model.heads * model.head_dim / tp
    kv = max(model.kv_heads / tp, 1.0) * model.head_dim
    sparse = model.layers - model.dense_layers if model.experts else 0
    dense = model.layers - sparse
    found = [
        Matmul(hidden, queries + 2 * kv, model.layers, size),
        Matmul(hidden, queries, model.layers, size),
    ]
    width = 0.0  # of the activations, over all layers
    if dense and model.intermediate:
        found += _feed_forward(hidden, model.intermediate / tp, dense, size)
        width += dense * model.intermediate
    if sparse:
        found += _feed_forward(
            hidden, model.expert_intermediate / tp, sparse, size, model.experts, model.experts_per_token
        )
        found.append(Matmul(hidden, model.experts, sparse, 2.0))  # the router, which no one splits or quantises
        width += sparse * model.expert_intermediate * model.experts_per_token
        if model.shared_intermediate:
            found += _feed_forward(hidden, model.shared_intermediate / tp, sparse, size)
            width += sparse * model.shared_intermediate
    return Shard(
        model.layers,
        hidden,
        model.heads / tp,
        model.head_dim,
        2 * kv * float(model.kv_size),
        tuple(found),
        Matmul(hidden, model.vocab / tp, 1, max(size, 2.0)),
        2 * (8 * hidden + 3 * width / (model.layers * tp) + 2 * (queries + 2 * kv)),
        tp,
    )


def _feed_forward(
    hidden: int, width: float, layers: int, size: float, experts: int = 1, visits: int = 1
) -> list[Matmul]:
    """Gate and up in one, and down, which is given by its transpose: only the product counts."""
    return [
        Matmul(hidden, 2 * width, layers, size, experts, visits),
        Matmul(hidden, width, layers, size, experts, visits),
    ]
