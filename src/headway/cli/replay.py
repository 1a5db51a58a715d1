"""`headway replay`: the journal of a gateway, decided again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec.structs import asdict

from headway.cli.page import AsJson, Page, Verdict
from headway.errors import HeadwayError


def replay(
    journal: Annotated[Path, Parameter(help="The file that `journal:` named in the gateway's file.")],
    /,
    *,
    as_json: AsJson = False,
) -> Verdict:
    """Feed what a gateway heard to its policies again, and tell whether they decide the same."""
    try:
        from headway.gateway.tape import replay as again
    except ImportError as error:
        raise HeadwayError(f"replay: {error.name} is not installed; install headway[gateway].") from None
    found = again(journal)
    text = f"{found.inputs:,} inputs in {found.seconds:,.1f} s: {found.decisions:,} decisions, "
    text += "all the same again" if not found.different else f"{found.different:,} of them different now"
    shown = [text, *(f"  request {one.request}: {one.then}, now {one.now}" for one in found.differences)]
    document = {**asdict(found), "differences": [asdict(one) for one in found.differences]}
    return Verdict(document if as_json else Page([], "\n".join(shown)), 1 if found.different else 0)
