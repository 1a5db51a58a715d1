"""The part of a model that one GPU of a tensor-parallel group computes: matrix multiplications, heads and widths."""

from fractions import Fraction
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import HeadwayError
from headway.latency.engine_memory import EngineLoad, as_loaded, taken_bytes, usable_bytes
from headway.latency.exact_numbers import share
from headway.latency.gpus import Gpu, gpus
from headway.latency.kv_layers import find_layers
from headway.latency.kv_memory import kv_layout
from headway.latency.shapes import ModelShape


class Matmul(Struct, frozen=True):
    """The weights of all matrices of one type, which multiply the tokens of a step. They are treated as one matrix,
    because the time to read them and to compute with them depends only on the sum of their sizes. In a mixture of
    experts, each of the `experts` experts has such weights, and each token uses `visits` of the experts."""

    weights: float
    bytes_a_weight: float
    eight_bits: bool = False  # whether the GPU computes with activations of 8 bits
    experts: int = 1
    visits: int = 1
    skew: float = 0.0  # 0: all experts are equally likely; `experts.py` defines other values
    spread: int = 1  # GPUs over which whole experts are spread; 1 if each GPU has a part of every expert


class Shard(Struct, frozen=True):
    layers: int
    hidden: int
    heads: float  # number of query heads on this GPU
    head_dim: int
    kv_bytes: float  # bytes of keys and values on this GPU, per token and layer
    matmuls: tuple[Matmul, ...]
    head: Matmul  # the matmul from the last hidden state to the vocabulary
    logits: float  # number of logits of a sequence on this GPU
    moved: float  # bytes that norms, rotary embedding and activation read and write, per token and layer
    tp: int = 1
    sparse_layers: int = 0  # layers with experts
    kv_eight_bits: bool = False  # whether the KV cache has 8 bits per number
    elsewhere: int = 0  # layers that do not attend to the whole context
    windowed: int = 0  # those of them that attend to a sliding window
    window: int = 0  # tokens in that window
    state_bytes: float = 0.0  # bytes of one sequence's states in all layers, on this GPU
    # A latent layer computes with the compressed vectors of a context, or widens them for a prefill chunk.
    context_flops: float = 0.0  # operations of a decode per token of context and layer
    past_flops: float = 0.0  # operations to widen one token of a chunk's past, per layer

    @property
    def attending(self) -> int:
        """The layers that attend to the whole context."""
        return self.layers - self.elsewhere

    @property
    def eight_bits(self) -> bool:
        """Whether the GPU rounds activations to 8 bits, because it computes with 8 bits."""
        return any(matmul.eight_bits for matmul in self.matmuls)

    @property
    def reduced_bytes(self) -> float:
        """The bytes of one all-reduce, per token: a hidden state of 16-bit numbers."""
        return 2.0 * self.hidden

    @property
    def weight_bytes(self) -> float:
        """The size of all weights on this GPU in bytes, including the weights of all experts."""
        total = 0.0
        for matmul in (*self.matmuls, self.head):
            total += matmul.weights * matmul.experts / matmul.spread * matmul.bytes_a_weight
        return total


def shard(model: ModelShape, tp: int, where: str = "model", skew: float = 0.0, dp: int = 1, ep: bool = False) -> Shard:
    """Return the part of a model that each of `tp` GPUs computes. Heads, widths and vocabulary are split between the
    GPUs. If there are fewer KV heads than GPUs, each GPU has one KV head. `skew` says how unequally tokens choose
    experts. The experts are split between the GPUs of all `dp` ranks: with `ep`, each GPU has whole experts, otherwise
    a part of every expert."""
    if not model.hidden:
        raise HeadwayError(
            f"{where}: the shape of {model.name} is unknown. The latency model `hardware` needs hidden, kv_heads, "
            "intermediate and vocab."
        )
    hidden = model.hidden
    queries = model.heads * model.head_dim / tp
    kv = max(model.kv_heads / tp, 1.0) * model.head_dim
    sparse = model.layers - model.dense_layers if model.experts else 0
    attention = split_attention(model, tp) if model.kv_groups else model.layers * hidden * (2 * queries + 2 * kv)
    always = 0.0  # weights of feed-forward layers that every token uses
    width = 0.0  # width of the activations, summed over the layers
    matmuls = []
    if sparse:
        spread = tp * dp if ep else 1
        expert = 3 * hidden * model.expert_intermediate / (1 if ep else tp * dp)  # gate, up and down projections
        size = float(model.expert_size)
        eight_bits = _computes_in_8_bits(model, model.expert_size)
        routed = Matmul(sparse * expert, size, eight_bits, model.experts, model.experts_per_token, skew, spread)
        matmuls.append(routed)
        matmuls.append(Matmul(sparse * hidden * model.experts, 2.0))  # the expert router, neither split nor quantised
        always += sparse * 3 * hidden * model.shared_intermediate / tp
        width += sparse * (model.expert_intermediate * model.experts_per_token + model.shared_intermediate)
    dense = model.layers - sparse
    always += dense * 3 * hidden * model.intermediate / tp
    width += dense * model.intermediate
    kinds = {model.attention_size: attention}
    kinds[model.weight_size] = kinds.get(model.weight_size, 0.0) + always
    matmuls += [
        Matmul(weights, float(size), _computes_in_8_bits(model, size)) for size, weights in kinds.items() if weights
    ]
    part = Shard(
        model.layers,
        hidden,
        model.heads / tp,
        model.head_dim,
        2 * kv * float(model.kv_size),
        tuple(matmuls),
        Matmul(hidden * model.vocab / tp, float(model.head_size)),
        model.vocab / tp,
        2 * (8 * hidden + 3 * width / (model.layers * tp) + 2 * (queries + 2 * kv)),
        tp,
        sparse,
        model.kv_size == 1,
    )
    return grouped(part, model, tp) if model.kv_groups else part


