"""A function of two counts through measured points: it never falls, and along the second count it is made of straight
pieces with whole slopes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Final

from headway.latency.base import FOREVER
from headway.latency.figures import rounded

KEPT: Final = 1 << 13  # curves remembered; engines use few counts, an estimator may ask for any

Points = Mapping[int, Mapping[int, int]]
Slope = tuple[int, int]  # rise, run


class Curve:
    """For one first count. A piece rises by the whole slope below its chord, so that the curve meets its nodes from
    below and is exact at each: what is lost is less than a picosecond for each token of the piece."""

    __slots__ = ("nodes", "slopes", "values")

    def __init__(self, nodes: list[int], values: list[int], last: int) -> None:
        self.nodes, self.values = nodes, values
        pairs = zip(zip(nodes, values, strict=True), zip(nodes[1:], values[1:], strict=True), strict=False)
        self.slopes = [(high - low) // (end - start) for (start, low), (end, high) in pairs]
        self.slopes.append(last)

    def at(self, place: int) -> tuple[int, int, int]:
        """The value, the slope, and how far off the next piece begins."""
        piece = bisect_right(self.nodes, place) - 1
        start = self.nodes[piece]
        slope = self.slopes[piece]
        room = self.nodes[piece + 1] - place if piece + 1 < len(self.nodes) else FOREVER
        return self.values[piece] + slope * (place - start), slope, room


class Surface:
    """Rows of points, one row for each first count, are each drawn through their own points and then interpolated
    between rows. Beyond the last point a row goes on with the slope over the last half of its range, as the rows
    themselves do; before the first row all is as in the first.

    A row of one point has the slope of its neighbour; with `grows`, in proportion to the first count.
    """

    def __init__(self, points: Points, grows: bool) -> None:
        self.rows = sorted(points)
        self.nodes = sorted({0}.union(*points.values()))
        self.furthest = self.nodes[-1]
        slopes = _slopes(points, self.rows, grows)
        self._grid = [
            _drawn(sorted(points[row].items()), self.nodes, *ends) for row, ends in zip(self.rows, slopes, strict=True)
        ]
        self._lasts = [rise // run for _, (rise, run) in slopes]
        self._settle(points)
        self._curves: dict[int, Curve] = {}

    def curve(self, row: int) -> Curve:
        found = self._curves.get(row)
        if found is None:
            # Beyond the last row the rows may draw nearer to each other along the second count.
            values = list(accumulate((self._between(row, column) for column in range(len(self.nodes))), max))
            low, high, part, whole = self._around(row)
            last = self._lasts[low] + (self._lasts[high] - self._lasts[low]) * part // whole
            found = Curve(self.nodes, values, last)
            if len(self._curves) < KEPT:
                self._curves[row] = found
        return found

    def start(self, row: int) -> int:
        """The value where the second count is 0."""
        return self._between(row, 0)

    def _around(self, row: int) -> tuple[int, int, int, int]:
        """Two rows of the grid, and how far this one is from the first of them to the second: a part of the whole."""
        rows = self.rows
        if row <= rows[0]:
            return 0, 0, 0, 1
        if row > rows[-1]:
            high = len(rows) - 1
            low = max(0, bisect_right(rows, rows[-1] // 2) - 1)
        else:
            high = next_at_least(rows, row)
            low = high - 1
        return low, high, row - rows[low], rows[high] - rows[low]

    def _between(self, row: int, column: int) -> int:
        low, high, part, whole = self._around(row)
        below = self._grid[low][column]
        return below + rounded((self._grid[high][column] - below) * part, whole)

    def _settle(self, points: Points) -> None:
        """No row falls, none is below the one before it. Past its own points a row yields to the next one, since it
        only guesses there; a point that is faster than a smaller one is lifted to it."""
        grid, nodes = self._grid, self.nodes
        for number in range(len(grid) - 2, -1, -1):
            last = max(points[self.rows[number]])
            for column in range(bisect_right(nodes, last), len(nodes)):
                grid[number][column] = min(grid[number][column], grid[number + 1][column])
            self._lasts[number] = min(self._lasts[number], self._lasts[number + 1])
        for number, row in enumerate(grid):
            before = grid[number - 1] if number else [1] * len(nodes)
            highest = 0
            for column, value in enumerate(row):
                highest = row[column] = max(highest, value, before[column])


def next_at_least(rows: list[int], row: int) -> int:
    """The place of the first row that is not below."""
    return bisect_right(rows, row - 1)


def _slopes(points: Points, rows: list[int], grows: bool) -> list[tuple[Slope, Slope]]:
    """Of each row, before its first point and after its last."""
    own = {row: _ends(sorted(points[row].items())) for row in rows if len(points[row]) > 1}
    found = []
    for row in rows:
        near = row if row in own else min(own, key=lambda other: (abs(other - row), other))
        times, over = (row, near) if grows else (1, 1)
        first, last = own[near]
        found.append(((first[0] * times, first[1] * over), (last[0] * times, last[1] * over)))
    return found


def _ends(line: list[tuple[int, int]]) -> tuple[Slope, Slope]:
    """The slope over the first doubling of the place and over the last: two neighbours may be too close to tell."""
    (start, low), (end, high) = line[0], line[-1]
    second = next((point for point in line[1:] if point[0] >= 2 * start), line[-1])
    last_but = next((point for point in reversed(line[:-1]) if 2 * point[0] <= end), line[0])
    return (
        (max(0, second[1] - low), second[0] - start),
        (max(0, high - last_but[1]), end - last_but[0]),
    )


def _drawn(line: list[tuple[int, int]], nodes: list[int], first: Slope, last: Slope) -> list[int]:
    """The values of one row at all nodes."""
    places = [place for place, _ in line]
    found = []
    for node in nodes:
        after = bisect_right(places, node)
        if not after:
            found.append(line[0][1] - rounded(first[0] * (line[0][0] - node), first[1]))
        elif after == len(line):
            found.append(line[-1][1] + rounded(last[0] * (node - line[-1][0]), last[1]))
        else:
            (start, low), (end, high) = line[after - 1], line[after]
            found.append(low + rounded((high - low) * (node - start), end - start))
    return found
