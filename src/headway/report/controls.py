"""The B3 controls for people: the decision matrix, the figures, and what each control isolates."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.experiment.controls import BASE, CONTROLS, Control, Controls
from headway.report.terminal import GAP, facts, number, percent, table, title
from headway.results.ranking import value

Figure = tuple[str, str, Callable[[float | None], str], Callable[[float | None], str]]


def _signed(digits: int, scale: float = 1.0, unit: str = "") -> Callable[[float | None], str]:
    def write(difference: float | None) -> str:
        if difference is None:
            return GAP
        scaled = scale * difference
        decimals = 0 if abs(scaled) >= 1000 else digits
        rounded = round(scaled, decimals)
        return f"{rounded or 0:{'+' if rounded else ''},.{decimals}f}{unit}"  # nothing has no sign

    return write


# A figure's path, its heading, how it is written, and how a difference of it is.
FIGURES: tuple[Figure, ...] = (
    ("latency.ttft.mean", "TTFT ms\nmean", number, _signed(1)),
    ("latency.ttft.p99", "\np99", number, _signed(1)),
    ("latency.tpot.p99", "TPOT ms\np99", number, _signed(1)),
    ("cache.token_hit_ratio", "cache\nhits", percent, _signed(1, 100, " pt")),
    ("balance.jain", "Jain\nindex", lambda share: number(share, 3), _signed(3)),
    ("requests.completed", "requests\ncompleted", lambda count: number(count, 0), _signed(0)),
)


def report(found: Controls) -> RenderableType:
    ran = [control for control in CONTROLS if control.name in found.summaries]
    parts: list[RenderableType] = [title(found.scenario, "routing"), "", _matrix(ran), "", _figures(found, ran), ""]
    told = facts((control.name, control.isolates) for control in ran[1:])
    parts += [Text(f"Less {BASE}, which isolates:"), told, "", _differences(found, ran[1:])]
    if found.missing is not None:
        parts += ["", Text(found.missing)]
    return Group(*parts, "")


def _matrix(ran: list[Control]) -> Table:
    made = table("control", "affinity", "cache aware", "load aware", "overload break")
    for column in made.columns[1:]:
        column.justify, column.no_wrap, column.overflow = "left", False, "fold"
    for control in ran:
        row = (control.name, control.affinity, control.cache_aware, control.load_aware, control.overload_break)
        made.add_row(*map(Text, row))
    return made


def _figures(found: Controls, ran: list[Control]) -> Table:
    made = table("control", *(heading for _, heading, _, _ in FIGURES))
    for control in ran:
        summary = found.summaries[control.name]
        made.add_row(Text(control.name), *(write(value(summary, path)) for path, _, write, _ in FIGURES))
    return made


def _differences(found: Controls, ran: list[Control]) -> Table:
    made = table(f"less {BASE}", *(heading for _, heading, _, _ in FIGURES))
    for control in ran:
        differences = [write(found.difference(control.name, path)) for path, _, _, write in FIGURES]
        made.add_row(Text(control.name), *differences)
    return made
