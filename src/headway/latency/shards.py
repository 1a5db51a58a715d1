"""What one GPU of a tensor-parallel group computes of a model: its matrix multiplications, heads and widths."""

from typing import Final

from msgspec import Struct

from headway.errors import HeadwayError
from headway.latency.exact_numbers import share
from headway.latency.gpus import Gpu, gpus
from headway.latency.shapes import ModelShape


class Matmul(Struct, frozen=True):
    """Weights that all tokens of a step are multiplied with; of `experts` such sets a token visits `visits`. Matrices
    of one kind are one: reading and computing grow alike with the size, so that only the sum counts."""

    weights: float
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
    logits: float  # of a sequence, on this GPU
    moved: float  # bytes that norms, rotary embedding and activation read and write, a token and layer
    tp: int = 1

    @property
    def weight_bytes(self) -> float:
        """Of all that a step may read."""
        total = 0.0
        for matmul in (*self.matmuls, self.head):
            total += matmul.weights * matmul.experts * matmul.bytes_a_weight
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
    always = model.layers * hidden * (2 * queries + 2 * kv)  # of each token: from it to heads, and back
    width = 0.0  # of the activations, over all layers
    matmuls = []
    if sparse:
        expert = 3 * hidden * model.expert_intermediate / tp  # gate, up and down
        matmuls.append(Matmul(sparse * expert, size, model.experts, model.experts_per_token))
        matmuls.append(Matmul(sparse * hidden * model.experts, 2.0))  # the router, which no one splits or quantises
        always += sparse * 3 * hidden * model.shared_intermediate / tp
        width += sparse * (model.expert_intermediate * model.experts_per_token + model.shared_intermediate)
    dense = model.layers - sparse
    always += dense * 3 * hidden * model.intermediate / tp
    width += dense * model.intermediate
    matmuls.append(Matmul(always, size))
    return Shard(
        model.layers,
        hidden,
        model.heads / tp,
        model.head_dim,
        2 * kv * float(model.kv_size),
        tuple(matmuls),
        Matmul(hidden * model.vocab / tp, max(size, 2.0)),
        model.vocab / tp,
        2 * (8 * hidden + 3 * width / (model.layers * tp) + 2 * (queries + 2 * kv)),
        tp,
    )


# What fits: KV blocks of an instance, and the static capacity figure that routing may weigh.

MOST_BLOCKS: Final = 10**9


def kv_blocks(
    model: ModelShape, gpu: Gpu, tp: int, block_tokens: int, utilization: float = 0.9, where: str = "cluster"
) -> int:
    """KV blocks that fit beside the weights: floor((memory·tp·utilization - weights) / (KV bytes·block_tokens)).

    Activations and graph pools are taken to fit in the unused share; a measured count is better where there is one.
    """
    part = share(utilization, f"{where}.utilization")
    offered = int(gpu.memory * tp * part)
    place = f"{tp} × {gpu.name} offers {{}} at {float(part * 100):g} % utilisation; raise tp or choose a larger GPU."
    weights, block = model.weight_bytes, model.kv_bytes_per_token * block_tokens
    for size, what in ((weights, "of weights"), (weights + block, "for its weights and one KV block")):
        if size > offered:
            needed, available = _gigabytes(size, offered)
            raise HeadwayError(f"{where}: {model.name} needs {needed} {what} but {place.format(available)}")
    blocks = (offered - weights) // block
    if blocks > MOST_BLOCKS:
        raise HeadwayError(f"{where}: room for {blocks:,} KV blocks is more than {MOST_BLOCKS:,}; set gpu_blocks.")
    return blocks


def _gigabytes(needed: int, offered: int) -> tuple[str, str]:
    """Both sizes for people, with as many digits as it takes to tell them apart."""
    for digits in range(9):
        texts = f"{needed / 1e9:.{digits}f} GB", f"{offered / 1e9:.{digits}f} GB"
        if texts[0] != texts[1]:
            break
    return texts


def capacity_score(model: ModelShape, gpu: Gpu, tp: int) -> float:
    """A static figure in [0, 1): free / (free + M), where `free` is the memory of all `tp` GPUs less the weights (so
    the dtype counts, and what is free is room for KV or for further models) and M the memory of the largest GPU of
    the table. It grows with memory and TP, is 0 where the weights do not fit and 0.5 with one such GPU free."""
    free = max(0, gpu.memory * tp - model.weight_bytes)
    largest = max(known.memory for known in gpus().entries.values())
    return free / (free + largest)
