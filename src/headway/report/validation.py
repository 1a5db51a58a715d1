"""The output of `headway validate` and of calibration: errors in the terminal, and distributions as a page."""

from msgspec.structs import asdict
from rich.console import Group, RenderableType
from rich.text import Text

from headway.experiment.engine_fit import EngineFit
from headway.experiment.linear_fit import LinearFit
from headway.experiment.validate import QUEUED, RECORDED, SIMULATED, Validation
from headway.latency.calibration import Calibration
from headway.report import html
from headway.report.charts import figure, legend, palette, side_by_side
from headway.report.digest import curve
from headway.report.number_format import GAP, number, percent
from headway.report.sections import latency_curves
from headway.report.sections.latency_curves import cdf
from headway.report.terminal import table
from headway.types import Json

HEADERS = ("", "statistic", "simulated ms", "recorded ms", "error")
NAMES = latency_curves.NAMES | {QUEUED: "TTFT queued"}
LONG = latency_curves.LONG | {QUEUED: "Time from queueing to first token"}
KIND_NAMES = {"experts": "mixtures of experts", "fp8": "weights of 8 bits", "packed": "weights below 8 bits"}
COLOURS = palette((SIMULATED, RECORDED), RECORDED)
NOTE = "Share of answered requests at or below a time; the dashed line is the recorded run."


def report(validation: Validation) -> RenderableType:
    """Return the errors for the terminal."""
    errors = table(*HEADERS, rows=_rows(validation), left=(0, 1))
    parts: list[RenderableType] = [Text(_title(validation), style="bold"), Text(_counts(validation)), "", errors, ""]
    return Group(*parts, *map(Text, validation.notes), Text(_verdict(validation)))


def charts(validation: Validation) -> dict[str, tuple[str, Json]]:
    """Return the title and the chart of each latency. A chart shows the simulated and the recorded distribution."""
    drawn = {}
    for kind in validation.latency:
        short = NAMES[kind]
        curves = {side: points for side in (SIMULATED, RECORDED) if (points := curve(validation.times[side][kind]))}
        if curves:
            drawn[kind] = f"{LONG[kind]} ({short})", cdf(short, curves, COLOURS, RECORDED, None)
    return drawn


def page(validation: Validation) -> str:
    """Return the distributions and errors as an HTML page."""
    figures = [figure(f"chart-{kind}", *drawn) for kind, drawn in charts(validation).items()]
    parts = [
        html.heading(_title(validation), _counts(validation), *validation.notes, _verdict(validation)),
        html.section("Distributions", legend(COLOURS), side_by_side(figures), note=NOTE),
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
    """Return the rows with the kind and the statistic in one column, to save space on a phone."""
    names = [NAMES[kind] for kind, statistics in validation.latency.items() for _ in statistics]
    return [[f"{kind} {name}", *figures] for kind, (_, name, *figures) in zip(names, _rows(validation), strict=True)]


def _error(error: float | None) -> str:
    return GAP if error is None else f"{100 * error:+.1f} %"


def _verdict(validation: Validation) -> str:
    if validation.worst is None:
        return "The recorded run has no latency to compare with."
    kind, name, error = validation.worst
    return f"Largest error: {NAMES[kind]} {name}, {_error(error)}."


def calibration_report(calibration: Calibration) -> RenderableType:
    """Return the errors of a fit on held-out steps."""
    rows = [
        [phase.phase, f"{phase.steps:,}", *map(percent, (phase.median, phase.p90, phase.worst))]
        for phase in calibration.errors
    ]
    steps = sum(phase.steps for phase in calibration.errors)
    shapes = ", ".join(calibration.shapes)
    return Group(
        Text(f"{calibration.gpu}: fitted to {calibration.steps:,} steps of {shapes}", style="bold"),
        Text(f"up to {calibration.tokens[1]:,} tokens per step and {calibration.context[1]:,} of context"),
        "",
        table("held out", "steps", "median", "p90", "worst", rows=rows),
        "",
        Text(f"Absolute error on {steps:,} held-out steps; the profile itself is fitted to all steps."),
        *_assumed(calibration),
    )


def _assumed(calibration: Calibration) -> list[RenderableType]:
    """Return the constants that the steps do not determine."""
    parts: list[RenderableType] = []
    if calibration.assumed:
        values = asdict(calibration.constants)
        rows = [[name, f"{values[name]:.5g}", reason] for name, reason in calibration.assumed.items()]
        grid = table("assumed", "value", "reason", rows=rows, left=(0, 2))
        grid.columns[2].no_wrap = False
        parts += ["", Text("The steps do not determine these constants:"), grid]
    absent = [words for kind, words in KIND_NAMES.items() if kind not in calibration.covers]
    if absent:
        parts += ["", Text(f"Not in these steps, and therefore not fitted: {', '.join(absent)}.")]
    return parts


def of_run(fit: EngineFit | LinearFit) -> RenderableType:
    """Return the fitted constants, and the errors on held-out requests."""
    if isinstance(fit, LinearFit):
        durations = (f"{key} {value}" for key, value in fit.latency.items() if key != "model")
        changes = f"{', '.join(durations)} ({fit.runs} runs)"
    else:
        times = fit.all_reduce_times
        factor = f"all GPU times × {fit.scale:.4f}" if times is None else f"all-reduces × {times:.4f}"
        changes = f"host {fit.host_ms:.3f} ms per step, {factor} ({fit.runs} runs)"
    before = fit.before.worst
    was = "" if before is None else f"Before the fit, the largest error was {100 * before[2]:+.1f} %."
    return Group(Text(changes, style="bold"), report(fit.after), Text(was))
