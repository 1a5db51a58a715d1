"""`headway sweep`: one scenario over a grid of its keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli.choice import AS_IT_IS, Choice, RayCluster, ScenarioFile, Workers
from headway.cli.page import AsJson, Page, say
from headway.cli.run import Trace
from headway.errors import HeadwayError
from headway.types import Json


def sweep(
    scenario: ScenarioFile = None,
    /,
    *,
    vary: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            help="A key and its values, as in workload.rate=20..80:10 or policies.routing=round-robin,weighted; "
            "repeat for a grid.",
        ),
    ] = None,
    seeds: Annotated[int, Parameter(help="Under how many seeds each point is run; figures are means.")] = 1,
    workers: Workers = None,
    ray: RayCluster = None,
    output: Annotated[
        Path | None,
        Parameter(
            name=("--output", "-o"),
            help="Write each run to this folder as soon as it is done; what is there already is read, not run again.",
        ),
    ] = None,
    trace: Annotated[Trace, Parameter(help="What is written of these runs beside the requests.")] = "minimal",
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Page | Json:
    """Simulate a scenario at every point of a grid over its keys, on all cores, and say how far the SLO holds."""
    from headway.experiment.sweep import sweep as run_sweep
    from headway.report.progress import SweepProgress
    from headway.report.sweep import report

    if trace != "minimal" and output is None:
        raise HeadwayError("--trace: say with -o FOLDER where it is to be written.")
    data = choice.data(scenario)
    with SweepProgress(say, aloud=output is not None) as progress:
        found = run_sweep(
            data,
            vary or (),
            seeds=seeds,
            workers=workers,
            ray=ray,
            output=output,
            trace=trace,
            progress=progress,
        )
    if output is not None:
        runs = len(found.points)
        say(f"wrote {runs:,} run{'s' * (runs != 1)} and study.json to {output}")
    return found.summary() if as_json else Page([report(found)])
