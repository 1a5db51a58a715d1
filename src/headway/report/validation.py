"""What `headway validate` shows: errors in the terminal, and both distributions as a page for a browser."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from headway.experiment.validate import RECORDED, SIMULATED, Validation
from headway.report import html
from headway.report.book import figure, side_by_side
from headway.report.charts.distributions import cdf, curve
from headway.report.palette import legend, palette
from headway.report.sections.distributions import LONG, NAMES
from headway.report.terminal import GAP, number, table

HEADERS = ("", "statistic", "simulated ms", "recorded ms", "error")
NOTE = "Share of answered requests at or below a time; the broken line is what was recorded."


def report(found: Validation) -> RenderableType:
    """For the terminal."""
    made = table(*HEADERS)
    made.columns[1].justify = "left"
    for row in _rows(found):
        made.add_row(*map(Text, row))
    parts: list[RenderableType] = [Text(_title(found), style="bold"), Text(_counts(found)), "", made, ""]
    return Group(*parts, *(Text(note) for note in found.notes), Text(_verdict(found)))


def page(found: Validation) -> str:
    """For a browser: one file."""
    colours = palette((SIMULATED, RECORDED), RECORDED)
    figures = []
    for kind, short in NAMES.items():
        curves = {side: points for side in (SIMULATED, RECORDED) if (points := curve(found.times[side][kind]))}
        if curves:
            drawn = cdf(short, curves, colours, RECORDED, None)
            figures.append(figure(f"chart-{kind}", f"{LONG[kind]} ({short})", drawn))
    parts = [
        html.heading(_title(found), _counts(found), *found.notes, _verdict(found)),
        html.section("Distributions", legend(colours), side_by_side(figures), note=NOTE),
        html.section("Errors", html.table(("", *HEADERS[2:]), _named_rows(found), short=True)),
    ]
    return html.page(_title(found), parts)


def _title(found: Validation) -> str:
    return f"{found.run} against {found.against}"


def _counts(found: Validation) -> str:
    (ours, _), (theirs, _) = (found.requests[side] for side in (SIMULATED, RECORDED))
    return f"{ours:,} answered requests simulated, {theirs:,} recorded"


def _rows(found: Validation) -> list[list[str]]:
    rows = []
    for kind, statistics in found.latency.items():
        for place, (name, one) in enumerate(statistics.items()):
            figures = (number(one[key], 2) for key in ("simulated_ms", "recorded_ms"))
            rows.append(["" if place else NAMES[kind], name, *figures, _signed(one["error"])])
    return rows


def _named_rows(found: Validation) -> list[list[str]]:
    """One column less, since a telephone has no room for two that only name."""
    names = [NAMES[kind] for kind, statistics in found.latency.items() for _ in statistics]
    return [[f"{kind} {name}", *figures] for kind, (_, name, *figures) in zip(names, _rows(found), strict=True)]


def _signed(error: float | None) -> str:
    return GAP if error is None else f"{100 * error:+.1f} %"


def _verdict(found: Validation) -> str:
    if found.worst is None:
        return "Nothing was recorded that an error could be told of."
    kind, name, error = found.worst
    return f"Furthest off: {NAMES[kind]} {name}, {_signed(error)}."
