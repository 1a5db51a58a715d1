"""`roofline`: a step takes the time to compute or the time to read memory, whichever is longer. Both come from the
model's shape and the GPU's spec sheet.

The model ignores communication between tensor-parallel GPUs. It also ignores that some kernels are slower than the peak
rates, or do not overlap with others. In these cases its times are too short. It assumes that each step reads the
weights of all experts, so its times are too long for mixtures of experts at small batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from fractions import Fraction
from typing import Annotated, Final

from msgspec import Struct

from headway.latency.base import FOREVER, Chunk, LatencyKind, Run, times
from headway.latency.chunk_costs import ChunkCosts
from headway.latency.exact_numbers import PartDuration, Share
from headway.latency.gpus import Gpu
from headway.latency.shapes import ModelShape
from headway.types import PS_PER_SECOND


class RooflineParameters(Struct):
    """Keys of `latency: {model: roofline}`. The defaults are **uncalibrated**: no pair of efficiencies fits all cards.

    The defaults, mfu 0.6 and mbu 0.8, are between the efficiencies that fit the cards with public step times. An mfu of
    0.75 and an mbu of 0.9 with 1 ms of host time fit an RTX 4090 within 2 %, but are 16 to 40 % too fast on an RTX PRO
    6000. For an 8B model on an H200, kernel times are on average 8 % too fast in decode and 4 % too slow in prefill;
    the error of single steps is up to 41 %.
    """

    mfu: Annotated[Share, "share of the GPU's peak FLOP/s that matmuls reach"] = Fraction("0.6")
    mbu: Annotated[Share, "share of the peak memory bandwidth that reads reach"] = Fraction("0.8")
    overhead_ps: Annotated[PartDuration, "added to each step for the host and kernel launches"] = 1_000_000_000


class Roofline:
    """A step takes max(compute, memory) + overhead:

        compute = (2·active_params·tokens + 4·heads·head_dim·layers·(prefill pairs + decode context)) / (FLOP/s·tp·mfu)
        memory = (weight bytes + KV bytes·(decode context + past and tokens of every chunk)) / (bandwidth·tp·mbu)

    Both terms grow linearly from one step to the next. A run of steps ends before the smaller term would become the
    larger one.
    """

    __slots__ = ("_chunk", "_compute", "_decode", "_kv", "_memory", "_pair", "_token")

    def __init__(self, keys: RooflineParameters, where: str, model: ModelShape, gpu: Gpu, tp: int) -> None:
        flop = PS_PER_SECOND / (gpu.flops * tp * keys.mfu)
        byte = PS_PER_SECOND / (gpu.bandwidth * tp * keys.mbu)
        pair = 4 * model.heads * model.head_dim * model.layers * flop
        self._token = round(2 * model.active_params * flop)
        self._pair = round(pair)
        self._kv = round(model.kv_bytes_per_token * byte)
        self._compute = keys.overhead_ps  # compute time of a step without tokens
        self._memory = keys.overhead_ps + max(1, round(model.weight_bytes * byte))
        self._chunk = ChunkCosts(self._token, pair)
        # A shortcut for steps that only decode, because most calls are for such steps. The index is the batch size.
        # An entry has the minimum context at which memory is the bottleneck, and the increase of the time per step.
        self._decode: list[tuple[int, int]] = []

    def scale(self, factor: Fraction) -> Roofline:
        slower = copy(self)
        slower._token = times(self._token, factor)
        slower._pair = times(self._pair, factor)
        slower._kv = times(self._kv, factor)
        slower._compute = times(self._compute, factor)
        slower._memory = times(self._memory, factor, 1)
        slower._chunk = self._chunk.scale(factor)
        slower._decode = []
        return slower

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        if not chunks:
            try:
                memory_bound_from, rise = self._decode[decodes]
            except IndexError:
                memory_bound_from, rise = self._extend(decodes)
            if context >= memory_bound_from:
                return self._memory + self._kv * context, rise, FOREVER
        pair, kv = self._pair, self._kv
        compute = self._compute + self._token * decodes + pair * context
        compute_rise = pair * decodes
        reads, reads_rise = context, decodes
        for tokens, past in chunks:
            base, slope, rise = self._chunk[tokens]
            compute += base + slope * past
            compute_rise += rise
            reads += past + tokens
            reads_rise += tokens
        memory = self._memory + kv * reads
        memory_rise = kv * reads_rise
        if memory >= compute:
            if memory_rise >= compute_rise:
                return memory, memory_rise, FOREVER
            return memory, memory_rise, (memory - compute) // (compute_rise - memory_rise) + 1
        if compute_rise >= memory_rise:
            return compute, compute_rise, FOREVER
        return compute, compute_rise, (compute - memory) // (memory_rise - compute_rise) + 1

    def _extend(self, decodes: int) -> tuple[int, int]:
        known, ahead, steeper = self._decode, self._memory - self._compute, self._kv - self._pair
        for batch in range(len(known), decodes + 1):
            behind = self._token * batch - ahead
            start = -(-behind // steeper) if steeper > 0 else FOREVER
            known.append((start, self._kv * batch))
        return known[decodes]


MODEL: Final = LatencyKind("roofline", RooflineParameters, Roofline)
