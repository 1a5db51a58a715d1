"""`headway compare`: policies of a stage on one scenario, ranked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from headway.cli.choice import AS_IT_IS, Choice, RayCluster, ScenarioFile, Workers
from headway.cli.page import AsJson, Page, say
from headway.cli.run import Trace
from headway.errors import HeadwayError
from headway.types import Json


def compare(
    scenario: ScenarioFile = None,
    /,
    *,
    policies: Annotated[
        str | None,
        Parameter(help="Policies, separated by commas: names, mappings as {name: weighted, scorers: {...}}, bundles."),
    ] = None,
    everything: Annotated[
        bool, Parameter(name="--all", negative="", help="Add variants, templates and controls to the usual policies.")
    ] = False,
    stage: Annotated[
        str, Parameter(help="Whose policies are compared: admission, priority, flow, routing, scheduler or scaling.")
    ] = "routing",
    by: Annotated[
        str | None, Parameter(help="Rank by this figure of the JSON document, as in latency.ttft.p99.")
    ] = None,
    per: Annotated[
        Literal["tenant", "class"] | None, Parameter(help="Print the figures of each tenant or SLO class as well.")
    ] = None,
    seeds: Annotated[int, Parameter(help="Run every policy under so many seeds, and tell what is within noise.")] = 1,
    baseline: Annotated[
        str | None, Parameter(help="The policy that the others are measured against; the plain one if left out.")
    ] = None,
    workers: Workers = None,
    ray: RayCluster = None,
    output: Annotated[
        Path | None, Parameter(name=("--output", "-o"), help="Write every policy's run to this folder.")
    ] = None,
    trace: Annotated[Trace, Parameter(help="What is written of these runs beside the requests.")] = "minimal",
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Page | Json:
    """Compare policies of a stage on a scenario, on all cores, and rank them."""
    from headway.experiment.compare import compare as compare_policies
    from headway.experiment.contenders import ALL, contenders
    from headway.experiment.notes import lost_prefixes, unmeasured, unscaled, unstruck
    from headway.report.comparison import comparison_report
    from headway.report.progress import CompareProgress

    given = choice.routing()
    if policies is not None and given and stage == "routing":
        raise HeadwayError(
            f"--policies: says what is compared, and so does {next(iter(given))}; leave one of them out."
        )
    if everything and policies is not None:
        raise HeadwayError("--all: runs every policy of the stage, and --policies names some; leave one of them out.")
    chosen = ALL if everything else policies
    loaded = choice.load(scenario)
    with CompareProgress(seeds) as progress:
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
            progress=progress,
        )
    if output is not None:
        say(f"wrote {len(comparison.ranked):,} runs and study.json to {output}")
    beside = [unscaled(loaded, stage == "scaling"), unstruck(loaded, (summary for _, summary in comparison.ranked))]
    beside.append(unmeasured(loaded))
    if stage == "routing":
        beside.append(lost_prefixes(loaded.cluster, {one.name: one.spec for one in contenders(loaded, chosen)}))
    for said in beside:
        if said is not None:
            say(said)
    if as_json:
        return comparison.summary(per)
    parts = [comparison_report(comparison, per)]
    if chosen is None and (more := len(contenders(loaded, ALL, stage)) - len(contenders(loaded, None, stage))):
        parts.append(f"{more} more with --all: variants, templates and controls.")
    return Page(parts)
