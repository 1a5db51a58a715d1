"""Builds a surface through measured points. The points need not form a grid: each row may have points at other
columns."""

from bisect import bisect_right
from collections.abc import Callable, Mapping

from headway.latency.exact_numbers import round_ratio
from headway.latency.surface import Surface

Points = Mapping[int, Mapping[int, int]]
Slope = tuple[int, int]  # (rise of the value, distance over which it rises)


def through(points: Points, grows: bool) -> Surface:
    """Return a surface through these points. `points` maps the first count to a row, and a row maps the second count to
    a value. Within a row, values are interpolated between its points.

    Beyond its last point, a row continues with the slope over the last half of its range. If a row has only one point,
    it has the slope of the nearest row with several points. If `grows` is set, this slope is scaled in proportion to
    the first count.
    """
    rows = sorted(points)
    nodes = sorted({0}.union(*points.values()))
    slopes = _slopes(points, rows, grows)
    grid = [_draw_row(sorted(points[row].items()), nodes, *ends) for row, ends in zip(rows, slopes, strict=True)]
    lasts = [rise // run for _, (rise, run) in slopes]
    _settle(grid, nodes, lasts, [max(points[row]) for row in rows])
    return Surface(rows, nodes, grid, lasts)


def smooth(points: Points) -> dict[int, dict[int, int]]:
    """Return the points with changed values, so that values never fall as the counts grow. The new value of a point is
    the mean of two values. The first is the maximum over all points where neither count is larger. The second is the
    minimum over all points where neither count is smaller. So slow outliers and fast outliers are corrected alike."""
    rows = sorted(points)
    places = sorted({place for line in points.values() for place in line})
    slowest = _envelope(points, rows, places, max)
    fastest = _envelope(points, rows[::-1], places[::-1], min)
    return {
        row: {place: (slowest[row, place] + fastest[row, place]) // 2 for place in sorted(points[row])} for row in rows
    }


def _envelope(
    points: Points, rows: list[int], places: list[int], extreme: Callable[[list[int]], int]
) -> dict[tuple[int, int], int]:
    """Return a value for every row in `rows` and every column in `places`: the `extreme` (maximum or minimum) of all
    points that are in this row or an earlier row of `rows`, and in this column or an earlier column of `places`."""
    extremes: dict[tuple[int, int], int] = {}
    above: dict[int, int] = {}
    for row in rows:
        so_far: list[int] = []
        for place in places:
            so_far += [points[row][place]] if place in points[row] else []
            so_far += [above[place]] if place in above else []
            if so_far:
                so_far = [extreme(so_far)]
                above[place] = extremes[row, place] = so_far[0]
    return extremes


def _settle(grid: list[list[int]], nodes: list[int], lasts: list[int], furthest: list[int]) -> None:
    """Change the grid so that values never fall along a row or from row to row. First lower each extrapolated value
    that is higher than the value in the next row. Then raise each value that is lower than a value at smaller
    counts."""
    for number in range(len(grid) - 2, -1, -1):
        for column in range(bisect_right(nodes, furthest[number]), len(nodes)):
            grid[number][column] = min(grid[number][column], grid[number + 1][column])
        lasts[number] = min(lasts[number], lasts[number + 1])
    for number, row in enumerate(grid):
        before = grid[number - 1] if number else [1] * len(nodes)
        highest = 0
        for column, value in enumerate(row):
            highest = row[column] = max(highest, value, before[column])


def _slopes(points: Points, rows: list[int], grows: bool) -> list[tuple[Slope, Slope]]:
    """Return two slopes for each row: the slope before its first point and the slope after its last point."""
    own = {row: _ends(sorted(points[row].items())) for row in rows if len(points[row]) > 1}
    slopes = []
    for row in rows:
        near = row if row in own else min(own, key=lambda other: (abs(other - row), other))
        times, over = (row, near) if grows else (1, 1)
        first, last = own[near]
        slopes.append(((first[0] * times, first[1] * over), (last[0] * times, last[1] * over)))
    return slopes


def _ends(line: list[tuple[int, int]]) -> tuple[Slope, Slope]:
    """Return the slope at the start and the slope at the end of a row. The first slope is measured between the first
    point and a point at twice its count or more. The second slope is measured between the last point and a point at
    half its count or less. Closer points are not used, because measurement errors would distort the slope."""
    (start, low), (end, high) = line[0], line[-1]
    second = next((point for point in line[1:] if point[0] >= 2 * start), line[-1])
    last_but = next((point for point in reversed(line[:-1]) if 2 * point[0] <= end), line[0])
    return (
        (max(0, second[1] - low), second[0] - start),
        (max(0, high - last_but[1]), end - last_but[0]),
    )


def _draw_row(line: list[tuple[int, int]], nodes: list[int], first: Slope, last: Slope) -> list[int]:
    """Return the values of one row at all nodes."""
    places = [place for place, _ in line]
    values = []
    for node in nodes:
        after = bisect_right(places, node)
        if not after:
            values.append(line[0][1] - round_ratio(first[0] * (line[0][0] - node), first[1]))
        elif after == len(line):
            values.append(line[-1][1] + round_ratio(last[0] * (node - line[-1][0]), last[1]))
        else:
            (start, low), (end, high) = line[after - 1], line[after]
            values.append(low + round_ratio((high - low) * (node - start), end - start))
    return values
