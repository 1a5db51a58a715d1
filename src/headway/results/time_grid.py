"""Divides a run into intervals of equal length, and sums, for each interval, how long each span overlaps it. Times are
whole picoseconds."""

from array import array
from itertools import accumulate

from msgspec import Struct

from headway.types import PS_PER_SECOND


class Grid(Struct, frozen=True):
    start_ps: int
    step_ps: int
    bins: int

    @property
    def end_ps(self) -> int:
        return self.start_ps + self.bins * self.step_ps

    def seconds(self, edge: int) -> float:
        return (self.start_ps + edge * self.step_ps) / PS_PER_SECOND


class SpanSums:
    """For each interval, how long each span overlaps it, summed over all spans. Adding a span takes constant time: the
    intervals that a span covers completely are stored as two changes, one at the first interval and one after the
    last."""

    __slots__ = ("_change", "_grid", "_length", "_part")

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._length = grid.bins * grid.step_ps
        self._part = array("q", bytes(8 * (grid.bins + 1)))
        self._change = array("q", bytes(8 * (grid.bins + 2)))

    def add(self, begin_ps: int, end_ps: int) -> None:
        start, step, length = self._grid.start_ps, self._grid.step_ps, self._length
        # Clip times at the end of the grid: the length of a run is a float, which may be off by some picoseconds.
        first, into = divmod(min(begin_ps - start, length), step)
        last, rest = divmod(min(end_ps - start, length), step)
        if first == last:
            self._part[first] += rest - into
        else:
            self._part[first] += step - into
            self._part[last] += rest
            self._change[first + 1] += 1
            self._change[last] -= 1

    def totals(self) -> list[int]:
        step, bins = self._grid.step_ps, self._grid.bins
        pairs = zip(self._part[:bins], accumulate(self._change), strict=False)
        return [part + step * whole for part, whole in pairs]
