"""`linear`: a step time as a sum of six terms, each a duration that can be fitted from a log of steps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Final

from msgspec import Struct, field

from headway.config.keys import INTERNAL
from headway.latency.base import FOREVER, Chunk, LatencyKind, Run, times
from headway.latency.chunk_costs import ChunkCosts
from headway.latency.exact_numbers import FineDuration, PartDuration, StepDuration


class Linear(Struct, eq=False):
    """step + prefill_token·tokens + prefill_pair·pairs + sequence·(decodes + chunks) + context_token·context +
    chunk·chunks, where the pairs of a chunk of t tokens after p past ones are t·p + t(t+1)/2.

    The defaults resemble an 8B model in BF16 on one H100; they are rounded and were never fitted to a run on one.
    """

    step_ps: Annotated[StepDuration, "duration of any step"] = 7_000_000_000
    prefill_token_ps: Annotated[PartDuration, "duration of a prefill token"] = 20_000_000
    prefill_pair: Annotated[FineDuration, "duration of a query-key pair in prefill attention"] = Fraction(1000)
    sequence_ps: Annotated[PartDuration, "duration of a decoding sequence or a chunk"] = 13_000_000
    context_token_ps: Annotated[PartDuration, "duration of a token of KV cache that a decode reads"] = 41_000
    chunk_ps: Annotated[
        PartDuration, "duration of a chunk of a prompt, beside `sequence`: what an engine does once for a prompt"
    ] = 0
    costs: Annotated[ChunkCosts, INTERNAL] = field(default_factory=lambda: ChunkCosts(0, Fraction(0)))

    def __post_init__(self) -> None:
        self.costs = ChunkCosts(self.prefill_token_ps, self.prefill_pair, self.sequence_ps + self.chunk_ps)

    def scale(self, factor: Fraction) -> Linear:
        return Linear(
            times(self.step_ps, factor, 1),
            times(self.prefill_token_ps, factor),
            self.prefill_pair * factor,
            times(self.sequence_ps, factor),
            times(self.context_token_ps, factor),
            times(self.chunk_ps, factor),
        )

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        per_context = self.context_token_ps
        first = self.step_ps + self.sequence_ps * decodes + per_context * context
        increment = per_context * decodes
        for tokens, past in chunks:
            base, slope, rise = self.costs[tokens]
            first += base + slope * past
            increment += rise
        return first, increment, FOREVER


MODEL: Final = LatencyKind("linear", Linear, lambda keys, *_: keys)
