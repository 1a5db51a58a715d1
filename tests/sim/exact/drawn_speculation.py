"""Speculative decoding of a drawn scenario: what the engine is given, and what the reference reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.latency.base import Chunk, LatencyModel, Run
from headway.latency.verification import Verification
from headway.sim.setup import SpeculationSetup


@dataclass(frozen=True)
class DrawnSpeculation:
    tokens: int  # drafts of a decode
    rate: int  # 64ths of a token that a decode gains per step
    ahead: int  # tokens beyond its next one for which a decode needs blocks
    draft_ps: int = 0

    def sequences(self, most: int, budget: int) -> int:
        return min(most, budget // (1 + self.tokens))

    def setup(self) -> SpeculationSetup:
        return SpeculationSetup({}, self.rate, 1 + self.tokens, self.ahead)

    def verification(self, latency: LatencyModel) -> Verification:
        return Verification(latency, self.tokens, None, self.draft_ps)


class Priced:
    """The time of one step, whose decodes have contexts in 64ths of a token."""

    def __init__(self, latency: LatencyModel, speculation: DrawnSpeculation) -> None:
        self.verification = speculation.verification(latency)

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        return self.verification.steps(decodes, context, 0, chunks)
