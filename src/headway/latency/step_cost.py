"""What a step costs on a GPU, in microseconds, from constants of the GPU and the shape of the model's shard.

    dense work      for each kind of weights: cube root of (time to read it³ + time to compute the step's tokens³)
    element-wise    bytes of norms, rotary embedding and activation / their bandwidth
    decodes         KV bytes / bandwidth, and a constant a layer that grows with the batch up to a limit
    prefill chunks  query-key pairs / rate; more for the past of a chunk that is too short to fill the GPU
    constants       a step, a layer; attention of decodes, of chunks, of both in one step, of chunks with a past
    communication   two all-reduces a layer, where a model is split

Only + - * / and square roots are used, which every machine rounds alike; so the same figures come out everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, frexp, ldexp
from typing import Annotated

from msgspec import Struct

from headway.config.keys import Doc
from headway.errors import HeadwayError
from headway.latency.base import Chunk
from headway.latency.shards import Matmul, Shard

MEGA = 1e6  # bytes a microsecond in a terabyte a second, and operations in a teraflop a second


class Constants(Struct, frozen=True):
    """Of one GPU, for any model. Times in microseconds; a constant "a layer" counts once for each layer."""

    weights_tb_s: Annotated[float, Doc("reading weights in a matmul", type="TB/s")]
    matmul_tflops: Annotated[float, Doc("computing in a matmul", type="TFLOP/s")]
    tile_share: Annotated[float, Doc("of the last tile's padding, how much is paid for", type="share")]
    elementwise_tb_s: Annotated[float, Doc("norms, rotary embedding, activation", type="TB/s")]
    logits_tb_s: Annotated[float, Doc("work over a sequence's logits", type="TB/s")]
    step_us: Annotated[float, Doc("a step", type="µs")]
    layer_us: Annotated[float, Doc("a layer", type="µs")]
    kv_tb_s: Annotated[float, Doc("reading the KV of decodes", type="TB/s")]
    decode_us: Annotated[float, Doc("attention of decodes, a layer", type="µs")]
    crowd_us: Annotated[float, Doc("what it grows by with the batch", type="µs")]
    crowd_half: Annotated[float, Doc("the batch at half of that", type="sequences")]
    mixed_kv: Annotated[float, Doc("KV of decodes beside chunks", type="times")]
    mixed_us: Annotated[float, Doc("decodes and chunks in one step, a layer", type="µs")]
    prefill_us: Annotated[float, Doc("attention of chunks, a layer", type="µs")]
    past_us: Annotated[float, Doc("the same with a past", type="µs")]
    prefill_tflops: Annotated[float, Doc("attention of chunks", type="TFLOP/s")]
    narrow_heads: Annotated[float, Doc("more for heads of 64", type="share")]
    short_read: Annotated[float, Doc("a short chunk reads its past's KV", type="times")]
    short_pairs: Annotated[float, Doc("its pairs take as long", type="times")]
    fill_rows: Annotated[float, Doc("heads × tokens that fill the GPU", type="rows")]
    padded_rows: Annotated[float, Doc("the least a decode beside chunks counts as", type="rows")] = 0.0
    beside_us: Annotated[float, Doc("a decode beside chunks, a layer", type="µs")] = 0.0
    beside_row_us: Annotated[float, Doc("and for a token of the longest chunk", type="µs")] = 0.0
    tile: Annotated[int, Doc("of a tile", type="tokens")] = 128
    fp8_speedup: Annotated[float, Doc("matmuls in 8 bits are as fast", type="times")] = 1.0
    reduce_us: Annotated[float, Doc("an all-reduce", type="µs")] = 0.0
    reduce_tb_s: Annotated[float, Doc("its bytes", type="TB/s")] = 1.0

    def validate(self, where: str) -> Constants:
        """Refuse what would make a step of more work cheaper, or take no time."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            rate = name.endswith(("_tb_s", "_tflops")) or name in ("tile", "fp8_speedup")
            if not 0 <= value < 1e12 or (rate and not value):
                least = "above zero" if rate else "zero or more"
                raise HeadwayError(f"{where}.{name}: must be {least}, got {value}.")
        for name in ("mixed_kv", "short_read"):
            if getattr(self, name) < 1:
                raise HeadwayError(f"{where}.{name}: must be 1 or more, got {getattr(self, name)}.")
        if self.step_us + self.layer_us <= 0:
            raise HeadwayError(f"{where}: 'step_us' or 'layer_us' must be above zero, since no step takes no time.")
        return self


def cube_root(value: float) -> float:
    """The cube root by Newton's steps; math.cbrt differs in its last bit from machine to machine."""
    if value <= 0.0:
        return 0.0
    mantissa, exponent = frexp(value)
    third, rest = divmod(exponent, 3)
    mantissa = ldexp(mantissa, rest)  # in [0.5, 4)
    root = 0.6 + 0.3 * mantissa
    for _ in range(6):
        root -= (root - mantissa / (root * root)) / 3.0
    return ldexp(root, third)


