"""`headway check`: a gate for changes."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli.options import PolicyTimeout, RayCluster, Workers, allow_policies, flag
from headway.cli.page import AsJson, Page, Verdict, say
from headway.errors import HeadwayError


def check(
    base: Annotated[
        str,
        Parameter(
            help="A scenario (YAML file, preset or trace), a policy (name, file.py:Class or bundle), a run folder, or "
            "a folder of recorded traffic."
        ),
    ],
    candidate: Annotated[
        str | None,
        Parameter(help="The changed side. Default: BASE with --candidate-set, or, with --git, BASE itself."),
    ] = None,
    /,
    *,
    fail_if: Annotated[
        list[str] | None,
        flag('When the check fails, such as "ttft.p99>+5%"; a metric of docs/metrics.md. Repeat for more.'),
    ] = None,
    on: Annotated[
        str | None,
        Parameter(help="Scenario or suite in which policies run. Default: the embedded suite."),
    ] = None,
    changes: Annotated[list[str] | None, flag("Set a key of both sides; repeat for more.", "--set")] = None,
    base_set: Annotated[list[str] | None, flag("Set a key of the base; repeat for more.")] = None,
    candidate_set: Annotated[list[str] | None, flag("Set a key of the candidate; repeat for more.")] = None,
    git: Annotated[
        str | None, Parameter(help="Take the base from this revision of the same file, such as main.")
    ] = None,
    seeds: Annotated[int | None, Parameter(help="Most seeds to run. Default: 64, within --budget.")] = None,
    budget: Annotated[
        str | None, Parameter(help="Most time to take, such as 5m. Default: 60s, or no limit if you set --seeds.")
    ] = None,
    error: Annotated[float, Parameter(help="Greatest probability of a wrong verdict.")] = 0.05,
    workers: Workers = None,
    ray: RayCluster = None,
    markdown: Annotated[Path | None, Parameter(help="Write the verdict as Markdown to this file.")] = None,
    junit: Annotated[Path | None, Parameter(help="Write the verdict as JUnit XML to this file.")] = None,
    policy_timeout: PolicyTimeout = None,
    as_json: AsJson = False,
) -> Verdict:
    """Check whether a change makes figures worse.

    Exits with 0 if no condition holds, 1 if one holds, and 4 if the runs cannot tell.
    """
    from headway.display.progress import Bar
    from headway.regression.check import check as run_check
    from headway.regression.check_tables import report
    from headway.results.store import writing

    allow_policies(policy_timeout)
    for file in (markdown, junit):
        if file is not None and not file.absolute().parent.is_dir():
            raise HeadwayError(f"{file}: cannot be written: {file.absolute().parent} is not a folder.")
    with Bar(None, "runs") as bar:
        result = run_check(
            base,
            candidate,
            fail_if or (),
            on=on,
            overrides=changes or (),
            base_set=base_set or (),
            candidate_set=candidate_set or (),
            git=git,
            seeds=seeds,
            budget=budget,
            error=error,
            workers=workers,
            ray=ray,
            progress=bar.update,
        )
    for file, text in ((markdown, result.markdown), (junit, result.junit)):
        if file is not None:
            with writing(file):
                file.write_text(text(), encoding="utf-8")
            say(f"wrote {file}")
    return Verdict(result.summary() if as_json else Page([report(result)]), result.code)
