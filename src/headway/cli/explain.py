"""`headway explain`: why a request went where it went."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli.page import AsJson, Page
from headway.types import Json


def explain(
    run: Annotated[Path, Parameter(help="A run folder, as `headway run -o` writes it.")],
    request: Annotated[int, Parameter(help="A request's number, in order of arrival from 0.")],
    /,
    *,
    workers: Annotated[int | None, Parameter(help="Processes to simulate on; all cores unless told otherwise.")] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Tell why a request went where it went: what was believed, what was true, what each alternative gives."""
    from headway.experiment.explain import explain as told
    from headway.report.explain import explanation
    from headway.report.progress import Bar

    with Bar(None, "runs with another choice") as progress:
        found = told(run, request, workers=workers, progress=progress.update)
    return found if as_json else Page([explanation(found)])
