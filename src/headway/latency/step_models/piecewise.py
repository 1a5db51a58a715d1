"""`piecewise`: decode throughput grows linearly with the batch size up to saturation, and is constant for larger
batches."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any, Final

from msgspec import Struct, field

from headway.config.keys import INTERNAL, Unit
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.latency.base import FOREVER, Chunk, LatencyKind, Run, times
from headway.latency.exact_numbers import COUNT, TokenRate, TokenTime, count
from headway.latency.verification import AffineVerifier
from headway.types import PS_PER_SECOND


def _read_batch(value: Any, where: str) -> int:
    batch = count(value, where)
    if batch < 2:
        raise HeadwayError(f"{where}: must be at least 2, got {shown(value)}.")
    return batch


class Piecewise(Struct, eq=False):
    """A step takes (prefill tokens / rate) + (decodes / throughput(decodes)). The defaults are RouteSim's values for an
    H100."""

    prefill_ps: Annotated[TokenTime, "prefill tokens per second"] = field(
        default=20_000_000, name="prefill_tokens_per_s"
    )
    decode_tokens_per_s: Annotated[TokenRate, "decoded tokens per second at batch size 1"] = Fraction(80)
    saturation_batch: Annotated[
        int,
        Unit("whole number, 2 or more", _read_batch, int, form=COUNT),
        "batch size at which the throughput stops growing",
    ] = 64
    saturated_tokens_per_s: Annotated[
        TokenRate, "decoded tokens per second of the whole batch, at that batch size and above"
    ] = Fraction(3200)
    # Duration of a decode step by batch size. Entries are computed on demand.
    decode_steps_ps: Annotated[list[int], INTERNAL] = field(default_factory=lambda: [0])

    def scale(self, factor: Fraction) -> Piecewise:
        rates = self.decode_tokens_per_s / factor, self.saturation_batch, self.saturated_tokens_per_s / factor
        return Piecewise(times(self.prefill_ps, factor, 1), *rates)

    def throughput(self, batch: int) -> Fraction:
        """Return the exact throughput of a decoding batch in tokens per second."""
        growth = (self.saturated_tokens_per_s - self.decode_tokens_per_s) / (self.saturation_batch - 1)
        return self.decode_tokens_per_s + growth * (min(batch, self.saturation_batch) - 1)

    def verify(self, width: int) -> AffineVerifier:
        return AffineVerifier(self, width, 0)

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        try:
            first = self.decode_steps_ps[decodes]
        except IndexError:
            first = self._extend(decodes)
        for tokens, _ in chunks:
            first += tokens * self.prefill_ps
        return first, 0, FOREVER

    def _extend(self, batch: int) -> int:
        known = self.decode_steps_ps
        known.extend(round(PS_PER_SECOND * size / self.throughput(size)) for size in range(len(known), batch + 1))
        return known[batch]


MODEL: Final = LatencyKind("piecewise", Piecewise, lambda keys, *_: keys)
