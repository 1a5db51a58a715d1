"""A sweep for the terminal: one row per point, with the best value of each column marked."""

from collections.abc import Sequence

from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.experiment.grid import names
from headway.experiment.sweep import Sweep
from headway.report.number_format import GAP, Column, any_column, figure_columns, share_column
from headway.report.terminal import BEST, FIGURES, LONGEST, Fitted, label_column, least_width, table, title, wrap
from headway.results.ranking import direction, value
from headway.types import Json

VALUE_AT_MOST = 24  # maximum number of characters of a value per line, unless a word is longer
FEWEST = 3  # minimum number of columns with figures, even in a narrow terminal
PATHS = (
    "latency.ttft.mean", "latency.ttft.p99", "latency.tpot.p99", "latency.e2e.mean", "latency.e2e.p99",
    "throughput.requests_per_s", "cache.token_hit_ratio", "cost.usd",
)  # fmt: skip


def report(sweep: Sweep, show: Sequence[str] = (), most: int | None = None) -> RenderableType:
    """Return the grid with one row per point, at most `most`, and the verdict. `show` replaces the usual figures."""
    stages = [axis.stage for axis in sweep.axes if axis.stage is not None]
    seeds = f", means over {sweep.seeds} seeds each" if sweep.seeds > 1 else ""
    count = len(sweep.points)
    head = f"{count:,} point{'s' * (count != 1)}{seeds}; {BEST} marks the best of a column."
    usual = [share_column(any(point.slo for point in sweep.points)), *figure_columns(*PATHS)]
    figures = [any_column(path) for path in show] or usual
    part = replace(sweep, points=sweep.points[:most])
    grid = Fitted((), figures, lambda columns, _: _grid(part, columns), fixed=figures if show else figures[:FEWEST])
    left = count - len(part.points)
    more = [Text(f" and {left:,} more points; to_pandas() has all")] if left else []
    return Group(_title(sweep, stages), Text(head), "", grid, *more, "", Text(sweep.verdict))


def _title(sweep: Sweep, stages: Sequence[str]) -> RenderableType:
    """Describe the scenario without the cluster or policies that vary."""
    scenario = sweep.scenario
    if any(axis.keys[0] == "cluster" for axis in sweep.axes):
        return Text(scenario["name"], style="bold")
    policies = {stage: spec for stage, spec in scenario["policies"].items() if stage not in stages}
    return title({**scenario, "policies": policies}, stages[0] if stages else "")


def _grid(sweep: Sweep, columns: Sequence[Column]) -> Table:
    axes = sweep.axes
    grid = table(*names(axes), *(heading for _, heading, _ in columns), gap=1)
    labels = [[axis.text(point.vary[axis.path]) for point in sweep.points] for axis in axes]
    widths = [max(VALUE_AT_MOST, least_width(column, LONGEST + FIGURES)) for column in labels]
    for place, width in enumerate(widths):
        label_column(grid, place, width)
    summaries = [point.summary for point in sweep.points]
    cells = [_cells(summaries, column) for column in columns]
    before: list[str] = []
    for place in range(len(sweep.points)):
        texts = [column[place] for column in labels]
        same = next((depth for depth, pair in enumerate(zip(texts, before, strict=False)) if pair[0] != pair[1]), 0)
        row = [
            Text("" if before and depth < same else wrap(text, width))
            for depth, (text, width) in enumerate(zip(texts, widths, strict=True))
        ]
        grid.add_row(*row, *(column[place] for column in cells))
        before = texts
    return grid


def _cells(summaries: Sequence[Json], column: Column) -> list[Text]:
    """Return the cells of a column, and mark all cells with the best value. If all cells are equal, mark none."""
    path, _, write = column
    values = [value(summary, path) for summary in summaries]
    known = [figure for figure in values if figure is not None]
    texts = [GAP if figure is None else write(figure) for figure in values]
    way = direction(path)
    best = write((max if way == "high" else min)(known)) if known and way else None
    mark = len(set(texts)) > 1
    return [Text(f"{BEST}{text}", style="bold") if mark and text == best else Text(text) for text in texts]
