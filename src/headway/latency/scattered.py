"""A surface through points that were measured wherever it suited: the rows need not have the same places."""

from bisect import bisect_right
from collections.abc import Callable, Mapping

from headway.latency.exact_numbers import round_ratio
from headway.latency.surface import Surface

Points = Mapping[int, Mapping[int, int]]
Slope = tuple[int, int]  # rise, run


def through(points: Points, grows: bool) -> Surface:
    """Rows of points, one row for each first count, are each drawn through their own points. Beyond the last point a
    row goes on with the slope over the last half of its range.

    A row of one point has the slope of its neighbour; with `grows`, in proportion to the first count.
    """
    rows = sorted(points)
    nodes = sorted({0}.union(*points.values()))
    slopes = _slopes(points, rows, grows)
    grid = [_draw_row(sorted(points[row].items()), nodes, *ends) for row, ends in zip(rows, slopes, strict=True)]
    lasts = [rise // run for _, (rise, run) in slopes]
    _settle(grid, nodes, lasts, [max(points[row]) for row in rows])
    return Surface(rows, nodes, grid, lasts)


def smooth(points: Points) -> dict[int, dict[int, int]]:
    """Points none of which is faster than a smaller one: each halfway from the slowest that is no larger to the fastest
    that is no smaller, so that what was slow by chance and what was fast by chance give way alike."""
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
    """The extreme of all points that come no later, by rows and by places."""
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
    """No row falls, none is below the one before it. Past its own points a row yields to the next one, since it
    only guesses there; a point that is faster than a smaller one is lifted to it."""
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
    """Of each row, before its first point and after its last."""
    own = {row: _ends(sorted(points[row].items())) for row in rows if len(points[row]) > 1}
    slopes = []
    for row in rows:
        near = row if row in own else min(own, key=lambda other: (abs(other - row), other))
        times, over = (row, near) if grows else (1, 1)
        first, last = own[near]
        slopes.append(((first[0] * times, first[1] * over), (last[0] * times, last[1] * over)))
    return slopes


def _ends(line: list[tuple[int, int]]) -> tuple[Slope, Slope]:
    """The slope over the first doubling of the place and over the last: two neighbours may be too close to tell."""
    (start, low), (end, high) = line[0], line[-1]
    second = next((point for point in line[1:] if point[0] >= 2 * start), line[-1])
    last_but = next((point for point in reversed(line[:-1]) if 2 * point[0] <= end), line[0])
    return (
        (max(0, second[1] - low), second[0] - start),
        (max(0, high - last_but[1]), end - last_but[0]),
    )


def _draw_row(line: list[tuple[int, int]], nodes: list[int], first: Slope, last: Slope) -> list[int]:
    """The values of one row at all nodes."""
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
