"""The B3 controls in the terminal. A control is a run that shows what one part of the LMetric policy contributes. The
report has the properties of each control, its figures, and the effect that it isolates."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.experiment.controls import BASE, CONTROLS, Control, Controls
from headway.report.number_format import GAP, figure_cells, figure_columns
from headway.report.terminal import facts, table, title


def _difference(digits: int, scale: float = 1.0, unit: str = "") -> Callable[[float | None], str]:
    def write(difference: float | None) -> str:
        if difference is None:
            return GAP
        scaled = scale * difference
        decimals = 0 if abs(scaled) >= 1000 else digits
        rounded = round(scaled, decimals)
        return f"{rounded or 0:{'+' if rounded else ''},.{decimals}f}{unit}"  # a difference of zero has no sign

    return write


# The number format of each figure's difference.
DIFFERENCES = {
    "latency.ttft.mean": _difference(1),
    "latency.ttft.p99": _difference(1),
    "latency.tpot.p99": _difference(1),
    "cache.token_hit_ratio": _difference(1, 100, " pt"),
    "balance.jain": _difference(3),
    "requests.completed": _difference(0),
}


def report(controls: Controls) -> RenderableType:
    ran = [control for control in CONTROLS if control.name in controls.summaries]
    columns = figure_columns(*DIFFERENCES)
    headings = [heading for _, heading, _ in columns]
    figures = [[control.name, *figure_cells(controls.summaries[control.name], columns)] for control in ran]
    differences = [
        [control.name, *(write(controls.difference(control.name, path)) for path, write in DIFFERENCES.items())]
        for control in ran[1:]
    ]
    parts: list[RenderableType] = [title(controls.scenario, "routing"), "", _matrix(ran), ""]
    parts += [table("control", *headings, rows=figures), "", Text(f"The difference from {BASE} isolates:")]
    parts += [facts((control.name, control.isolates) for control in ran[1:]), ""]
    parts.append(table(f"minus {BASE}", *headings, rows=differences))
    if controls.missing is not None:
        parts += ["", Text(controls.missing)]
    return Group(*parts, "")


def _matrix(ran: list[Control]) -> Table:
    rows = [(each.name, each.affinity, each.cache_aware, each.load_aware, each.overload_break) for each in ran]
    grid = table("control", "affinity", "cache aware", "load aware", "overload break", rows=rows)
    for column in grid.columns[1:]:
        column.justify, column.no_wrap, column.overflow = "left", False, "fold"
    return grid