def matmul_us(gpu: Constants, matmul: Matmul, tokens: float) -> float:
    read, computed = matmul.weights * matmul.bytes_a_weight, tokens
    if matmul.experts > 1:
        read *= _experts_read(matmul.experts, matmul.visits, tokens)
        computed = tokens * matmul.visits
    speed = gpu.matmul_tflops * (gpu.fp8_speedup if matmul.bytes_a_weight == 1.0 else 1.0)
    memory = read / (gpu.weights_tb_s * MEGA)
    compute = 2.0 * matmul.weights * computed / (speed * MEGA)
    return cube_root(memory * memory * memory + compute * compute * compute)


@lru_cache(maxsize=1 << 12)
def _experts_read(experts: int, visits: int, tokens: float) -> float:
    """Experts that some token visits, on average, where each chooses at random: E·(1 - (1 - visits / E)^tokens)."""
    missed, power, left = 1.0, 1.0 - visits / experts, ceil(tokens)
    while left:
        if left & 1:
            missed *= power
        power *= power
        left >>= 1
    return experts * (1.0 - missed)


def tokens_us(gpu: Constants, part: Shard, tokens: int) -> float:
    """What all tokens of a step go through together, with the constants of a step and its layers."""
    paid = tokens + gpu.tile_share * (ceil(tokens / gpu.tile) * gpu.tile - tokens)
    total = gpu.step_us + part.layers * (gpu.layer_us + tokens * part.moved / (gpu.elementwise_tb_s * MEGA))
    for matmul in part.matmuls:
        total += matmul_us(gpu, matmul, paid if matmul.experts == 1 else tokens)  # filling visits no expert
    if part.tp > 1:
        moved = tokens * part.hidden * 2.0 * 2.0 * (part.tp - 1) / part.tp
        total += 2 * part.layers * (gpu.reduce_us + moved / (gpu.reduce_tb_s * MEGA))
    return total


def sequences_us(gpu: Constants, part: Shard, sequences: int) -> float:
    """From the last hidden state of each sequence to its next token."""
    logits = sequences * part.logits * 2.0 / (gpu.logits_tb_s * MEGA)
    return matmul_us(gpu, part.head, sequences) + logits


def decodes_us(gpu: Constants, part: Shard, decodes: int) -> float:
    """Attention of decodes, less what grows with their context."""
    return part.layers * (gpu.decode_us + gpu.crowd_us * decodes / (decodes + gpu.crowd_half)) if decodes else 0.0


def context_us(gpu: Constants, part: Shard) -> float:
    """A token of a decode's context, in a step without chunks."""
    return part.layers * part.kv_bytes / (gpu.kv_tb_s * MEGA)


def mixed_context_us(gpu: Constants, part: Shard) -> float:
    """A token of a decode's context, in a step with chunks. A kernel made for chunks reads for every query head."""
    return max(gpu.mixed_kv * context_us(gpu, part), gpu.padded_rows * pair_us(gpu, part))


def beside_us(gpu: Constants, part: Shard, longest: int) -> float:
    """A decode beside chunks, the longest of so many tokens."""
    return part.layers * (gpu.beside_us + gpu.beside_row_us * longest * part.heads / 32.0)


def pair_us(gpu: Constants, part: Shard) -> float:
    """A query-key pair of prefill attention."""
    narrow = 1.0 + gpu.narrow_heads * max(0.0, 128.0 / part.head_dim - 1.0)
    return part.layers * 4.0 * part.heads * part.head_dim * narrow / (gpu.prefill_tflops * MEGA)


def past_token_us(gpu: Constants, part: Shard, tokens: int) -> float:
    """A token of a chunk's past: `tokens` pairs, or more where the chunk is too short to fill the GPU."""
    pair = pair_us(gpu, part)
    read = gpu.short_read * context_us(gpu, part)
    return max(pair * tokens, min(read + gpu.short_pairs * pair * tokens, pair * gpu.fill_rows / part.heads))


def chunk_us(gpu: Constants, part: Shard, tokens: int) -> float:
    """A chunk's attention over itself."""
    return pair_us(gpu, part) * (tokens * (tokens + 1) * 0.5)


def attention_us(gpu: Constants, part: Shard, decoding: bool, past: bool) -> float:
    """The constants of a step with prefill chunks."""
    return part.layers * (gpu.prefill_us + gpu.mixed_us * decoding + gpu.past_us * past)


def step_us(gpu: Constants, part: Shard, decodes: int, context: int, chunks: Sequence[Chunk]) -> float:
    """A whole step on the GPU, not rounded."""
    tokens, past, longest, total = decodes, False, 0, 0.0
    for length, before in chunks:
        tokens += length
        past = past or before > 0
        longest = max(longest, length)
        total += chunk_us(gpu, part, length) + past_token_us(gpu, part, length) * before
    total += tokens_us(gpu, part, tokens) + sequences_us(gpu, part, decodes + len(chunks))
    total += decodes_us(gpu, part, decodes)
    total += context * (mixed_context_us(gpu, part) if chunks else context_us(gpu, part))
    if chunks:
        total += attention_us(gpu, part, decodes > 0, past) + decodes * beside_us(gpu, part, longest)
    return total
