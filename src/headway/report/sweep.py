"""A sweep for the terminal: a row a point, the best of each column marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headway.experiment.grid import names
from headway.experiment.sweep import Sweep
from headway.report.terminal import GAP, Column, money, number, percent, table, title
from headway.results.ranking import direction, value
from headway.types import Json

BEST = "▸"  # before the best of a column
VALUE_AT_MOST = 24  # characters of a value in a line
FEWEST = 3  # figures, however narrow the terminal is


def report(found: Sweep) -> RenderableType:
    """The grid, a row a point; below, the verdict."""
    stages = [axis.stage for axis in found.axes if axis.stage is not None]
    seeds = f", {found.seeds} seeds each, of which these are the means" if found.seeds > 1 else ""
    count = len(found.points)
    many = f"{count:,} point{'s' * (count != 1)}{seeds}; {BEST} marks the best of a column."
    return Group(_title(found, stages), Text(many), "", _Grid(found), "", Text(found.verdict))


def _title(found: Sweep, stages: Sequence[str]) -> RenderableType:
    """The scenario; not its cluster, where that is varied."""
    if any(axis.keys[0] == "cluster" for axis in found.axes):
        return Text(found.scenario["name"], style="bold")
    return title(_told(found.scenario, stages), stages[0] if stages else "")


def _told(scenario: Mapping[str, Any], stages: Sequence[str]) -> Mapping[str, Any]:
    """The scenario without the policies that are varied."""
    policies = {stage: spec for stage, spec in scenario["policies"].items() if stage not in stages}
    return {**scenario, "policies": policies}


def _figures(found: Sweep) -> list[Column]:
    slo = any(point.slo for point in found.points)
    return [
        ("slo.goodput_ratio", "goodput\nshare" if slo else "served\nshare", percent),
        ("latency.ttft.mean", "TTFT ms\nmean", number),
        ("latency.ttft.p99", "\np99", number),
        ("latency.tpot.p99", "TPOT ms\np99", number),
        ("latency.e2e.mean", "E2E ms\nmean", number),
        ("latency.e2e.p99", "\np99", number),
        ("throughput.requests_per_s", "served\n/s", number),
        ("cache.token_hit_ratio", "cache\nhits", percent),
        ("cost.usd", "cost\nUSD", money),
    ]


class _Grid:
    """In a narrow terminal the last figures go; what was varied stays."""

    def __init__(self, found: Sweep) -> None:
        self.found = found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = _figures(self.found)
        wide = options.update(max_width=10_000)
        while len(shown) > FEWEST:
            if Measurement.get(console, wide, _grid(self.found, shown)).maximum <= options.max_width:
                break
            shown.pop()
        yield _grid(self.found, shown)


def _grid(found: Sweep, shown: Sequence[Column]) -> Table:
    axes = found.axes
    made = table(*names(axes), *(heading for _, heading, _ in shown), gap=1)
    for column in made.columns[: len(axes)]:
        column.justify, column.max_width, column.overflow, column.no_wrap = "left", VALUE_AT_MOST, "fold", False
    summaries = [point.summary for point in found.points]
    cells = [_cells(summaries, path, write) for path, _, write in shown]
    before: list[str] = []
    for place, point in enumerate(found.points):
        texts = [axis.text(point.vary[axis.path]) for axis in axes]
        same = next((depth for depth, pair in enumerate(zip(texts, before, strict=False)) if pair[0] != pair[1]), 0)
        row = [Text("" if before and depth < same else text) for depth, text in enumerate(texts)]
        made.add_row(*row, *(column[place] for column in cells))
        before = texts
    return made


def _cells(summaries: Sequence[Json], path: str, write: Any) -> list[Text]:
    """A column, its best marked, all of them where several are written alike; none where all are."""
    values = [value(summary, path) for summary in summaries]
    there = [found for found in values if found is not None]
    texts = [GAP if found is None else write(found) for found in values]
    best = write((max if direction(path) == "high" else min)(there)) if there else None
    mark = len(set(texts)) > 1
    return [Text(f"{BEST}{text}", style="bold") if mark and text == best else Text(text) for text in texts]
