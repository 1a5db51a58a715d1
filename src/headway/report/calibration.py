"""A calibration in the terminal: how far off the fit is on steps that it had not seen."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from headway.experiment.engine_fit import EngineFit
from headway.experiment.linear_fit import LinearFit
from headway.latency.calibration import Calibration
from headway.report import validation
from headway.report.terminal import percent, table


def report(found: Calibration) -> RenderableType:
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
    return Group(Text(said, style="bold"), validation.report(found.after), Text(was))
