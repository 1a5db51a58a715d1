"""How many requests were where over time, from the columns of a run: mean numbers in equal parts of its length.

Each request adds to the parts that its stay begins and ends in, and to the differences that make up those between, so
that a run of a million requests takes one pass and no sorting. All in whole picoseconds: the means are exact.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import fsum
from typing import Final

from msgspec import Struct

from headway.report.terminal import brief
from headway.results.records import Series
from headway.results.result import Result
from headway.types import PS_PER_SECOND

BINS: Final = 100
NAMES: Final = (
    "arrival_ps",
    "enqueued_ps",
    "started_ps",
    "finished_ps",
    "handed_ps",
    "transferred_ps",
    "instance",
    "prefill_instance",
)


class Grid(Struct, frozen=True):
    """Equal parts of a run's length."""

    start_ps: int
    step_ps: int
    bins: int

    @property
    def end_ps(self) -> int:
        return self.start_ps + self.bins * self.step_ps

    def seconds(self, edge: int) -> float:
        return (self.start_ps + edge * self.step_ps) / PS_PER_SECOND


class Loads(Struct, frozen=True):
    """Mean numbers of requests in each part: those that wait to begin, those that run, and those at each instance."""

    grid: Grid
    waiting: list[float]
    running: list[float]
    instances: dict[int, list[float]]  # waiting or running there, by index


class Stay:
    """Adds up stays at one place."""

    __slots__ = ("_change", "_grid", "_most", "_part")

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._most = grid.bins * grid.step_ps
        self._part = array("q", bytes(8 * (grid.bins + 1)))
        self._change = array("q", bytes(8 * (grid.bins + 2)))

    def add(self, begin_ps: int, end_ps: int) -> None:
        """Somebody is there from one instant to the other."""
        start, step, most = self._grid.start_ps, self._grid.step_ps, self._most
        # The length of a run is known as a float, which may be off by some picoseconds.
        first, into = divmod(min(begin_ps - start, most), step)
        last, rest = divmod(min(end_ps - start, most), step)
        if first == last:
            self._part[first] += rest - into
        else:
            self._part[first] += step - into
            self._part[last] += rest
            self._change[first + 1] += 1
            self._change[last] -= 1

    def means(self) -> list[float]:
        step, bins = self._grid.step_ps, self._grid.bins
        through = accumulate(self._change)
        return [brief((part + step * whole) / step) for part, whole in zip(self._part[:bins], through, strict=False)]


def grid_of(result: Result, bins: int = BINS) -> Grid:
    """From the first arrival to the end of the run."""
    start, end = result.span_ps()
    return Grid(start, -(-max(1, end - start) // bins), bins)


def loads(result: Result) -> Loads:
    grid = grid_of(result)
    end = grid.end_ps
    waiting, running = Stay(grid), Stay(grid)
    places = {index: Stay(grid) for index in result.instance_ids()}
    columns = [result.requests.column(name) for name in NAMES]
    for arrived, enqueued, started, finished, handed, moved, instance, prefill in zip(*columns, strict=True):
        until = finished if 0 <= finished < end else end
        if started >= 0:
            waiting.add(arrived, started)
            running.add(started, until)
        else:
            waiting.add(arrived, until)
        if enqueued < 0 or instance not in places:
            continue
        if prefill >= 0:
            # The prompt is computed elsewhere, and its cache must come over before the answer goes on here.
            leaves = handed if handed >= 0 else until
            if prefill in places:
                places[prefill].add(enqueued, leaves)
            if moved >= 0:
                places[instance].add(moved, until)
        else:
            places[instance].add(enqueued, until)
    return Loads(grid, waiting.means(), running.means(), {index: stay.means() for index, stay in places.items()})


def coarse(series: Series, grid: Grid) -> list[float | None]:
    """A sampled value as its mean in each part of a run; None where there is no sample."""
    sums, counts = [0] * grid.bins, [0] * grid.bins
    for place, value in enumerate(series.values):
        into = (series.start_ps + place * series.interval_ps - grid.start_ps) // grid.step_ps
        if 0 <= into < grid.bins:
            sums[into] += value
            counts[into] += 1
    return [total / count if count else None for total, count in zip(sums, counts, strict=True)]


def busiest(rows: Iterable[tuple[int, Sequence[float]]], most: int) -> list[int]:
    """The instances with the most requests over the run, in order of their index."""
    totals = sorted(((-max(values, default=0.0), index) for index, values in rows))[:most]
    return sorted(index for _, index in totals)


def mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)
