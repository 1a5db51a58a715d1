"""`headway plan`: how many replicas a load needs, and how much load replicas hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from headway.cli.choice import AS_IT_IS, Choice, ScenarioFile
from headway.cli.page import AsJson, Page, say
from headway.types import Json


def plan(
    scenario: ScenarioFile = None,
    /,
    *,
    slo: Annotated[
        str | None,
        Parameter(
            help='What must hold, as in "ttft_p99<=500ms, attainment>=0.99"; '
            "99 % of the requests within the scenario's own SLO if left out."
        ),
    ] = None,
    find: Annotated[
        Literal["replicas", "load"],
        Parameter(help="The fewest replicas for the scenario's load, or the highest load for its replicas."),
    ] = "replicas",
    seeds: Annotated[int, Parameter(help="Under how many seeds the SLO must hold.")] = 3,
    vary: Annotated[
        str | None, Parameter(help="The pools whose replicas are sought, separated by commas; all if left out.")
    ] = None,
    max_replicas: Annotated[int, Parameter(name="--max", help="The most replicas of a pool that are tried.")] = 64,
    tolerance: Annotated[float, Parameter(help="How exactly the highest load is found, as a share of it.")] = 0.02,
    points: Annotated[int, Parameter(help="How many loads the curve has; 0 leaves it out.")] = 8,
    every: Annotated[
        bool,
        Parameter(negative="", help="Try every cheaper cluster, not trusting that more replicas never serve worse."),
    ] = False,
    workers: Annotated[int | None, Parameter(help="Processes to use; one a core if left out.")] = None,
    output: Annotated[
        Path | None,
        Parameter(name=("--output", "-o"), help="Write the plan to this file: a page with charts .html, or .json."),
    ] = None,
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Page | Json:
    """Find the cheapest cluster that keeps an SLO under a load, or the highest load that a cluster holds."""
    from headway.experiment.plan import plan as make
    from headway.report import plan as shown
    from headway.report.progress import Bar

    if output is not None:
        shown.check(output)
    loaded = choice.load(scenario)
    with Bar(None, "runs") as progress:
        found = make(
            loaded,
            slo,
            find=find,
            seeds=seeds,
            vary=vary,
            max_replicas=max_replicas,
            tolerance=tolerance,
            points=points,
            every=every,
            workers=workers,
            progress=progress.update,
        )
    if output is not None:
        shown.write(output, found)
        say(f"wrote {output}")
    return found.summary() if as_json else Page([shown.report(found)])
