"""`fixed`: two rates and nothing else, so that queueing theory can check the simulator to the picosecond."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar

from msgspec import Struct

from headway.config import section
from headway.latency.base import FOREVER, Chunk, Run, times
from headway.latency.exact_numbers import token_ps


class FixedParameters(Struct):
    """Keys of `latency: {model: fixed}`."""

    prefill_tokens_per_s: Any = 10_000
    decode_tokens_per_s: Any = 100  # of each sequence, however many decode together


class Fixed:
    """A step takes its prefill tokens times p, plus d if any sequence decodes, with p and d = round(10^12 / rate) ps.
    A lone request thus takes prompt·p + (output - 1)·d."""

    keys: ClassVar = FixedParameters
    __slots__ = ("_decode_only", "decode_ps", "prefill_ps")

    def __init__(self, prefill_ps: int, decode_ps: int) -> None:
        self.prefill_ps = prefill_ps
        self.decode_ps = decode_ps
        self._decode_only = (decode_ps, 0, FOREVER)

    @classmethod
    def read(cls, data: dict[str, Any], where: str, *_: object) -> Fixed:
        given = section.read(FixedParameters, data, where)
        return cls(
            token_ps(given.prefill_tokens_per_s, f"{where}.prefill_tokens_per_s"),
            token_ps(given.decode_tokens_per_s, f"{where}.decode_tokens_per_s"),
        )

    def scaled(self, factor: Fraction) -> Fixed:
        return Fixed(times(self.prefill_ps, factor, 1), times(self.decode_ps, factor, 1))

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        if not chunks:
            return self._decode_only
        tokens = 0
        for length, _ in chunks:
            tokens += length
        first = tokens * self.prefill_ps
        return (first + self.decode_ps if decodes else first), 0, FOREVER
