"""Verbs that simulate a scenario many times: `compare`, `controls`, `sweep` and `plan`."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from headway.cli.options import (
    AS_IT_IS,
    Choice,
    RayCluster,
    ScenarioFile,
    StudyTrace,
    Workers,
    flag,
    output_to,
)
from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json


def compare(
    scenario: ScenarioFile = None,
    /,
    *,
    policies: Annotated[
        str | None,
        Parameter(
            help="Policies, separated by commas: names, mappings such as {name: weighted, scorers: {...}}, or bundles."
        ),
    ] = None,
    everything: Annotated[bool, flag("Add variants, templates and controls to the usual policies.", "--all")] = False,
    stage: Annotated[
        str,
        Parameter(
            help="Stage to compare: admission, priority, flow, estimator, routing, decider, scheduler or scaling."
        ),
    ] = "routing",
    by: Annotated[
        str | None, Parameter(help="Rank by this metric of docs/metrics.md, such as latency.ttft.p99.")
    ] = None,
    per: Annotated[
        Literal["tenant", "class"] | None, Parameter(help="Also print figures for each tenant or SLO class.")
    ] = None,
    seeds: Annotated[
        int, Parameter(help="Run every policy with N seeds, and mark differences that are within noise.")
    ] = 1,
    baseline: Annotated[
        str | None, Parameter(help="Policy to measure the others against. Default: the stage's plain policy.")
    ] = None,
    fresh: Annotated[bool, flag("Let policies read signals without delay, and rank with polled signals too.")] = False,
    polled: Annotated[bool, flag("Poll signals, by default every 500 ms, and rank with fresh signals too.")] = False,
    workers: Workers = None,
    ray: RayCluster = None,
    output: Annotated[Path | None, output_to("Write every policy's run to this folder.")] = None,
    trace: StudyTrace = "minimal",
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Page | Json:
    """Compare policies on a scenario and rank them."""
    from headway.display.progress import Bar
    from headway.experiment.compare import compare as compare_policies
    from headway.experiment.contenders import ALL, contenders
    from headway.experiment.notes import (
        note_bad_rows,
        note_former_decider,
        note_idle_autoscaler,
        note_lost_prefixes,
        note_missed_faults,
        note_unmeasured,
    )
    from headway.experiment.repeatable import Repetition
    from headway.report.comparison import comparison_report

    options = choice.routing()
    if policies is not None and options and stage == "routing":
        raise HeadwayError(f"--policies: cannot be combined with {next(iter(options))}; both name policies.")
    if everything and policies is not None:
        raise HeadwayError("--all: cannot be combined with --policies.")
    if fresh and polled:
        raise HeadwayError("--fresh: cannot be combined with --polled.")
    chosen = ALL if everything else policies
    loaded = choice.load(scenario)
    kept = Bar.KEPT if output is None else f"Finished runs are in {output}; the same command starts over."
    with Bar(None, "policies" if seeds == 1 else "runs", kept) as bar:
        comparison = compare_policies(
            loaded,
            chosen,
            stage=stage,
            by=by,
            seeds=seeds,
            baseline=baseline,
            workers=workers,
            ray=ray,
            output=output,
            trace=trace,
            progress=bar.update,
            signals="fresh" if fresh else "polled" if polled else None,
        )
    if output is not None:
        say(f"wrote {len(comparison.ranked):,} runs and study.json to {output}")
    summaries = [summary for _, summary in comparison.ranked]
    say(
        note_former_decider(loaded),
        note_idle_autoscaler(loaded, stage == "scaling"),
        note_missed_faults(loaded, summaries),
    )
    say(note_unmeasured(loaded), note_bad_rows(loaded))
    rivals = contenders(loaded, chosen, stage)
    for rival in rivals:
        say(Repetition(loaded.resolved(), rival.policies).problem())
    if stage == "routing":
        say(note_lost_prefixes(loaded.cluster, {each.name: each.spec for each in rivals}))
    if as_json:
        return comparison.summary(per)
    parts = [comparison_report(comparison, per)]
    if chosen is None and (more := len(contenders(loaded, ALL, stage)) - len(rivals)):
        parts.append(f"{more} more with --all: variants, templates and controls.")
    return Page(parts)


def controls(scenario: ScenarioFile = None, /, *, choice: Choice = AS_IT_IS, as_json: AsJson = False) -> Page | Json:
    """Run five control policies that isolate single effects.

    They are lmetric, load-only, sticky, unified and capped (B3).
    """
    from headway.display.progress import Bar
    from headway.experiment.controls import controls as run_controls
    from headway.experiment.notes import note_bad_rows, note_unmeasured
    from headway.report.controls import report

    option = next(iter(choice.routing()), None)
    if option is not None:
        raise HeadwayError(f"{option}: the controls have their own routing policies; remove the option.")
    loaded = choice.load(scenario)
    with Bar(None, "policies") as bar:
        runs = run_controls(loaded, progress=bar.update)
    say(note_unmeasured(loaded), note_bad_rows(loaded))
    return runs.summary() if as_json else Page([report(runs)])


def sweep(
    scenario: ScenarioFile = None,
    /,
    *,
    vary: Annotated[
        list[str] | None,
        flag(
            "A key and its values, such as workload.rate=20..80:10 or policies.routing=round-robin,weighted; "
            "repeat for a grid."
        ),
    ] = None,
    show: Annotated[
        str | None,
        Parameter(help="Figures to show as columns, separated by commas, such as balance.cv,latency.itl.p99."),
    ] = None,
    seeds: Annotated[int, Parameter(help="Seeds per point; figures are means over them.")] = 1,
    workers: Workers = None,
    ray: RayCluster = None,
    output: Annotated[
        Path | None,
        output_to("Write each run to this folder when it is done. Runs that are already there are not repeated."),
    ] = None,
    trace: StudyTrace = "minimal",
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Page | Json:
    """Simulate a scenario over a grid of values.

    Prints a row for each point, and up to which load or size the SLO holds.
    """
    from headway.display.progress import SweepProgress
    from headway.experiment.notes import note_bad_rows
    from headway.experiment.repeatable import Repetition
    from headway.experiment.sweep import sweep as run_sweep
    from headway.report.sweep import report
    from headway.scenario.scenario import Scenario

    if trace != "minimal" and output is None:
        raise HeadwayError("--trace: needs an output folder. Add -o FOLDER.")
    data = choice.data(scenario)
    with SweepProgress(say, output) as progress:
        grid = run_sweep(
            data,
            vary or (),
            seeds=seeds,
            show=show or (),
            workers=workers,
            ray=ray,
            output=output,
            trace=trace,
            progress=progress,
        )
    if output is not None:
        runs = len(grid.points)
        say(f"wrote {runs:,} run{'s' * (runs != 1)} and study.json to {output}")
    say(note_bad_rows(Scenario.load(grid.scenario)), Repetition(grid.scenario).problem())
    return grid.summary() if as_json else Page([report(grid, () if show is None else grid.show)])


def plan(
    scenario: ScenarioFile = None,
    /,
    *,
    slo: Annotated[
        str | None,
        Parameter(
            help='Targets, such as "ttft_p99<=500ms, attainment>=0.99". '
            "Default: 99 % of the requests meet the scenario's SLO."
        ),
    ] = None,
    find: Annotated[
        Literal["replicas", "load"],
        Parameter(help="Find the fewest replicas for the scenario's load, or the highest load for its replicas."),
    ] = "replicas",
    seeds: Annotated[int, Parameter(help="Number of seeds; the SLO must hold with each of them.")] = 3,
    vary: Annotated[str | None, Parameter(help="Pools to size, separated by commas. Default: all.")] = None,
    max_replicas: Annotated[int, Parameter(name="--max", help="Maximum number of replicas to try for a pool.")] = 64,
    tolerance: Annotated[
        float, Parameter(help="End the search for the highest load when it is known to within this fraction.")
    ] = 0.02,
    points: Annotated[int, Parameter(help="Number of loads on the curve; 0 omits the curve.")] = 8,
    every: Annotated[bool, flag("Try every cheaper cluster. Needed if more replicas could serve worse.")] = False,
    workers: Workers = None,
    output: Annotated[Path | None, output_to("Write the plan to this file: .html with charts, or .json.")] = None,
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Page | Json:
    """Size a cluster for an SLO, or find its highest load."""
    from headway.display.progress import Bar
    from headway.experiment.plan import plan as make
    from headway.report import plan as pages

    if output is not None:
        pages.check(output)
    loaded = choice.load(scenario)
    with Bar(None, "runs") as progress:
        answer = make(
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
        pages.write(output, answer)
        say(f"wrote {output}")
    return answer.summary() if as_json else Page([pages.report(answer)])
