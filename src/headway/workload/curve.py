"""A multiplier of the rate over time, as linear pieces between whole microseconds. `Curve` computes its integral and
rescales the times of an arrival process, so that the arrivals follow the multiplied rate. All arithmetic is exact; only
the arrival times are rounded."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import inf, isqrt, lcm
from typing import Final, NamedTuple

from headway.types import PS_PER_US

US_PER_SECOND: Final = 1_000_000


class Piece(NamedTuple):
    """A linear piece: its value is `first` at time `start` and `last` at time `end`. Times are in microseconds."""

    start: int
    end: int
    first: Fraction
    last: Fraction


class Curve:
    """Contiguous pieces from time 0. After the last piece, the curve stays at `level`. If `level` is None, the pieces
    repeat.

    Multipliers are stored as multiples of 1/`scale`. Areas are stored doubled, so that they are whole numbers too.
    """

    __slots__ = ("areas", "first", "last", "level", "scale", "times")

    def __init__(self, pieces: Sequence[Piece], level: Fraction | None) -> None:
        known = [value for piece in pieces for value in (piece.first, piece.last)]
        known += [] if level is None else [level]
        self.scale = lcm(*(value.denominator for value in known))
        self.first = [int(piece.first * self.scale) for piece in pieces]
        self.last = [int(piece.last * self.scale) for piece in pieces]
        self.level = None if level is None else int(level * self.scale)
        self.times, self.areas = [0], [0]  # start of each piece, and the doubled area before it
        for piece, first, last in zip(pieces, self.first, self.last, strict=True):
            assert piece.start == self.times[-1] < piece.end
            self.times.append(piece.end)
            self.areas.append(self.areas[-1] + (first + last) * (piece.end - piece.start))

    def integral(self, until_ps: int) -> Fraction:
        """Return the area under the curve before a time. The unit of area is one second at multiplier 1."""
        index, since, doubled = self._at(until_ps)
        length, first, slope = self._piece(index)
        doubled += self.areas[index] + 2 * first * since + slope * since**2 / length
        return doubled / (2 * self.scale * US_PER_SECOND)

    def _at(self, at_ps: int) -> tuple[int, Fraction, Fraction]:
        """Return the index of the piece at a time, the microseconds since the start of the piece, and the doubled area
        of earlier repetitions."""
        since, turns = Fraction(at_ps, PS_PER_US), 0
        if self.level is None:
            turns = since // self.times[-1]
            since -= turns * self.times[-1]
        index = bisect_right(self.times, since) - 1
        return index, since - self.times[index], Fraction(turns * self.areas[-1])

    def _piece(self, index: int) -> tuple[int, int, int]:
        """Return the length of a piece, its first value, and its last value minus its first value. The index after the
        last piece stands for the constant level that follows the pieces."""
        if index == len(self.first):
            assert self.level is not None
            return 1, self.level, 0
        return self.times[index + 1] - self.times[index], self.first[index], self.last[index] - self.first[index]

    def change(self, totals: Iterable[int], unit: int, rate: Fraction) -> Iterator[int]:
        """Yield the time in microseconds at which the integral of rate × multiplier reaches each of `totals`.

        A total of `unit` stands for one expected arrival. If the integral never reaches a total, the iterator ends. If
        the integral reaches a total at the start of a period without arrivals, the arrival moves to the end of the
        period. To compare whole numbers only, the code multiplies the totals, and twice the areas, by constants. A
        multiplied total is called a target.
        """
        scale, parts = 2 * US_PER_SECOND * self.scale * rate.denominator, unit * rate.numerator
        limit: float = 0
        for total in totals:
            target = total * scale
            if target >= limit:
                place = self._place(target, parts)
                if place is None:
                    return
                base, limit, start, latest, length, first, slope = place
                half, whole = first * parts, 2 * first * parts
                double, square = 2 * first * length, (2 * first * length) ** 2
            if slope:
                # The arrival is h half microseconds after the start of the piece, where h is the largest number with
                # slope h^2 + 2 double h <= 4 length (target - base) / parts.
                under = square + slope * (4 * length * (target - base) // parts)
                root = isqrt(under) if slope > 0 else isqrt(under - 1) + 1 if under else 0
                at = start + ((root - double) // slope + 1) // 2
            else:
                at = start + (target - base + half) // whole
            yield at if at <= latest else int(latest)

    def _place(self, target: int, parts: int) -> tuple[int, float, int, float, int, int, int] | None:
        """Return the piece in which the integral reaches `target`, or None if the integral never reaches it.

        The result is (base, limit, start, latest, length, first, slope). The integral grows from `base` to `limit`
        within the piece. `latest` is the latest allowed arrival time: if no arrivals follow the piece, rounding must
        not move an arrival beyond its end.
        """
        area, turns = target // parts, 0
        if self.level is None:
            if not self.areas[-1]:
                return None
            turns = area // self.areas[-1]
        before = turns * self.areas[-1]
        index = bisect_right(self.areas, area - before) - 1
        length, first, slope = self._piece(index)
        start, limit, latest = self.times[index], inf, inf
        if index == len(self.first):
            if not first:
                return None
        else:
            limit = (before + self.areas[index + 1]) * parts
            following = 0 if self.level is None and index + 1 == len(self.first) else index + 1
            _, then, change = self._piece(following)
            if not then and not change:
                latest = turns * self.times[-1] + self.times[index + 1] - 1
        base = (before + self.areas[index]) * parts
        return base, limit, turns * self.times[-1] + start, latest, length, first, slope
