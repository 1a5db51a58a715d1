"""`linear`: a step time is a sum of six terms. The coefficients of the terms can be fitted to a log of steps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Final

from msgspec import Struct, field

from headway.config.keys import INTERNAL
from headway.latency.base import FOREVER, Chunk, LatencyKind, Run, times
from headway.latency.chunk_costs import ChunkCosts
from headway.latency.exact_numbers import FineDuration, PartDuration, StepDuration
from headway.latency.verification import UNITS, AffineVerifier


class Linear(Struct, eq=False):
    """A step takes step + prefill_token·tokens + prefill_pair·pairs + sequence·(decodes + chunks) +
    context_token·context + chunk·chunks. A chunk of t tokens after p past tokens has t·p + t(t+1)/2 pairs.

    The defaults resemble an 8B model in BF16 on one H100, but are rounded and not fitted to measurements.
    """

    step_ps: Annotated[StepDuration, "time of every step"] = 7_000_000_000
    prefill_token_ps: Annotated[PartDuration, "added per prefill token"] = 20_000_000
    prefill_pair: Annotated[FineDuration, "added per query-key pair in prefill attention"] = Fraction(1000)
    sequence_ps: Annotated[PartDuration, "added per decoding sequence and per prefill chunk"] = 13_000_000
    context_token_ps: Annotated[PartDuration, "added per KV-cache token that a decode reads"] = 41_000
    chunk_ps: Annotated[PartDuration, "added per prefill chunk, in addition to `sequence`"] = 0
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

    def verify(self, width: int) -> AffineVerifier:
        return AffineVerifier(self, width, round(Fraction(self.context_token_ps, UNITS)))

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
