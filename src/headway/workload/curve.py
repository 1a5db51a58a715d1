"""A multiplier of the rate over time: linear pieces between whole microseconds, its integral, and the change of time
that gives an arrival process this rate. All of it is exact: integers and fractions, rounded once, to the microsecond of
an arrival."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import inf, isqrt, lcm
from typing import Final, NamedTuple

from headway.types import PS_PER_US

US_PER_SECOND: Final = 1_000_000


class Piece(NamedTuple):
    """From `first` at `start` evenly to `last` at `end`, in microseconds."""

    start: int
    end: int
    first: Fraction
    last: Fraction


class Place(NamedTuple):
    """A piece at one of its turns, for targets (see `Curve.change`) from `base` up to `limit`."""

    base: int
    limit: float  # a whole number, or inf
    start: int  # microseconds
    latest: float  # an arrival rounded up stays out of a stretch without arrivals
    length: int  # 1 for the level that holds for ever
    first: int
    slope: int  # last - first


class Curve:
    """Pieces from time 0 on without a gap, and then a level for ever, or with `level` None the same over and over.

    Multipliers are whole numbers of 1/`scale`, and areas are kept doubled, so that a piece's is whole too.
    """

    __slots__ = ("areas", "first", "last", "level", "scale", "times")

    def __init__(self, pieces: Sequence[Piece], level: Fraction | None) -> None:
        known = [value for piece in pieces for value in (piece.first, piece.last)]
        known += [] if level is None else [level]
        self.scale = lcm(*(value.denominator for value in known))
        self.first = [int(piece.first * self.scale) for piece in pieces]
        self.last = [int(piece.last * self.scale) for piece in pieces]
        self.level = None if level is None else int(level * self.scale)
        self.times, self.areas = [0], [0]  # at which the pieces begin, and what lies before them
        for piece, first, last in zip(pieces, self.first, self.last, strict=True):
            assert piece.start == self.times[-1] < piece.end
            self.times.append(piece.end)
            self.areas.append(self.areas[-1] + (first + last) * (piece.end - piece.start))

    def integral(self, until_ps: int) -> Fraction:
        """The area before a time, in seconds at multiplier 1."""
        index, since, doubled = self._at(until_ps)
        length, first, slope = self._piece(index)
        doubled += self.areas[index] + 2 * first * since + slope * since**2 / length
        return doubled / (2 * self.scale * US_PER_SECOND)

    def multiplier(self, at_ps: int) -> Fraction:
        """The multiplier at a time; where it jumps, the new one."""
        index, since, _ = self._at(at_ps)
        length, first, slope = self._piece(index)
        return (first + slope * since / length) / self.scale

    def _at(self, at_ps: int) -> tuple[int, Fraction, Fraction]:
        """The piece in force, for how many microseconds, and the area of the turns before this one."""
        since, turns = Fraction(at_ps, PS_PER_US), 0
        if self.level is None:
            turns = since // self.times[-1]
            since -= turns * self.times[-1]
        index = bisect_right(self.times, since) - 1
        return index, since - self.times[index], Fraction(turns * self.areas[-1])

    def _piece(self, index: int) -> tuple[int, int, int]:
        """Length, first value and slope; one past the last piece is the level that holds for ever."""
        if index == len(self.first):
            assert self.level is not None
            return 1, self.level, 0
        return self.times[index + 1] - self.times[index], self.first[index], self.last[index] - self.first[index]

    def change(self, totals: Iterable[int], unit: int, rate: Fraction) -> Iterator[int]:
        """The microseconds at which the integral of rate times multiplier reaches each of `totals` in turn, of which
        `unit` make one expected arrival. It ends where the integral does not get so far.

        A total reached where a stretch without arrivals begins belongs to its end. The target is the doubled area to
        reach in 1/`parts`, a whole number as the areas are.
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
                # the most half microseconds h with slope h^2 + 2 double h <= 4 length (target - base) / parts
                under = square + slope * (4 * length * (target - base) // parts)
                root = isqrt(under) if slope > 0 else isqrt(under - 1) + 1 if under else 0
                at = start + ((root - double) // slope + 1) // 2
            else:
                at = start + (target - base + half) // whole
            yield at if at <= latest else int(latest)

    def _place(self, target: int, parts: int) -> Place | None:
        """Where the target is reached, if ever."""
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
        return Place(
            (before + self.areas[index]) * parts, limit, turns * self.times[-1] + start, latest, length, first, slope
        )
