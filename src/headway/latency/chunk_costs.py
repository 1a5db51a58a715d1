"""The cost of a prefill chunk by its length: t tokens after p past tokens attend over t·p + t(t+1)/2 pairs."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from headway.latency.exact_numbers import round_ratio

MAX_ENTRIES: Final = 1 << 16  # cached lengths; engines use few, but a policy's estimator may ask for any


class ChunkCosts(dict[int, tuple[int, int, int]]):
    """Maps tokens to (cost without past, cost of each past token, increase from one such chunk to the next), in whole
    picoseconds, and computes entries on demand.

    The first two are rounded once each. So the cost is affine in the past with a whole slope, although the
    coefficient of a pair may be finer than a picosecond.
    """

    __slots__ = ("_pair", "_token")

    def __init__(self, token: int, pair: Fraction, chunk: int = 0) -> None:
        super().__init__()
        self._token = (token, chunk)
        self._pair = (pair.numerator, pair.denominator)

    def scale(self, factor: Fraction) -> ChunkCosts:
        token, chunk = self._token
        return ChunkCosts(round(token * factor), Fraction(*self._pair) * factor, round(chunk * factor))

    def __missing__(self, tokens: int) -> tuple[int, int, int]:
        token, chunk = self._token
        numerator, denominator = self._pair
        base = chunk + token * tokens + round_ratio(numerator * (tokens * (tokens + 1) // 2), denominator)
        slope = round_ratio(numerator * tokens, denominator)
        costs = (base, slope, slope * tokens)
        if len(self) < MAX_ENTRIES:
            self[tokens] = costs
        return costs
