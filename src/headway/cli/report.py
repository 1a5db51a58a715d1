"""`headway report`: a page for a browser of runs that were written before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json


def report(
    *runs: Annotated[Path, Parameter(help="Run folders, the first of which is the baseline, or one study folder.")],
    output: Annotated[
        Path | None,
        Parameter(name=("--output", "-o"), help="The file to write; report.html beside the runs if left out."),
    ] = None,
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
