"""Verbs that read runs which were written before: `explain`, `summarize`, `report`, `timeline` and `validate`."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from headway.cli.options import RunFolder, flag, output_to
from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json


def explain(
    run: RunFolder,
    request: Annotated[int, Parameter(help="A request's number, in order of arrival from 0.")],
    /,
    *,
    workers: Annotated[int | None, Parameter(help="Processes to simulate on; all cores unless told otherwise.")] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Tell why a request went where it went: what was believed, what was true, what each alternative gives."""
    from headway.experiment.explain import explain as explain_request
    from headway.report.explain import explanation
    from headway.report.progress import Bar

    with Bar(None, "runs with another choice") as progress:
        document = explain_request(run, request, workers=workers, progress=progress.update)
    return document if as_json else Page([explanation(document)])


def summarize(
    run: RunFolder,
    /,
    *,
    max_tokens: Annotated[int, Parameter(help="How long the text may be to a language model, 50 at least.")] = 1500,
    focus: Annotated[
        list[str] | None, flag("Only issues of this area, such as routing, admission or cache; repeat for more.")
    ] = None,
    examples: Annotated[int, Parameter(help="How many of the worst decisions to show.")] = 3,
    counters: Annotated[bool, Parameter(help="Say what other decisions would have given.")] = True,
    strategy: Annotated[
        Literal["issue-focused", "decision-audit", "counterfactual", "pattern-mining"],
        Parameter(help="What comes first: problems, a sample of decisions, better choices, or conditions of failure."),
    ] = "issue-focused",
    as_json: AsJson = False,
) -> Page | Json:
    """Tell in words what came of a run, what went wrong and what to try, for people and for language models."""
    from headway.results.result import Result
    from headway.results.words import compose

    summary = compose(
        Result.load(run),
        max_tokens=max_tokens,
        focus=focus or (),
        examples=examples,
        counters=counters,
        strategy=strategy,
    )
    # Not for the console to lay out: it is Markdown, and a program may read it.
    return summary.document() if as_json else Page([], summary.text.rstrip("\n"))


def report(
    *runs: Annotated[Path, Parameter(help="Run folders, the first of which is the baseline, or one study folder.")],
    output: Annotated[Path | None, output_to("The file to write; report.html beside the runs if left out.")] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Write one HTML page of runs, a comparison or a sweep; it opens offline in any browser."""
    from headway.report.page import report as write
    from headway.report.progress import Bar

    if not runs:
        raise HeadwayError("report: name at least one folder that `headway run -o` or `headway compare -o` wrote.")
    with Bar(None, "runs") as progress:
        path = write(runs, output, progress.update)
    say(f"wrote {path}")
    return {"report": str(path)} if as_json else Page([f"Open {path} in a browser."])


def timeline(
    run: RunFolder,
    /,
    *,
    output: Annotated[
        Path | None, output_to("The file to write; timeline.json in the run's folder if left out.")
    ] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Write a run as a timeline that Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing) open."""
    from headway.results.result import Result
    from headway.results.timeline import write

    file = run / "timeline.json" if output is None else output
    write(Result.load(run), file)
    say(f"wrote {file}")
    return {"timeline": str(file)} if as_json else Page([f"Drop {file} onto ui.perfetto.dev, or open it there."])


def validate(
    run: RunFolder,
    /,
    *,
    against: Annotated[
        Path, Parameter(help="What an engine did: a CSV or JSONL (docs/hardware.md has the columns), or a run folder.")
    ],
    html: Annotated[Path | None, Parameter(help="Draw both distributions in a page for a browser.")] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Print how far a simulated run is from a recorded one: mean and percentiles of TTFT, TPOT and E2E."""
    from headway.experiment.validate import validate as compare
    from headway.report import validation
    from headway.report.html import write

    errors = compare(run, against)
    if html is not None:
        write(html, validation.page(errors))
        say(f"wrote {html}")
    return errors.summary() if as_json else Page([validation.report(errors)])
