"""The time of a step on a GPU, in microseconds, computed from constants of the GPU and the shape of the model's shard.

    dense work      for each type of weights: cube root of (r³ + c³), where r is the time to read the weights and c is
                    the time to compute with them; or the square root of (r² + c²), as `matmul_power` says
    experts         the same, for the experts that the tokens of the step visit, with the padding of each expert's
                    rows to whole tiles; and a time per layer to choose experts and to sort tokens by expert
    FP8             a time per layer and a traffic per token to round activations to 8 bits
    element-wise    bytes of norms, rotary embedding and activation / bandwidth of these operations
    decodes         KV bytes / bandwidth, and a time per layer that grows with the batch up to a limit
    prefill chunks  query-key pairs / rate; if a chunk is too short to fill the GPU, its past takes longer
    windows         the same for layers with sliding windows, whose decodes read and whose pairs count only the window
    latent layers   decodes read one vector per token for all heads, or compute with it if that takes longer; a chunk
                    widens the vectors of its past
    states          bytes of the states / bandwidth in decodes, operations / rate in chunks
    constants       per step and per layer; also for the attention of decodes, of chunks, of both, of chunks with a past
    communication   two all-reduces per layer, if the model is split between several GPUs: `all_reduce.py`; the exchange
                    between data-parallel ranks: `joint_steps.py`

The formulas use only + - * / and square roots. Every machine rounds these in the same way, so results are the same on
every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, frexp, ldexp, sqrt
from typing import Annotated

from msgspec import Struct

from headway.config.keys import Doc
from headway.errors import HeadwayError
from headway.latency.base import Chunk
from headway.latency.experts import busiest_gpu, experts_read, padded_rows
from headway.latency.shards import Matmul, Shard

MEGA = 1e6  # 1 TB/s is 1e6 bytes per microsecond, and 1 TFLOP/s is 1e6 operations per microsecond


# Rates that may be 0. The rate of a more general kind of work then takes their place, or there is no limit.
OPTIONAL = (
    "many_tb_s",
    "fp8_tb_s",
    "fp8_many_tb_s",
    "kv8_tb_s",
    "expert_tb_s",
    "expert_tflops",
    "packed_tb_s",
    "packed_tflops",
)


class Constants(Struct, frozen=True):
    """Constants of one GPU, which are the same for all models."""

    weights_tb_s: Annotated[float, Doc("reading weights in a matmul", type="TB/s")]
    matmul_tflops: Annotated[float, Doc("computing a matmul", type="TFLOP/s")]
    tile_share: Annotated[float, Doc("cost of the last tile's padding", type="share")]
    elementwise_tb_s: Annotated[float, Doc("norms, rotary embedding, activation", type="TB/s")]
    logits_tb_s: Annotated[float, Doc("work on the logits of a sequence", type="TB/s")]
    step_us: Annotated[float, Doc("per step", type="µs")]
    layer_us: Annotated[float, Doc("per layer", type="µs")]
    kv_tb_s: Annotated[float, Doc("reading the KV cache of decodes", type="TB/s")]
    decode_us: Annotated[float, Doc("attention of decodes, per layer", type="µs")]
    crowd_us: Annotated[float, Doc("most that large batches add to it", type="µs")]
    crowd_half: Annotated[float, Doc("batch size that adds half of that", type="sequences")]
    mixed_kv: Annotated[float, Doc("slowdown of KV reads if the step has chunks", type="times")]
    mixed_us: Annotated[float, Doc("decodes and chunks in one step, per layer", type="µs")]
    prefill_us: Annotated[float, Doc("attention of chunks, per layer", type="µs")]
    past_us: Annotated[float, Doc("added if a chunk has a past, per layer", type="µs")]
    prefill_tflops: Annotated[float, Doc("attention of chunks", type="TFLOP/s")]
    narrow_heads: Annotated[float, Doc("added for heads of 64", type="share")]
    short_read: Annotated[float, Doc("slowdown of KV reads of a short chunk's past", type="times")]
    short_pairs: Annotated[float, Doc("slowdown of the pairs of a short chunk", type="times")]
    fill_rows: Annotated[float, Doc("heads × tokens that fill the GPU", type="rows")]
    padded_rows: Annotated[float, Doc("minimum rows of a decode in a step with chunks", type="rows")] = 0.0
    beside_us: Annotated[float, Doc("a decode in a step with chunks, per layer", type="µs")] = 0.0
    beside_row_us: Annotated[float, Doc("added to that per token of the longest chunk", type="µs")] = 0.0
    tile: Annotated[int, Doc("tokens of a tile", type="tokens")] = 128
    many_tb_s: Annotated[
        float, Doc("a second limit of reading weights in steps above 16 tokens; 0: none", type="TB/s")
    ] = 0.0
    matmul_power: Annotated[
        int, Doc("power with which a matmul's times to read and to compute add up", type="2 or 3")
    ] = 3
    fp8_speedup: Annotated[float, Doc("speedup of matmuls in 8 bits", type="times")] = 1.0
    fp8_tb_s: Annotated[float, Doc("reading weights of 8 bits; 0: as other weights", type="TB/s")] = 0.0
    fp8_many_tb_s: Annotated[float, Doc("a second limit of that in steps above 16 tokens; 0: none", type="TB/s")] = 0.0
    fp8_us: Annotated[float, Doc("rounding activations to 8 bits, per layer", type="µs")] = 0.0
    fp8_bytes: Annotated[float, Doc("traffic of that, per token and number of the hidden state", type="bytes")] = 0.0
    kv8_tb_s: Annotated[float, Doc("reading a KV cache of 8 bits; 0: as other caches", type="TB/s")] = 0.0
    kv8_us: Annotated[float, Doc("added to decode attention if the KV cache has 8 bits, per layer", type="µs")] = 0.0
    kv8_past: Annotated[float, Doc("traffic to widen a chunk's past, per byte of such a cache", type="bytes")] = 0.0
    expert_tb_s: Annotated[float, Doc("reading experts; 0: as other weights", type="TB/s")] = 0.0
    expert_tflops: Annotated[float, Doc("computing with experts; 0: as other matmuls", type="TFLOP/s")] = 0.0
    expert_pad: Annotated[float, Doc("most rows of padding that an expert computes", type="rows")] = 0.0
    expert_half: Annotated[float, Doc("rows of an expert with half of that padding", type="rows")] = 1.0
    route_us: Annotated[float, Doc("choosing experts and sorting tokens, per layer", type="µs")] = 0.0
    route_bytes: Annotated[
        float, Doc("traffic of that, per visit of a token and number of the hidden state", type="bytes")
    ] = 0.0
    packed_tb_s: Annotated[float, Doc("reading weights below 8 bits; 0: as other weights", type="TB/s")] = 0.0
    packed_tflops: Annotated[float, Doc("computing with them; 0: as other matmuls", type="TFLOP/s")] = 0.0

    def validate(self, where: str) -> Constants:
        """Raise an error if these constants could let more work take less time, or let a step take no time."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            rate = name.endswith(("_tb_s", "_tflops")) or name in ("tile", "fp8_speedup")
            if not 0 <= value < 1e12 or (rate and not value and name not in OPTIONAL):
                least = "above zero" if rate else "zero or more"
                raise HeadwayError(f"{where}.{name}: must be {least}, got {value}.")
        for name in ("mixed_kv", "short_read"):
            if getattr(self, name) < 1:
                raise HeadwayError(f"{where}.{name}: must be 1 or more, got {getattr(self, name)}.")
        if self.matmul_power not in (2, 3):
            raise HeadwayError(f"{where}.matmul_power: must be 2 or 3, got {self.matmul_power}.")
        if self.step_us + self.layer_us <= 0:
            raise HeadwayError(f"{where}: 'step_us' or 'layer_us' must be above zero.")
        return self


