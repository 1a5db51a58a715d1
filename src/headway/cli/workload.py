"""`headway workload`: the traffic of a scenario, before anything is simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from headway.cli.choice import AS_IT_IS, Choice, ScenarioFile
from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json

workload = App(name="workload", help="Look at the workload of a scenario.", help_format="plaintext")


@workload.command
def preview(
    scenario: ScenarioFile = None,
    /,
    *,
    requests: Annotated[int, Parameter(help="How many requests to look at, from the first on.")] = 10_000,
    html: Annotated[Path | None, Parameter(help="Write a page for a browser to this file.")] = None,
    choice: Choice = AS_IT_IS,
    as_json: AsJson = False,
) -> Page | Json:
    """Print a workload's rate over time, lengths, sessions and prefix sharing before anything is simulated."""
    from headway.experiment.look import preview as look
    from headway.report import workload_tables as shown
    from headway.report.html import write
    from headway.report.progress import Bar

    if requests < 1:
        raise HeadwayError(f"--requests: look at one request at least, got {requests}.")
    loaded = choice.load(scenario)
    with Bar(None, "drawing requests"):
        found = look(loaded, requests=requests)
    if html is not None:
        write(html, shown.preview_page(found))
        say(f"wrote {html}")
    return found if as_json else Page([shown.preview_report(found)])
