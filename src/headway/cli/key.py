"""`headway key`: an API key for the gateway's clients."""

from __future__ import annotations

import math
from typing import Annotated

import yaml
from cyclopts import Parameter

from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json


def key(
    name: Annotated[str, Parameter(help="Whose it is.")],
    /,
    *,
    as_json: AsJson = False,
) -> Page | Json:
    """Make an API key: it is shown this once, and only its hash goes into the file that `keys:` names."""
    try:
        from headway.gateway.api_keys import check_name, new_key
    except ImportError as error:
        raise HeadwayError(f"key: {error.name} is not installed; install headway[gateway].") from None
    check_name(name, "NAME")
    made, digest = new_key()
    if as_json:
        return {"name": name, "key": made, "sha256": digest}
    say(f"the key of {name}, which is not kept anywhere: {made}")
    line = yaml.safe_dump({name: {"sha256": digest}}, default_flow_style=None, allow_unicode=True, width=math.inf)
    return Page([], line.rstrip("\n"))
