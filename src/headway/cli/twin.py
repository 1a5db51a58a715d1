"""`headway twin`: a scenario simulated and live, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli.choice import AS_IT_IS, Choice, ScenarioFile
from headway.cli.page import AsJson, Page, Verdict, say
from headway.errors import HeadwayError


def twin(
    scenario: ScenarioFile = None,
    /,
    *,
    policies: Annotated[
        str | None,
        Parameter(help="Routing policies, separated by commas; round-robin,least-loaded,weighted,lmetric if left out."),
    ] = None,
    speed: Annotated[
        float | None, Parameter(help="Simulated seconds a second; so that a step lasts --step if left out.")
    ] = None,
    step: Annotated[float, Parameter(help="Milliseconds of the wall's clock that the shortest step lasts.")] = 20.0,
    output: Annotated[
        Path | None, Parameter(name=("--output", "-o"), help="Write every policy's two runs to this folder.")
    ] = None,
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Verdict:
    """Run a scenario simulated and live (gateway and emulated engines); print both, and whether they agree.

    Ends with status 1 where they do not.
    """
    try:
        from headway.twin.check import twin as compared
    except ImportError as error:
        raise HeadwayError(f"twin: {error.name} is not installed; install headway[gateway] for it.") from None
    from headway.report.progress import Bar
    from headway.twin.check import twin_report as report

    if speed is not None and not 0 < speed <= 1000:
        raise HeadwayError(f"--speed: is above 0 and at most 1000, got {speed}.")
    if not 0 < step <= 10_000:
        raise HeadwayError(f"--step: is a number of milliseconds, at most 10000, got {step}.")
    loaded = choice.load(scenario)
    with Bar(None, "requests") as bar:
        found = compared(loaded, policies, speed=speed, step_ms=step, output=output, progress=bar.update)
    if output is not None:
        say(f"wrote {2 * len(found.pairs)} runs to {output}")
    return Verdict(found.summary() if as_json else Page([report(found)]), 0 if found.agrees else 1)