FEW_TOKENS = 16  # up to so many tokens, `many_tb_s` and `fp8_many_tb_s` are no limits


def cube_root(value: float) -> float:
    """Return the cube root by Newton's method, because the last bit of math.cbrt differs between machines."""
    if value <= 0.0:
        return 0.0
    mantissa, exponent = frexp(value)
    third, rest = divmod(exponent, 3)
    mantissa = ldexp(mantissa, rest)  # now the mantissa is in [0.5, 4)
    root = 0.6 + 0.3 * mantissa
    for _ in range(6):
        root -= (root - mantissa / (root * root)) / 3.0
    return ldexp(root, third)


def both(tb_s: float, further: float) -> float:
    """Return the rate of work that is limited by two rates: the cubes of the times add up, as in a matmul."""
    one, other = 1.0 / tb_s, 1.0 / further
    return 1.0 / cube_root(one * one * one + other * other * other)


class MatmulTime:
    """The time to read the weights of a type, and to multiply rows with them. Constants are computed once, because a
    run asks for many numbers of rows."""

    def __init__(self, gpu: Constants, matmul: Matmul, count: float, memory_tb_s: float, tflops: float) -> None:
        """`count` is how many times the weights are read, such as the number of experts."""
        if matmul.bytes_a_weight < 1.0:
            memory_tb_s, tflops = gpu.packed_tb_s or memory_tb_s, gpu.packed_tflops or tflops
        elif matmul.eight_bits:
            tflops *= gpu.fp8_speedup
        memory = matmul.weights * matmul.bytes_a_weight * count / (memory_tb_s * MEGA)
        self.squares = gpu.matmul_power == 2
        self.memory = memory * memory if self.squares else memory * memory * memory
        self.work, self.rate = 2.0 * matmul.weights, tflops * MEGA

    def us(self, rows: float) -> float:
        compute = self.work * rows / self.rate
        if self.squares:
            return sqrt(self.memory + compute * compute)
        return cube_root(self.memory + compute * compute * compute)


