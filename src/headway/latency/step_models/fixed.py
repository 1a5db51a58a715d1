"""`fixed`: two constant rates, so that tests can check the simulator against queueing theory to the picosecond."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Final

from msgspec import Struct, field

from headway.latency.base import FOREVER, Chunk, LatencyKind, Run, times
from headway.latency.exact_numbers import TokenTime
from headway.latency.verification import AffineVerifier


class Fixed(Struct, eq=False):
    """A step takes p picoseconds for each prefill token, plus d picoseconds if any sequence decodes. p is 10^12 / the
    prefill rate and d is 10^12 / the decode rate, both rounded. A single request takes prompt·p + (output - 1)·d."""

    prefill_ps: Annotated[TokenTime, "prefill tokens per second"] = field(default=10**8, name="prefill_tokens_per_s")
    decode_ps: Annotated[TokenTime, "tokens per second of each decoding sequence, at any batch size"] = field(
        default=10**10, name="decode_tokens_per_s"
    )

    def scale(self, factor: Fraction) -> Fixed:
        return Fixed(times(self.prefill_ps, factor, 1), times(self.decode_ps, factor, 1))

    def verify(self, width: int) -> AffineVerifier:
        return AffineVerifier(self, width, 0)

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        if not chunks:
            return self.decode_ps, 0, FOREVER
        tokens = 0
        for length, _ in chunks:
            tokens += length
        first = tokens * self.prefill_ps
        return (first + self.decode_ps if decodes else first), 0, FOREVER


MODEL: Final = LatencyKind("fixed", Fixed, lambda keys, *_: keys)
