"""`linear`: a step time as a sum of six terms, each a duration that can be fitted from a log of steps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar

from msgspec import Struct

from headway.config import section
from headway.config.units import duration_ps, fine_duration
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.latency.base import FOREVER, Chunk, Run, times
from headway.latency.chunk_costs import ChunkCosts


class LinearParameters(Struct):
    """Keys of `latency: {model: linear}`. The defaults resemble an 8B model in BF16 on one H100; they are rounded and
    were never fitted to a run on one."""

    step: Any = "7ms"  # reading the weights, launching, the host's work
    prefill_token: Any = "20us"
    prefill_pair: Any = "1ns"  # a query-key pair of prefill attention; may be a fraction of a picosecond
    sequence: Any = "13us"  # a decoding sequence or a chunk
    context_token: Any = "41ns"  # a token of KV cache that some decode reads
    chunk: Any = "0ms"  # a chunk, beside its sequence: what an engine does once for a prompt


class Linear:
    """step + prefill_token·tokens + prefill_pair·pairs + sequence·(decodes + chunks) + context_token·context +
    chunk·chunks, where the pairs of a chunk of t tokens after p past ones are t·p + t(t+1)/2."""

    keys: ClassVar = LinearParameters
    __slots__ = ("_chunk", "chunk", "context_token", "prefill_pair", "prefill_token", "sequence", "step")

    def __init__(
        self,
        step: int,
        prefill_token: int,
        prefill_pair: Fraction,
        sequence: int,
        context_token: int,
        chunk: int = 0,
    ) -> None:
        self.step = step
        self.prefill_token = prefill_token
        self.prefill_pair = prefill_pair
        self.sequence = sequence
        self.context_token = context_token
        self.chunk = chunk
        self._chunk = ChunkCosts(prefill_token, prefill_pair, sequence + chunk)

    @classmethod
    def read(cls, data: dict[str, Any], where: str, *_: object) -> Linear:
        given = section.read(LinearParameters, data, where)
        step = duration_ps(given.step, f"{where}.step")
        if step < 1:
            raise HeadwayError(
                f"{where}.step: must be at least 1ps, since no step takes no time, got {shown(given.step)}."
            )
        return cls(
            step,
            duration_ps(given.prefill_token, f"{where}.prefill_token"),
            fine_duration(given.prefill_pair, f"{where}.prefill_pair"),
            duration_ps(given.sequence, f"{where}.sequence"),
            duration_ps(given.context_token, f"{where}.context_token"),
            duration_ps(given.chunk, f"{where}.chunk"),
        )

    def scaled(self, factor: Fraction) -> Linear:
        return Linear(
            times(self.step, factor, 1),
            times(self.prefill_token, factor),
            self.prefill_pair * factor,
            times(self.sequence, factor),
            times(self.context_token, factor),
            times(self.chunk, factor),
        )

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        per_context = self.context_token
        first = self.step + self.sequence * decodes + per_context * context
        increment = per_context * decodes
        for tokens, past in chunks:
            base, slope, rise = self._chunk[tokens]
            first += base + slope * past
            increment += rise
        return first, increment, FOREVER
