"""A sweep for the terminal: a row a point, the best of each column marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.experiment.grid import names
from headway.experiment.sweep import Sweep
from headway.report.terminal import (
    BEST,
    FIGURES,
    GAP,
    LONGEST,
    Column,
    Fitted,
    label_column,
    least_width,
    money,
    number,
    percent,
    table,
    title,
    wrap,
)
from headway.results.ranking import direction, value
from headway.types import Json

VALUE_AT_MOST = 24  # characters of a value in a line
FEWEST = 3  # figures, however narrow the terminal is


def report(found: Sweep) -> RenderableType:
    """The grid, a row a point; below, the verdict."""
    stages = [axis.stage for axis in found.axes if axis.stage is not None]
    seeds = f", {found.seeds} seeds each, of which these are the means" if found.seeds > 1 else ""
    count = len(found.points)
    many = f"{count:,} point{'s' * (count != 1)}{seeds}; {BEST} marks the best of a column."
    figures = _figures(found)
    grid = Fitted((), figures, lambda shown, _: _grid(found, shown), kept=figures[:FEWEST])
    return Group(_title(found, stages), Text(many), "", grid, "", Text(found.verdict))


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


def _grid(found: Sweep, shown: Sequence[Column]) -> Table:
    axes = found.axes
    made = table(*names(axes), *(heading for _, heading, _ in shown), gap=1)
    labels = [[axis.text(point.vary[axis.path]) for point in found.points] for axis in axes]
    widths = [max(VALUE_AT_MOST, least_width(column, LONGEST + FIGURES)) for column in labels]
    for place, width in enumerate(widths):
        label_column(made, place, width)
    summaries = [point.summary for point in found.points]
    cells = [_cells(summaries, path, write) for path, _, write in shown]
    before: list[str] = []
    for place in range(len(found.points)):
        texts = [column[place] for column in labels]
        same = next((depth for depth, pair in enumerate(zip(texts, before, strict=False)) if pair[0] != pair[1]), 0)
        row = [
            Text("" if before and depth < same else wrap(text, width))
            for depth, (text, width) in enumerate(zip(texts, widths, strict=True))
        ]
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
