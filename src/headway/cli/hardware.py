"""`headway hardware`: the profiles that step times come from."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from headway.cli.page import AsJson, Page
from headway.types import Json

hardware = App(name="hardware", help="Look at hardware profiles: the constants of step times.", help_format="plaintext")


@hardware.command(name="list")
def list_profiles(*, as_json: AsJson = False) -> Page | Json:
    """List every profile: measured or of a spec sheet, its fit error and the range that it holds for."""
    from headway.experiment.hardware import hardware as look
    from headway.report.hardware import listing

    found = look()
    return found if as_json else Page([listing(found)])


@hardware.command
def show(
    name: Annotated[str, Parameter(help="A GPU's name, or the file of a profile (.yaml).")],
    /,
    *,
    model: Annotated[str, Parameter(help="Whose steps are shown: a model's name or its config.json.")] = "llama-3.1-8b",
    tp: Annotated[int, Parameter(help="How many GPUs it is split over.")] = 1,
    as_json: AsJson = False,
) -> Page | Json:
    """Show a profile: where it is from, what was measured, its error and range, its constants, example steps."""
    from headway.experiment.hardware import hardware as look
    from headway.report.hardware import page

    found = look(name, model, tp)
    return found if as_json else Page([page(found)])
