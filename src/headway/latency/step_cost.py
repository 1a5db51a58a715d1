"""The time of a step on a GPU, in microseconds, computed from constants of the GPU and the shape of the model's shard.

    dense work      for each type of weights: cube root of (r³ + c³), where r is the time to read the weights and c is
                    the time to compute with them
    element-wise    bytes of norms, rotary embedding and activation / bandwidth of these operations
    decodes         KV bytes / bandwidth, and a time per layer that grows with the batch up to a limit
    prefill chunks  query-key pairs / rate; if a chunk is too short to fill the GPU, its past takes longer
    constants       per step and per layer; also for the attention of decodes, of chunks, of both, of chunks with a past
    communication   two all-reduces per layer, if the model is split between several GPUs

The formulas use only + - * /. Every machine rounds these in the same way, so results are the same on every machine.
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

MEGA = 1e6  # 1 TB/s is 1e6 bytes per microsecond, and 1 TFLOP/s is 1e6 operations per microsecond


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
    fp8_speedup: Annotated[float, Doc("speedup of matmuls in 8 bits", type="times")] = 1.0
    reduce_us: Annotated[float, Doc("an all-reduce", type="µs")] = 0.0
    reduce_tb_s: Annotated[float, Doc("bytes of an all-reduce", type="TB/s")] = 1.0

    def validate(self, where: str) -> Constants:
        """Raise an error if these constants could let more work take less time, or let a step take no time."""
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
            raise HeadwayError(f"{where}: 'step_us' or 'layer_us' must be above zero.")
        return self


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
    """Return the expected number of experts that at least one token visits: E·(1 - (1 - visits / E)^tokens). This
    assumes that each token chooses its experts at random."""
    missed, power, left = 1.0, 1.0 - visits / experts, ceil(tokens)
    while left:
        if left & 1:
            missed *= power
        power *= power
        left >>= 1
    return experts * (1.0 - missed)


def tokens_us(gpu: Constants, part: Shard, tokens: int) -> float:
    """Return the time of the work that depends only on the number of tokens, including the constants per step and per
    layer."""
    paid = tokens + gpu.tile_share * (ceil(tokens / gpu.tile) * gpu.tile - tokens)
    total = gpu.step_us + part.layers * (gpu.layer_us + tokens * part.moved / (gpu.elementwise_tb_s * MEGA))
    for matmul in part.matmuls:
        total += matmul_us(gpu, matmul, paid if matmul.experts == 1 else tokens)  # padding tokens visit no expert
    if part.tp > 1:
        moved = tokens * part.hidden * 2.0 * 2.0 * (part.tp - 1) / part.tp
        total += 2 * part.layers * (gpu.reduce_us + moved / (gpu.reduce_tb_s * MEGA))
    return total


def sequences_us(gpu: Constants, part: Shard, sequences: int) -> float:
    """Return the time to compute the next token of each sequence from its last hidden state."""
    logits = sequences * part.logits * 2.0 / (gpu.logits_tb_s * MEGA)
    return matmul_us(gpu, part.head, sequences) + logits


def decodes_us(gpu: Constants, part: Shard, decodes: int) -> float:
    """Return the part of the decodes' attention time that does not depend on the length of their contexts."""
    return part.layers * (gpu.decode_us + gpu.crowd_us * decodes / (decodes + gpu.crowd_half)) if decodes else 0.0


def context_us(gpu: Constants, part: Shard) -> float:
    """Return the attention time of a decode per token of its context, in a step without chunks."""
    return part.layers * part.kv_bytes / (gpu.kv_tb_s * MEGA)


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
    return part.layers * 4.0 * part.heads * part.head_dim * narrow / (gpu.prefill_tflops * MEGA)


def past_token_us(gpu: Constants, part: Shard, tokens: int) -> float:
    """Return the attention time of a chunk of `tokens` tokens per token of its past. This is the time of `tokens`
    pairs, or more if the chunk is too short to fill the GPU."""
    pair = pair_us(gpu, part)
    read = gpu.short_read * context_us(gpu, part)
    return max(pair * tokens, min(read + gpu.short_pairs * pair * tokens, pair * gpu.fill_rows / part.heads))


def chunk_us(gpu: Constants, part: Shard, tokens: int) -> float:
    """Return the time of the attention of a chunk to its own tokens, without its past."""
    return pair_us(gpu, part) * (tokens * (tokens + 1) * 0.5)


def attention_us(gpu: Constants, part: Shard, decoding: bool, past: bool) -> float:
    """Return the constant part of the attention time in a step with prefill chunks."""
    return part.layers * (gpu.prefill_us + gpu.mixed_us * decoding + gpu.past_us * past)


def step_us(gpu: Constants, part: Shard, decodes: int, context: int, chunks: Sequence[Chunk]) -> float:
    """Return the time of a whole step on the GPU, without rounding."""
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
