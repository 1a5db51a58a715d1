"""What `headway validate` shows: errors in the terminal, and both distributions as a page for a browser."""

from rich.console import Group, RenderableType
from rich.text import Text

from headway.experiment.engine_fit import EngineFit
from headway.experiment.linear_fit import LinearFit
from headway.experiment.validate import RECORDED, SIMULATED, Validation
from headway.latency.calibration import Calibration
from headway.report import html
from headway.report.charts import figure, legend, palette, side_by_side
from headway.report.digest import curve
from headway.report.number_format import GAP, number, percent
from headway.report.sections.latency_curves import LONG, NAMES, cdf
from headway.report.terminal import table

HEADERS = ("", "statistic", "simulated ms", "recorded ms", "error")
NOTE = "Share of answered requests at or below a time; the broken line is what was recorded."


def report(validation: Validation) -> RenderableType:
    """For the terminal."""
    errors = table(*HEADERS, rows=_rows(validation), left=(0, 1))
    parts: list[RenderableType] = [Text(_title(validation), style="bold"), Text(_counts(validation)), "", errors, ""]
    return Group(*parts, *map(Text, validation.notes), Text(_verdict(validation)))


def page(validation: Validation) -> str:
    """For a browser: one file."""
    colours = palette((SIMULATED, RECORDED), RECORDED)
    figures = []
    for kind, short in NAMES.items():
        curves = {side: points for side in (SIMULATED, RECORDED) if (points := curve(validation.times[side][kind]))}
        if curves:
            drawn = cdf(short, curves, colours, RECORDED, None)
            figures.append(figure(f"chart-{kind}", f"{LONG[kind]} ({short})", drawn))
    parts = [
        html.heading(_title(validation), _counts(validation), *validation.notes, _verdict(validation)),
        html.section("Distributions", legend(colours), side_by_side(figures), note=NOTE),
        html.section("Errors", html.table(("", *HEADERS[2:]), _named_rows(validation), "short")),
    ]
    return html.page(_title(validation), parts)


def _title(validation: Validation) -> str:
    return f"{validation.run} against {validation.against}"


def _counts(validation: Validation) -> str:
    (ours, _), (theirs, _) = (validation.requests[side] for side in (SIMULATED, RECORDED))
    return f"{ours:,} answered requests simulated, {theirs:,} recorded"


def _rows(validation: Validation) -> list[list[str]]:
    rows = []
    for kind, statistics in validation.latency.items():
        for place, (name, pair) in enumerate(statistics.items()):
            figures = (number(pair[key], 2) for key in ("simulated_ms", "recorded_ms"))
            rows.append(["" if place else NAMES[kind], name, *figures, _error(pair["error"])])
    return rows


def _named_rows(validation: Validation) -> list[list[str]]:
    """One column less, since a telephone has no room for two that only name."""
    names = [NAMES[kind] for kind, statistics in validation.latency.items() for _ in statistics]
    return [[f"{kind} {name}", *figures] for kind, (_, name, *figures) in zip(names, _rows(validation), strict=True)]


def _error(error: float | None) -> str:
    return GAP if error is None else f"{100 * error:+.1f} %"


def _verdict(validation: Validation) -> str:
    if validation.worst is None:
        return "Nothing was recorded that an error could be told of."
    kind, name, error = validation.worst
    return f"Furthest off: {NAMES[kind]} {name}, {_error(error)}."


# A calibration in the terminal: how far off the fit is on steps that it had not seen.


def calibration_report(calibration: Calibration) -> RenderableType:
    rows = [
        [phase.phase, f"{phase.steps:,}", *map(percent, (phase.median, phase.p90, phase.worst))]
        for phase in calibration.errors
    ]
    steps = sum(phase.steps for phase in calibration.errors)
    shapes = ", ".join(calibration.shapes)
    return Group(
        Text(f"{calibration.gpu}: fitted to {calibration.steps:,} steps of {shapes}", style="bold"),
        Text(f"up to {calibration.tokens[1]:,} tokens a step and {calibration.context[1]:,} of context"),
        "",
        table("held out", "steps", "median", "p90", "worst", rows=rows),
        "",
        Text(f"Absolute error of a fit that had not seen these {steps:,} steps; the profile is fitted to all of them."),
    )


def of_run(fit: EngineFit | LinearFit) -> RenderableType:
    """What an engine's run changed, and the errors on requests that were held out."""
    if isinstance(fit, LinearFit):
        durations = (f"{key} {value}" for key, value in fit.latency.items() if key != "model")
        changes = f"{', '.join(durations)} ({fit.runs} runs)"
    else:
        changes = f"host {fit.host_ms:.3f} ms a step, all times of the GPU × {fit.scale:.4f} ({fit.runs} runs)"
    before = fit.before.worst
    was = "" if before is None else f"Before, the furthest off of these was {100 * before[2]:+.1f} %."
    return Group(Text(changes, style="bold"), report(fit.after), Text(was))
