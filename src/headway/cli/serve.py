"""`headway serve`: the gateway before live engines."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli.page import say
from headway.errors import HeadwayError


def serve(
    config: Annotated[Path, Parameter(help="The gateway's YAML file: its engines and its policies.")],
    /,
    *,
    workers: Annotated[
        int, Parameter(help="Processes, each with the whole gateway; they tell each other their counts.")
    ] = 1,
) -> None:
    """Serve OpenAI's API before the engines that the file names, decided by its policies."""
    try:
        from headway.gateway.gateway_process import serve as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headway"):  # a fault of ours
            raise
        raise HeadwayError(f"serve: {error.name} is not installed; install headway[gateway] for the gateway.") from None
    if not 1 <= workers <= 64:
        raise HeadwayError(f"--workers: a gateway has 1 to 64 processes, got {workers}.")
    logging.basicConfig(level=logging.INFO, format="headway: %(message)s", stream=sys.stderr)
    run(config, lambda address: say(f"serving at {address} until Ctrl-C or SIGTERM"), workers)
