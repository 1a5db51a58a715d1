"""`headway policy`: policies in files, looked at without running them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from headway.cli.page import AsJson, Page, Verdict
from headway.types import Json

policy = App(name="policy", help="Look at policies in files of your own.", help_format="plaintext")

Stage = Literal["admission", "priority", "routing", "scheduler", "scaling"]


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

    found = check_policy(file, stage)
    if found["ok"]:
        return found if as_json else Page([page(found)])
    texts = "\n".join(one["text"] for one in found["rejections"])
    return Verdict(found if as_json else Page([], texts), 2)
