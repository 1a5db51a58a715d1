"""Verbs that read run folders: `explain`, `summarize`, `report`, `timeline` and `validate`."""

import time
from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from headway.cli.options import RunFolder, flag, output_to
from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json

FOLLOW_S: Final = 2.0  # time between two looks for a new batch of a search


def explain(
    run: RunFolder,
    request: Annotated[int, Parameter(help="Index of the request in order of arrival, from 0.")],
    /,
    *,
    workers: Annotated[int | None, Parameter(help="Number of processes. Default: one per core.")] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Explain why a request went where it did.

    Prints what the router believed, what was true, and what would have happened on the other instances.
    """
    from headway.display.progress import Bar
    from headway.experiment.explain import explain as explain_request
    from headway.report.explain import explanation

    with Bar(None, "runs with another choice") as progress:
        document = explain_request(run, request, workers=workers, progress=progress.update)
    return document if as_json else Page([explanation(document)])


def summarize(
    run: RunFolder,
    /,
    *,
    max_tokens: Annotated[int, Parameter(help="Maximum length of the text, in LLM tokens; at least 50.")] = 1500,
    focus: Annotated[
        list[str] | None, flag("Show only issues of this area, such as routing, admission or cache; repeat for more.")
    ] = None,
    may: Annotated[
        str | None,
        Parameter(help="Stages that you may change, such as routing,admission: suggest only changes of these."),
    ] = None,
    examples: Annotated[int, Parameter(help="Number of worst decisions to show.")] = 3,
    counters: Annotated[bool, Parameter(help="Show what other decisions would have achieved.")] = True,
    strategy: Annotated[
        Literal["issue-focused", "decision-audit", "counterfactual", "pattern-mining"],
        Parameter(
            help="What to show first: issues, a sample of decisions, better choices, or conditions of failed requests."
        ),
    ] = "issue-focused",
    as_json: AsJson = False,
) -> Page | Json:
    """Summarize a run in words: results, issues, suggestions.

    The text is Markdown, for people and for language models.
    """
    from headway.results.result import Result
    from headway.results.scope import stages_of
    from headway.results.words import compose

    summary = compose(
        Result.load(run),
        max_tokens=max_tokens,
        focus=focus or (),
        may=None if may is None else stages_of(may, "--may"),
        examples=examples,
        counters=counters,
        strategy=strategy,
    )
    # Print the summary unchanged: it is Markdown, and a program may read it.
    return summary.document() if as_json else Page([], summary.text.rstrip("\n"))


def report(
    *runs: Annotated[Path, Parameter(help="Run folders, the baseline first, or one folder of a study or a search.")],
    output: Annotated[Path | None, output_to("File to write. Default: report.html beside the runs.")] = None,
    follow: Annotated[
        bool, Parameter(name="--follow", negative="", help="Write the page of a search again until the search ends.")
    ] = False,
    as_json: AsJson = False,
) -> Page | Json:
    """Write an HTML report of runs, a comparison, a sweep or a search.

    The page is one file and needs no network.
    """
    from headway.display.progress import Bar
    from headway.evolve.journal import is_search
    from headway.evolve.search_page import follow_search, report_search
    from headway.report.page import report as write

    if not runs:
        raise HeadwayError("report: no folder. Name one that `headway run -o` or `headway compare -o` wrote.")
    searched = len(runs) == 1 and is_search(runs[0])
    if follow and not searched:
        raise HeadwayError("report: --follow needs the folder of one search, which `headway evolve -o` writes.")
    if follow:
        path = follow_search(runs[0], output, lambda: time.sleep(FOLLOW_S))
    elif searched:
        path = report_search(runs[0], output)
    else:
        with Bar(None, "runs") as progress:
            path = write(runs, output, progress.update)
    say(f"wrote {path}")
    return {"report": str(path)} if as_json else Page([f"Open {path} in a browser."])


def timeline(
    run: RunFolder,
    /,
    *,
    output: Annotated[Path | None, output_to("File to write. Default: timeline.json in the run folder.")] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Write a run as a timeline for Perfetto or Chrome.

    Open it at ui.perfetto.dev or chrome://tracing.
    """
    from headway.results.result import Result
    from headway.results.timeline import write

    file = run / "timeline.json" if output is None else output
    write(Result.load(run), file)
    say(f"wrote {file}")
    return {"timeline": str(file)} if as_json else Page([f"Open {file} at ui.perfetto.dev."])


def validate(
    run: RunFolder,
    /,
    *,
    against: Annotated[
        Path,
        Parameter(help="The recorded run: a run folder, or a CSV or JSONL file with the columns of docs/hardware.md."),
    ],
    html: Annotated[Path | None, Parameter(help="Write an HTML page with both distributions to this file.")] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Compare a simulated run with a recorded one.

    Prints the errors of mean and percentiles of TTFT, TPOT and E2E.
    """
    from headway.experiment.validate import validate as compare
    from headway.report import validation
    from headway.report.html import write

    errors = compare(run, against)
    if html is not None:
        write(html, validation.page(errors))
        say(f"wrote {html}")
    return errors.summary() if as_json else Page([validation.report(errors)])