def split_attention(model: ModelShape, tp: int) -> float:
    """Return the weights of all attention and state layers on one GPU."""
    queries, kv = model.heads * model.head_dim / tp, max(model.kv_heads / tp, 1.0) * model.head_dim
    total = 0.0
    for kind in model.kv_groups:
        if kind.kind == "latent":
            whole, split = kind.latent_weights(model.hidden, model.heads)
            total += kind.layers * (whole + split / tp)
        else:
            own = kind.weights / tp if kind.kind == "state" else model.hidden * (2 * queries + 2 * kv)
            total += kind.layers * own
    return total


def grouped(part: Shard, model: ModelShape, tp: int) -> Shard:
    """Return the shard of a model whose layers differ in what they keep of a sequence. `part` is the shard as if every
    layer kept keys and values of every token."""
    attending, windowed, window, state = 0, 0, 0, 0.0
    for kind in model.kv_groups:
        if kind.kind == "sliding":
            windowed, window = kind.layers, kind.window
        elif kind.kind == "state":
            state = kind.layers * kind.state_bytes / tp
        else:
            attending = kind.layers
    latent = find_layers(model.kv_groups, "latent")
    if latent is not None:  # a token's latent vector is one KV head, which all GPUs keep
        part = replace(
            part,
            head_dim=(latent.nope + latent.rope + latent.value) // 2,  # half the operations of a query-key pair
            kv_bytes=latent.latent_numbers() * float(model.kv_size),
            context_flops=2.0 * part.heads * (2 * latent.rank + latent.rope),
            past_flops=2.0 * part.heads * latent.rank * (latent.nope + latent.value),
        )
    return replace(part, elsewhere=model.layers - attending, windowed=windowed, window=window, state_bytes=state)


def window_shard(part: Shard) -> Shard:
    """Return a shard whose attention is that of the layers with sliding windows."""
    return replace(part, elsewhere=part.layers - part.windowed, windowed=0, state_bytes=0.0)


def _computes_in_8_bits(model: ModelShape, size: Fraction) -> bool:
    return size == 1 and model.activation_size == 1


# Functions about memory: the number of KV blocks of an instance, and its static capacity score.

MOST_BLOCKS: Final = 10**9


def rank_weight_bytes(model: ModelShape, dp: int) -> int:
    """Return the size of the weights on the GPUs of one of `dp` ranks: all weights but the routed experts, of which the
    rank has its share."""
    if dp == 1 or not model.experts:
        return model.weight_bytes
    sparse = model.layers - model.dense_layers
    experts = round(sparse * 3 * model.hidden * model.expert_intermediate * model.experts * model.expert_size)
    return model.weight_bytes - experts + -(-experts // dp)


def kv_blocks(
    model: ModelShape,
    gpu: Gpu,
    tp: int,
    block_tokens: int,
    utilization: float = 0.9,
    where: str = "cluster",
    dp: int = 1,
    hybrid: bool = True,
    engine: EngineLoad | None = None,
) -> int:
    """Return the number of KV blocks that fit into memory in addition to the weights:
    floor((memory·tp·utilization - weights) / (bytes of a block)). With several data-parallel ranks, this is the number
    of each rank.

    With an `engine`, memory is what programs can use of it, and what the engine takes is subtracted. Without one, this
    assumes that activations and graph pools fit into the memory that `utilization` leaves free.
    """
    part = share(utilization, f"{where}.utilization")
    offered = int(gpu.memory * tp * part)
    if engine is not None:
        taken = taken_bytes(engine, model, tp)
        offered, model = int(usable_bytes(gpu) * part) * tp - taken * tp, as_loaded(model)
    place = f"{tp} × {gpu.name} offers {{}} at {float(part * 100):g} % utilisation; raise tp or choose a larger GPU."
    weights, block = rank_weight_bytes(model, dp), model.kv_bytes_per_token * block_tokens
    if 0 < model.kv_heads < tp:
        block = block * tp // model.kv_heads  # each GPU has a KV head, so some GPUs have copies
    if model.kv_groups:
        block = kv_layout(model, tp, block_tokens, hybrid, where).page_bytes * tp
    for size, what in ((weights, "of weights"), (weights + block, "for its weights and one KV block")):
        if size > offered:
            needed, available = _gigabytes(size, offered)
            raise HeadwayError(f"{where}: {model.name} needs {needed} {what} but {place.format(available)}")
    blocks = (offered - weights) // block
    if blocks > MOST_BLOCKS:
        raise HeadwayError(
            f"{where}: {blocks:,} KV blocks would fit, above the limit of {MOST_BLOCKS:,}; set gpu_blocks."
        )
    return blocks


def _gigabytes(needed: int, offered: int) -> tuple[str, str]:
    """Return both sizes as strings in GB, with enough digits that the strings differ."""
    for digits in range(9):
        texts = f"{needed / 1e9:.{digits}f} GB", f"{offered / 1e9:.{digits}f} GB"
        if texts[0] != texts[1]:
            break
    return texts


def capacity_score(model: ModelShape, gpu: Gpu, tp: int, dp: int = 1) -> float:
    """Return free / (free + M), a static score in [0, 1) that routing policies may use.

    `free` is the memory of all `tp` GPUs minus the weights, or 0 if the weights do not fit. M is the memory of the
    largest GPU in the table.
    """
    free = max(0, gpu.memory * tp - rank_weight_bytes(model, dp))
    largest = max(known.memory for known in gpus().entries.values())
    return free / (free + largest)
