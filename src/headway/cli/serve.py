"""`headway serve`: the gateway before live engines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli.page import say
from headway.types import HeadwayError


def serve(
    config: Annotated[Path, Parameter(help="The gateway's YAML file: its engines and its policies.")],
    /,
) -> None:
    """Serve OpenAI's API before the engines that the file names, decided by its policies."""
    try:
        from headway.gateway.config import Config
        from headway.gateway.serve import serve as run
    except ImportError as error:
        raise HeadwayError(f"serve: {error.name} is not installed; install headway[gateway] for the gateway.") from None
    loaded = Config.load(config)
    names = ", ".join(one.name for one in loaded.backends)
    run(loaded, lambda address: say(f"serving at {address} before {names}; Ctrl-C or SIGTERM ends it"))
