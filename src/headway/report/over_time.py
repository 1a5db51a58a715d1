"""Requests at each instance over time: mean numbers in equal intervals of a run, from one pass over its columns."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from headway.report.number_format import brief
from headway.results.records import Series
from headway.results.result import Result
from headway.results.time_grid import Grid, SpanSums

BINS: Final = 100
NAMES: Final = (
    "arrival_ps", "enqueued_ps", "started_ps", "finished_ps", "handed_ps", "transferred_ps", "instance",
    "prefill_instance",
)  # fmt: skip


class Loads(Struct, frozen=True):
    """Mean numbers of requests in each interval of a run: waiting to start, running, and at each instance."""

    grid: Grid
    waiting: list[float]
    running: list[float]
    instances: dict[int, list[float]]  # instance -> mean number of its requests in each interval


def grid_of(result: Result, bins: int = BINS) -> Grid:
    """Divide a run, from its first arrival to its end, into equal intervals."""
    start, end = result.span_ps()
    return Grid(start, -(-max(1, end - start) // bins), bins)


def loads(result: Result) -> Loads:
    grid = grid_of(result)
    end = grid.end_ps
    waiting, running = SpanSums(grid), SpanSums(grid)
    places = {index: SpanSums(grid) for index in result.instance_ids()}
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
            # Between the end of prefill and the end of the transfer, the request is at no instance.
            leaves = handed if handed >= 0 else until
            if prefill in places:
                places[prefill].add(enqueued, leaves)
            if moved >= 0:
                places[instance].add(moved, until)
        else:
            places[instance].add(enqueued, until)
    instances = {index: _means(sums, grid) for index, sums in places.items()}
    return Loads(grid, _means(waiting, grid), _means(running, grid), instances)


def _means(sums: SpanSums, grid: Grid) -> list[float]:
    return [brief(total / grid.step_ps) for total in sums.totals()]


def coarse(series: Series, grid: Grid) -> list[float | None]:
    """Return the mean of a sampled value in each interval of a run; None for an interval without a sample."""
    sums, counts = [0] * grid.bins, [0] * grid.bins
    for place, value in enumerate(series.values):
        into = (series.start_ps + place * series.interval_ps - grid.start_ps) // grid.step_ps
        if 0 <= into < grid.bins:
            sums[into] += value
            counts[into] += 1
    return [total / count if count else None for total, count in zip(sums, counts, strict=True)]


def busiest(rows: Iterable[tuple[int, Sequence[float]]], most: int) -> list[int]:
    """Return at most `most` instances, in order of their index: those whose peak number of requests is highest."""
    totals = sorted(((-max(values, default=0.0), index) for index, values in rows))[:most]
    return sorted(index for _, index in totals)
