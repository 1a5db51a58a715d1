"""The cost of a prefill chunk by its length. A chunk of t tokens after p past tokens has t·p + t(t+1)/2 query-key
pairs, because each token attends to the past and to the tokens of the chunk up to itself."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from headway.latency.exact_numbers import round_ratio

MAX_ENTRIES: Final = 1 << 16  # maximum number of cached lengths, because a policy's estimator may ask for many


class ChunkCosts(dict[int, tuple[int, int, int]]):
    """Maps the length of a chunk to three costs in whole picoseconds. The first is the cost without a past. The second
    is the additional cost of each past token. The third is how much more the next chunk of the same length costs,
    because its past is longer. Entries are computed on demand.

    The first two costs are rounded once each. So the cost of a chunk grows by a whole number of picoseconds for each
    past token, although the cost of a single query-key pair may have fractions of a picosecond.
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
