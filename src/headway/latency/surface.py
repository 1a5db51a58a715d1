"""A non-decreasing function of two counts, in whole picoseconds. Along the second count, it is piecewise linear with
integer slopes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Final

from headway.latency.base import FOREVER, times
from headway.latency.exact_numbers import round_ratio

MAX_ENTRIES: Final = 1 << 13  # maximum number of cached curves, because a policy's estimator may ask for many counts


class Curve:
    """The values of a surface along the second count, for one value of the first count.

    The curve consists of linear pieces, each between two neighbouring nodes. The slope of a piece must be an integer.
    Therefore both end values of a piece are rounded to multiples of the piece's length: the left value up, the right
    value down. If the left value is then higher than the right value, the slope of the piece is 0. So a piece stays
    between the values of its nodes, and the curve of a larger first count is never lower. At a node itself, the curve
    has the exact value of the node. Between nodes, the error is below one picosecond per token of the piece's length.
    """

    __slots__ = ("nodes", "slopes", "starts", "values")

    def __init__(self, nodes: Sequence[int], values: Sequence[int], last: int) -> None:
        self.nodes, self.values = nodes, values
        self.starts: list[int] = []
        self.slopes: list[int] = []
        for piece in range(len(nodes) - 1):
            length = nodes[piece + 1] - nodes[piece]
            low, high = -(-values[piece] // length), values[piece + 1] // length
            self.starts.append(low * length if low <= high else values[piece])
            self.slopes.append(max(0, high - low))
        self.starts.append(values[-1])
        self.slopes.append(last)

    def at(self, place: int) -> tuple[int, int, int]:
        """Return three numbers for the second count `place`: the value of the curve, its slope, and the distance to the
        next piece."""
        piece = bisect_right(self.nodes, place) - 1
        past = place - self.nodes[piece]
        start = self.starts[piece]
        if not past and start != self.values[piece]:
            return self.values[piece], 0, 1
        slope = self.slopes[piece]
        room = self.nodes[piece + 1] - place if piece + 1 < len(self.nodes) else FOREVER
        return start + slope * past, slope, room


class Surface:
    """A grid of values. Each row stands for one value of the first count, and each node for one value of the second
    count. Values between rows and between nodes are interpolated.

    Beyond the last node, a row continues with its slope in `lasts`. Beyond the last row, values grow as they do over
    the last half of the rows. Before the first row, values are those of the first row. The first node is 0. Values must
    not fall from row to row or from node to node, and slopes in `lasts` must not fall from row to row.
    """

    def __init__(self, rows: list[int], nodes: list[int], grid: list[list[int]], lasts: list[int]) -> None:
        self.rows, self.nodes, self.grid, self.lasts = rows, nodes, grid, lasts
        self._curves: dict[int, Curve] = {}
        self._starts: dict[int, int] = {}

    def curve(self, row: int) -> Curve:
        known = self._curves.get(row)
        if known is None:
            # In an extrapolated row, values could fall as the second count grows. The running maximum prevents that.
            values = list(accumulate((self._between(row, column) for column in range(len(self.nodes))), max))
            low, high, part, whole = self._around(row)
            last = self.lasts[low] + (self.lasts[high] - self.lasts[low]) * part // whole
            known = Curve(self.nodes, values, last)
            if len(self._curves) < MAX_ENTRIES:
                self._curves[row] = known
        return known

    def start(self, row: int) -> int:
        """Return the value of a row at the second count 0."""
        known = self._starts.get(row)
        if known is None:
            known = self._between(row, 0)
            if len(self._starts) < MAX_ENTRIES:
                self._starts[row] = known
        return known

    def rises(self) -> Surface:
        """Return a surface of differences: each value minus the value of its row at the second count 0. If a difference
        is smaller than in the row before, it is raised to the difference in that row."""
        grid: list[list[int]] = []
        for row in self.grid:
            before = grid[-1] if grid else [0] * len(row)
            grid.append([max(value - row[0], least) for value, least in zip(row, before, strict=True)])
        return Surface(self.rows, self.nodes, grid, self.lasts)

    def scale(self, factor: Fraction) -> Surface:
        grid = [[times(value, factor, 1) for value in row] for row in self.grid]
        return Surface(self.rows, self.nodes, grid, [times(slope, factor) for slope in self.lasts])

    def _around(self, row: int) -> tuple[int, int, int, int]:
        """Return the indexes of the two rows of the grid from which the values of `row` are interpolated or
        extrapolated, and the position of `row` relative to them as a fraction: numerator and denominator."""
        rows = self.rows
        if row <= rows[0]:
            return 0, 0, 0, 1
        if row > rows[-1]:
            high = len(rows) - 1
            low = max(0, bisect_right(rows, rows[-1] // 2) - 1)
        else:
            high = bisect_right(rows, row - 1)
            low = high - 1
        return low, high, row - rows[low], rows[high] - rows[low]

    def _between(self, row: int, column: int) -> int:
        low, high, part, whole = self._around(row)
        below = self.grid[low][column]
        return below + round_ratio((self.grid[high][column] - below) * part, whole)
