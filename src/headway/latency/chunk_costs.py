"""What a prefill chunk costs, by its length: t tokens after p past ones attend over t·p + t(t+1)/2 pairs."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from headway.latency.exact_numbers import round_ratio

KEPT: Final = 1 << 16  # lengths remembered; engines use few, an estimator may ask for any


class ChunkCosts(dict[int, tuple[int, int, int]]):
    """tokens -> (cost without past, cost of each past token, rise from one such chunk to the next), whole picoseconds.

    Each of the first two is rounded once, so the cost is affine in the past with a whole slope although the
    coefficient of a pair may be finer than a picosecond. Filled as lengths turn up.
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
        if len(self) < KEPT:
            self[tokens] = costs
        return costs
