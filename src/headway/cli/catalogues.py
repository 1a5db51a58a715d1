"""`headway policies`, `headway policy` and `headway hardware`: what there is to choose from, and a policy file checked
without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from headway.cli.page import AsJson, Page, Verdict
from headway.types import Json

Stage = Literal["admission", "priority", "routing", "scheduler", "scaling"]


def policies(name: str | None = None, /, *, as_json: AsJson = False) -> Page | Json:
    """List the policies, or show one with its parameters and the signals it reads.

    Parameters
    ----------
    name:
        A policy's name, of whatever stage.
    """
    from headway.report import catalogue

    entries = catalogue.find(name)
    if as_json:
        return {"policies": [catalogue.document(entry) for entry in entries]}
    return Page([catalogue.listing(entries)] if name is None else [catalogue.page(entry) for entry in entries])


policy = App(name="policy", help="Look at policies in files of your own.", help_format="plaintext")


@policy.command
def check(
    file: Annotated[Path, Parameter(help="A source in the policy language, or a bundle (.yaml).")],
    /,
    *,
    stage: Annotated[
        Stage | None, Parameter(help="What the source is for; found from its function if left out.")
    ] = None,
    as_json: AsJson = False,
) -> Page | Json | Verdict:
    """Check a policy: print what it reads, its parameters and complexity, or each thing that is refused and why."""
    from headway.experiment.check_policy import check_policy
    from headway.report.catalogue import policy_file_page as page

    document = check_policy(file, stage)
    if document["ok"]:
        return document if as_json else Page([page(document)])
    texts = "\n".join(rejection["text"] for rejection in document["rejections"])
    return Verdict(document if as_json else Page([], texts), 2)


hardware = App(name="hardware", help="Look at hardware profiles: the constants of step times.", help_format="plaintext")


@hardware.command(name="list")
def list_profiles(*, as_json: AsJson = False) -> Page | Json:
    """List every profile: measured or of a spec sheet, its fit error and the range that it holds for."""
    from headway.experiment.hardware import hardware as describe
    from headway.report.hardware import listing

    document = describe()
    return document if as_json else Page([listing(document)])


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
    from headway.experiment.hardware import hardware as describe
    from headway.report.hardware import page

    document = describe(name, model, tp)
    return document if as_json else Page([page(document)])
