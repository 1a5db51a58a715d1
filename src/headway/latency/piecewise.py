"""`piecewise`: a decode throughput that grows linearly with the batch up to saturation and is flat beyond."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar

from msgspec import Struct

from headway.config import section
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.latency.base import FOREVER, Chunk, Run, times
from headway.latency.exact_numbers import count, positive, token_ps
from headway.types import PS_PER_SECOND


class PiecewiseParameters(Struct):
    """Keys of `latency: {model: piecewise}`; the defaults are RouteSim's for an H100."""

    prefill_tokens_per_s: Any = 50_000
    decode_tokens_per_s: Any = 80  # at batch 1
    saturation_batch: Any = 64
    saturated_tokens_per_s: Any = 3_200  # of the whole batch, at saturation_batch and above


class Piecewise:
    """A step takes its prefill tokens / rate plus decodes / throughput(decodes)."""

    keys: ClassVar = PiecewiseParameters
    __slots__ = ("_batch1", "_decode", "_growth", "_saturation", "prefill_ps")

    def __init__(self, prefill_ps: int, batch1: Fraction, saturation: int, saturated: Fraction) -> None:
        self.prefill_ps = prefill_ps
        self._batch1 = batch1
        self._saturation = saturation
        self._growth = (saturated - batch1) / (saturation - 1)
        self._decode = [0]  # whole picoseconds of a decode step, by batch size; grows as larger batches turn up

    @classmethod
    def read(cls, data: dict[str, Any], where: str, *_: object) -> Piecewise:
        given = section.read(PiecewiseParameters, data, where)
        saturation = count(given.saturation_batch, f"{where}.saturation_batch")
        if saturation < 2:
            raise HeadwayError(f"{where}.saturation_batch: must be at least 2, got {shown(given.saturation_batch)}.")
        for key in ("decode_tokens_per_s", "saturated_tokens_per_s"):
            token_ps(getattr(given, key), f"{where}.{key}")  # a step needs a picosecond at the least
        return cls(
            token_ps(given.prefill_tokens_per_s, f"{where}.prefill_tokens_per_s"),
            positive(given.decode_tokens_per_s, f"{where}.decode_tokens_per_s"),
            saturation,
            positive(given.saturated_tokens_per_s, f"{where}.saturated_tokens_per_s"),
        )

    def scaled(self, factor: Fraction) -> Piecewise:
        saturated = self.throughput(self._saturation)
        return Piecewise(times(self.prefill_ps, factor, 1), self._batch1 / factor, self._saturation, saturated / factor)

    def throughput(self, batch: int) -> Fraction:
        """Tokens a second of a decoding batch, exactly."""
        return self._batch1 + self._growth * (min(batch, self._saturation) - 1)

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        try:
            first = self._decode[decodes]
        except IndexError:
            first = self._extend(decodes)
        for tokens, _ in chunks:
            first += tokens * self.prefill_ps
        return first, 0, FOREVER

    def _extend(self, batch: int) -> int:
        known = self._decode
        known.extend(round(PS_PER_SECOND * size / self.throughput(size)) for size in range(len(known), batch + 1))
        return known[batch]