def dense_matmul(gpu: Constants, matmul: Matmul, many: bool) -> MatmulTime:
    """Return the time of weights that all tokens visit. `many` says whether the step has more than `FEW_TOKENS`
    tokens."""
    memory_tb_s, further = gpu.weights_tb_s, gpu.many_tb_s
    if matmul.bytes_a_weight == 1.0:
        memory_tb_s, further = gpu.fp8_tb_s or memory_tb_s, gpu.fp8_many_tb_s if matmul.eight_bits else 0.0
    if many and further:
        memory_tb_s = both(memory_tb_s, further)
    return MatmulTime(gpu, matmul, 1.0, memory_tb_s, gpu.matmul_tflops)


def matmul_us(gpu: Constants, matmul: Matmul, tokens: float, many: bool = False) -> float:
    """Return the time to read the weights of a type and to multiply the tokens with them. `many` says whether the step
    has more than `FEW_TOKENS` tokens."""
    if matmul.experts == 1:
        return dense_matmul(gpu, matmul, many).us(tokens)
    if matmul.spread > 1:
        count, pairs = busiest_gpu(matmul.experts, matmul.visits, matmul.skew, tokens, matmul.spread)
    else:
        count, pairs = experts_read(matmul.experts, matmul.visits, matmul.skew, tokens), tokens * matmul.visits
    return grouped_us(gpu, matmul, count, pairs)


def grouped_us(gpu: Constants, matmul: Matmul, count: float, pairs: float) -> float:
    """Return the time of the matmuls of `count` experts with `pairs` pairs of a token and an expert."""
    rows = padded_rows(pairs, count, gpu.expert_pad, gpu.expert_half)
    memory_tb_s, tflops = gpu.expert_tb_s or gpu.weights_tb_s, gpu.expert_tflops or gpu.matmul_tflops
    return MatmulTime(gpu, matmul, count, memory_tb_s, tflops).us(rows)


class TokenTimes:
    """The time of the work that depends only on the number of tokens, including the constants per step and per layer,
    without communication."""

    def __init__(self, gpu: Constants, part: Shard) -> None:
        self.gpu, self.part = gpu, part
        self.elementwise = gpu.elementwise_tb_s * MEGA
        self.rounds = any(matmul.eight_bits for matmul in part.matmuls)  # whether activations are rounded to 8 bits
        # Each type of weights with its time in a step with few and with many tokens; None: experts
        self.matmuls = [
            (matmul, None if matmul.experts > 1 else [dense_matmul(gpu, matmul, many) for many in (False, True)])
            for matmul in part.matmuls
        ]

    def us(self, tokens: int, graph_padding: int = 0) -> float:
        """`graph_padding` is how many of the tokens only fill up a CUDA graph."""
        gpu, part = self.gpu, self.part
        paid = tokens + gpu.tile_share * (ceil(tokens / gpu.tile) * gpu.tile - tokens)
        total = gpu.step_us + part.layers * (gpu.layer_us + tokens * part.moved / self.elementwise)
        for matmul, dense in self.matmuls:
            if dense is None:  # padding tokens visit no expert
                routed = tokens - graph_padding
                total += sorting_us(gpu, part, matmul, routed)
                total += matmul_us(gpu, matmul, routed)
            else:
                total += dense[tokens > FEW_TOKENS].us(paid)
        if self.rounds:
            total += rounding_us(gpu, part, tokens)
        return total


def rounding_us(gpu: Constants, part: Shard, tokens: float) -> float:
    """Return the time to round activations to 8 bits."""
    return part.layers * (gpu.fp8_us + tokens * part.hidden * gpu.fp8_bytes / (gpu.elementwise_tb_s * MEGA))


def sorting_us(gpu: Constants, part: Shard, matmul: Matmul, tokens: float) -> float:
    """Return the time to choose experts and to sort tokens by expert."""
    moved = tokens * matmul.visits * part.hidden * gpu.route_bytes
    return part.sparse_layers * (gpu.route_us + moved / (gpu.elementwise_tb_s * MEGA))


