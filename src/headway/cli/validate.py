"""`headway validate`: a simulated run beside a recorded one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli.page import AsJson, Page, say
from headway.types import Json


def validate(
    run: Annotated[Path, Parameter(help="A run folder, as `headway run -o` writes it.")],
    /,
    *,
    against: Annotated[
        Path, Parameter(help="What an engine did: a CSV or JSONL (docs/hardware.md has the columns), or a run folder.")
    ],
    html: Annotated[Path | None, Parameter(help="Draw both distributions in a page for a browser.")] = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Print how far a simulated run is from a recorded one: mean and percentiles of TTFT, TPOT and E2E."""
    from headway.experiment.validate import validate as compared
    from headway.report import validation
    from headway.report.html import write

    found = compared(run, against)
    if html is not None:
        write(html, validation.page(found))
        say(f"wrote {html}")
    return found.summary() if as_json else Page([validation.report(found)])
