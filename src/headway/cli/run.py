"""`headway run`: one scenario, simulated, or read where it has been before."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from headway.cli.choice import AS_IT_IS, Choice, ScenarioFile
from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json

if TYPE_CHECKING:
    from headway.results.result import Result
    from headway.scenario.scenario import Scenario

Trace = Literal["minimal", "decisions", "full"]


def run(
    scenario: ScenarioFile = None,
    /,
    *,
    choice: Choice = AS_IT_IS,
    output: Annotated[
        Path | None, Parameter(name=("--output", "-o"), help="Write the run's files to this folder.")
    ] = None,
    trace: Annotated[
        Trace, Parameter(help="What is written down beside the requests: every decision, or everything.")
    ] = "minimal",
    counterfactuals: Annotated[
        int, Parameter(help="Force another target on so many requests, one at a time, and tell what that gives.")
    ] = 0,
    again: Annotated[bool, Parameter(negative="", help="Simulate even if the folder has this run already.")] = False,
    as_json: AsJson = False,
) -> Page | Json:
    """Simulate a scenario and print what its users would see."""
    from headway.experiment.notes import lost_prefixes, note, unmeasured, unscaled, unstruck
    from headway.experiment.run import about
    from headway.report.run import run_report
    from headway.results import store

    if counterfactuals < 0:
        raise HeadwayError(f"--counterfactuals: a number of requests, got {counterfactuals}.")
    if (trace != "minimal" or counterfactuals) and output is None:
        option = "--trace" if trace != "minimal" else "--counterfactuals"
        raise HeadwayError(f"{option}: say with -o FOLDER where it is to be written.")
    loaded = choice.load(scenario)
    if output is not None:
        store.check(output)
    level: Trace = "decisions" if counterfactuals and trace == "minimal" else trace
    result = done(loaded, level, counterfactuals, None if again else output, output)
    routing = result.scenario["policies"]["routing"]
    beside = [lost_prefixes(loaded.cluster, {routing["name"]: routing}), unscaled(loaded), unmeasured(loaded)]
    for said in (*beside, unstruck(loaded, [result.summary()])):
        if said is not None:
            say(said)
    if as_json:
        said = note(result.summary(), loaded.warmup)
        if said is not None:
            say(said)
        return {"run": about(loaded), **result.summary()}
    next_line = ["headway", "compare", *([scenario] if scenario else [])]
    for change in choice.changes or ():
        next_line += ["--set", change]
    for option, value in choice.routing().items():
        next_line += [option, value]
    report = run_report(result.summary(), result.scenario)
    return Page([report, "Which routing policy serves this best?"], shlex.join(next_line))


def done(loaded: Scenario, trace: Trace, counterfactuals: int, there: Path | None, output: Path | None) -> Result:
    """The run, read from the folder that has it `there`, or simulated; and what is written of it."""
    from headway.experiment.counterfactual import counterfactuals as forced
    from headway.experiment.run import simulate
    from headway.experiment.tracing import kept
    from headway.report.progress import Bar, RunProgress
    from headway.results import store

    result = None if there is None else kept(there, loaded.key(), trace)
    read = result is not None
    if result is None:
        with RunProgress(loaded.workload.requests) as progress:
            result = simulate(loaded, trace=trace, progress=progress)
    else:
        say(f"{there} has this run already; it was read (--again simulates it anew)")
    if output is not None and not read:  # whatever becomes of the rest
        say(f"wrote {', '.join(result.save(output))} to {output}")
    if output is not None and counterfactuals:
        with Bar(None, "runs with another choice") as bar:
            result.counterfactuals = forced(result, counterfactuals, progress=bar.update)
        store.add(output, "counterfactuals", result.counterfactuals)
        say(f"wrote {len(result.counterfactuals)} counterfactuals to {output}")
    return result