def sequences_us(gpu: Constants, part: Shard, sequences: int) -> float:
    """Return the time to compute the next token of each sequence from its last hidden state."""
    logits = sequences * part.logits * 2.0 / (gpu.logits_tb_s * MEGA)
    return matmul_us(gpu, part.head, sequences) + logits


def decodes_us(gpu: Constants, part: Shard, decodes: int) -> float:
    """Return the part of the decodes' attention time that does not depend on the length of their contexts."""
    if not decodes:
        return 0.0
    widened = gpu.kv8_us if part.kv_eight_bits else 0.0
    states = decodes * 2.0 * part.state_bytes / (gpu.kv_tb_s * MEGA)  # each state is read and written
    return states + part.layers * (gpu.decode_us + widened + gpu.crowd_us * decodes / (decodes + gpu.crowd_half))


def context_us(gpu: Constants, part: Shard) -> float:
    """Return the attention time of a decode per token of its context, in a step without chunks."""
    speed = gpu.kv8_tb_s if part.kv_eight_bits and gpu.kv8_tb_s else gpu.kv_tb_s
    reading = part.attending * part.kv_bytes / (speed * MEGA)
    return max(reading, part.attending * part.context_flops / (gpu.matmul_tflops * MEGA))


def mixed_context_us(gpu: Constants, part: Shard) -> float:
    """Return the attention time of a decode per token of its context, in a step with chunks. In such a step, the kernel
    reads the context once per query head."""
    return max(gpu.mixed_kv * context_us(gpu, part), gpu.padded_rows * pair_us(gpu, part))


def beside_us(gpu: Constants, part: Shard, longest: int) -> float:
    """Return the time that a decode adds to a step with chunks. The longest of these chunks has `longest` tokens."""
    return part.layers * (gpu.beside_us + gpu.beside_row_us * longest * part.heads / 32.0)


def pair_us(gpu: Constants, part: Shard) -> float:
    """Return the time of one query-key pair in prefill attention."""
    narrow = 1.0 + gpu.narrow_heads * max(0.0, 128.0 / part.head_dim - 1.0)
    return part.attending * 4.0 * part.heads * part.head_dim * narrow / (gpu.prefill_tflops * MEGA)


class PastTokens:
    """The attention time of chunks per token of their past. Constants are computed once, because a run asks for many
    lengths."""

    def __init__(self, gpu: Constants, part: Shard) -> None:
        self.pair = pair = pair_us(gpu, part)
        self.read = gpu.short_read * context_us(gpu, part)
        self.short_pair = gpu.short_pairs * pair  # time of a pair in a chunk that is too short to fill the GPU
        self.filled = pair * gpu.fill_rows / part.heads
        self.widened = part.attending * part.past_flops / (gpu.matmul_tflops * MEGA)
        if part.kv_eight_bits:
            self.widened += part.attending * part.kv_bytes * gpu.kv8_past / (gpu.elementwise_tb_s * MEGA)

    def us(self, tokens: int) -> float:
        """Return the time for a chunk of `tokens` tokens. This is the time of `tokens` pairs, or more if the chunk is
        too short to fill the GPU."""
        return self.widened + max(self.pair * tokens, min(self.read + self.short_pair * tokens, self.filled))


def chunk_us(gpu: Constants, part: Shard, tokens: int, pair: float) -> float:
    """Return the time of the attention of a chunk to its own tokens, without its past. `pair` is the time of a
    query-key pair, `pair_us`."""
    states = tokens * 2.0 * part.state_bytes / (gpu.prefill_tflops * MEGA)  # two operations per byte of the state
    return states + pair * (tokens * (tokens + 1) * 0.5)


def attention_us(gpu: Constants, part: Shard, decoding: bool, past: bool) -> float:
    """Return the constant part of the attention time in a step with prefill chunks."""
    return part.layers * (gpu.prefill_us + gpu.mixed_us * decoding + gpu.past_us * past)


def step_us(gpu: Constants, part: Shard, decodes: int, context: int, chunks: Sequence[Chunk]) -> float:
    """Return the time of a whole step on the GPU, without rounding."""
    tokens, past, longest, total = decodes, False, 0, 0.0
    past_tokens = PastTokens(gpu, part)
    for length, before in chunks:
        tokens += length
        past = past or before > 0
        longest = max(longest, length)
        total += chunk_us(gpu, part, length, past_tokens.pair) + past_tokens.us(length) * before
    total += TokenTimes(gpu, part).us(tokens) + sequences_us(gpu, part, decodes + len(chunks))
    total += decodes_us(gpu, part, decodes)
    total += context * (mixed_context_us(gpu, part) if chunks else context_us(gpu, part))
    if chunks:
        total += attention_us(gpu, part, decodes > 0, past) + decodes * beside_us(gpu, part, longest)
    return total
