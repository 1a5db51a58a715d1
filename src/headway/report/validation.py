"""What `headway validate` shows: errors in the terminal, and both distributions as a page for a browser."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from headway.experiment.engine_fit import EngineFit
from headway.experiment.linear_fit import LinearFit
from headway.experiment.validate import RECORDED, SIMULATED, Validation
from headway.latency.calibration import Calibration
from headway.report import html
from headway.report.charts import figure, legend, palette, side_by_side
from headway.report.digest import curve
from headway.report.sections.latency_curves import LONG, NAMES, cdf
from headway.report.terminal import GAP, number, percent, table

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


# A calibration in the terminal: how far off the fit is on steps that it had not seen.


def calibration_report(found: Calibration) -> RenderableType:
    held = sum(one.steps for one in found.errors)
    made = table("held out", "steps", "median", "p90", "worst")
    for one in found.errors:
        made.add_row(one.phase, f"{one.steps:,}", *(percent(value) for value in (one.median, one.p90, one.worst)))
    return Group(
        Text(f"{found.gpu}: fitted to {found.steps:,} steps of {', '.join(found.shapes)}", style="bold"),
        Text(f"up to {found.tokens[1]:,} tokens a step and {found.context[1]:,} of context"),
        "",
        made,
        "",
        Text(f"Absolute error of a fit that had not seen these {held:,} steps; the profile is fitted to all of them."),
    )


def of_run(found: EngineFit | LinearFit) -> RenderableType:
    """What an engine's run changed, and the errors on requests that were held out."""
    if isinstance(found, LinearFit):
        durations = (f"{key} {value}" for key, value in found.latency.items() if key != "model")
        said = f"{', '.join(durations)} ({found.runs} runs)"
    else:
        said = f"host {found.host_ms:.3f} ms a step, all times of the GPU × {found.scale:.4f} ({found.runs} runs)"
    before = found.before.worst
    was = "" if before is None else f"Before, the furthest off of these was {100 * before[2]:+.1f} %."
    return Group(Text(said, style="bold"), report(found.after), Text(was))
