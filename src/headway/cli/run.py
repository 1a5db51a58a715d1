"""`headway run` simulates one scenario; `headway workload` shows its workload without simulating it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from headway.cli.options import AS_IT_IS, Choice, RunOutput, ScenarioFile, Trace, flag
from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json

if TYPE_CHECKING:
    from headway.results.result import Result
    from headway.scenario.scenario import Scenario

workload = App(
    name="workload", help="Preview the workload of a scenario, or write it as a trace.", help_format="plaintext"
)


@workload.command
def preview(
    scenario: ScenarioFile = None,
    /,
    *,
    requests: Annotated[int, Parameter(help="Number of requests to generate for the preview.")] = 10_000,
    html: Annotated[Path | None, Parameter(help="Write an HTML page to this file.")] = None,
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Page | Json:
    """Print a workload's rate over time, lengths, sessions and prefix sharing, without simulating it."""
    from headway.display.progress import Bar
    from headway.experiment.look import preview as describe
    from headway.report import workload_tables as tables
    from headway.report.html import write

    loaded = choice.load(scenario)
    with Bar(None, "drawing requests"):
        document = describe(loaded, requests=requests, progress=False)
    if html is not None:
        write(html, tables.preview_page(document))
        say(f"wrote {html}")
    return document if as_json else Page([tables.preview_report(document)])


@workload.command
def write(
    scenario: Annotated[
        str, Parameter(help="A YAML file, a preset's name, a run folder, a trace, or a file of BLIS or RouteSim.")
    ],
    target: Annotated[Path, Parameter(name="OUT", help="The trace to write.")],
    /,
    *,
    requests: Annotated[int | None, Parameter(help="Write only the first N requests.")] = None,
    to: Annotated[
        str | None, Parameter(help="Format of OUT. Default: by the name of OUT, otherwise the format headway.")
    ] = None,
    changes: Annotated[list[str] | None, flag("Set a key of the scenario; repeat for more.", "--set")] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Write the requests that a workload plans as a trace."""
    from headway.display.progress import Bar
    from headway.experiment.look import write_workload

    source = scenario if Path(scenario).is_dir() else AS_IT_IS.data(scenario)
    with Bar(None, "requests") as bar:
        document = write_workload(
            source, target, overrides=changes or (), to=to, requests=requests, progress=bar.update
        )
    say(*(f"{target.name}: the {document['format']} format cannot express {phrase}." for phrase in document["lost"]))
    line = f"wrote {document['written']:,} requests to {target} in {document['format']} format"
    return document if as_json else Page([], line)


def run(
    scenario: ScenarioFile = None,
    /,
    *,
    choice: Choice = AS_IT_IS,
    output: RunOutput = None,
    trace: Annotated[
        Trace,
        Parameter(help="What to record in addition to the requests: nothing, all decisions, or engine events as well."),
    ] = "minimal",
    counterfactuals: Annotated[
        int, Parameter(help="Rerun N requests with another target, one at a time, and record the outcome.")
    ] = 0,
    again: Annotated[bool, flag("Simulate even if the folder already has this run.")] = False,
    as_json: AsJson = False,
) -> Page | Json:
    """Simulate a scenario and print its latency, cost and issues."""
    from headway.experiment.notes import (
        note_bad_rows,
        note_former_decider,
        note_idle_autoscaler,
        note_lost_prefixes,
        note_missed_faults,
        note_no_figures,
        note_one_model,
        note_unmeasured,
    )
    from headway.experiment.repeatable import Repetition
    from headway.experiment.run import about
    from headway.report.run import run_report
    from headway.results import store

    if counterfactuals < 0:
        raise HeadwayError(f"--counterfactuals: must not be negative, got {counterfactuals}.")
    if (trace != "minimal" or counterfactuals) and output is None:
        option = "--trace" if trace != "minimal" else "--counterfactuals"
        raise HeadwayError(f"{option}: needs an output folder. Add -o FOLDER.")
    loaded = choice.load(scenario)
    if output is not None:
        store.check(output)
    level: Trace = "decisions" if counterfactuals and trace == "minimal" else trace
    repetition = Repetition(loaded.resolved())
    result = _run(loaded, level, counterfactuals, output, again)
    routing = result.scenario["policies"]["routing"]
    say(note_lost_prefixes(loaded.cluster, {routing["name"]: routing}), note_idle_autoscaler(loaded))
    say(note_former_decider(loaded), note_unmeasured(loaded), note_missed_faults(loaded, [result.summary()]))
    say(note_bad_rows(loaded), note_one_model(loaded, result), repetition.problem())
    if as_json:
        say(note_no_figures(result.summary(), loaded.warmup))
        return {"run": about(loaded), **result.summary()}
    next_line = ["headway", "compare", *([scenario] if scenario else [])]
    for change in choice.changes or ():
        next_line += ["--set", change]
    for option, value in choice.routing().items():
        next_line += [option, value]
    report = run_report(result.summary(), result.scenario)
    return Page([report, "Which routing policy serves this best?"], shlex.join(next_line))


def _run(loaded: Scenario, trace: Trace, counterfactuals: int, output: Path | None, again: bool) -> Result:
    """Return the result of a simulation. If the folder `output` already has this result and `again` is not set, read it
    from there. Otherwise simulate the scenario, and write the result to the folder."""
    from headway.display.progress import Bar
    from headway.experiment.counterfactual import counterfactuals as force_others
    from headway.experiment.run import read_run, simulate
    from headway.results import store

    result = None if output is None or again else read_run(output, loaded.key(), trace)
    if result is not None:
        say(f"{output} already has this run; read it from there (--again simulates it)")
    else:
        with Bar(loaded.workload.requests, "requests") as bar:
            result = simulate(loaded, trace=trace, progress=lambda arrived, now_ps: bar.update(arrived))
        if output is not None:  # save before the counterfactuals, which may fail
            say(f"wrote {', '.join(result.save(output))} to {output}")
    if output is not None and counterfactuals:
        with Bar(None, "runs with another choice", f"The run is in {output}, without counterfactuals.") as bar:
            result.counterfactuals = force_others(result, counterfactuals, progress=bar.update)
        store.add(output, "counterfactuals", result.counterfactuals)
        say(f"wrote {len(result.counterfactuals)} counterfactuals to {output}")
    return result
