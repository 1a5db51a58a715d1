"""`headway epp`: the gateway's policies behind an inference gateway."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli.page import say
from headway.errors import HeadwayError


def epp(
    config: Annotated[Path, Parameter(help="A gateway's YAML file: its engines and its policies.")],
    /,
    *,
    tls_cert: Annotated[Path | None, Parameter(help="A certificate (PEM), where the gateway asks over TLS,")] = None,
    tls_key: Annotated[Path | None, Parameter(help="and its key.")] = None,
) -> None:
    """Pick endpoints for an inference gateway, by Envoy's external processing (gRPC), at the file's `listen`."""
    try:
        from headway.interop.endpoint_picker import serve
    except ImportError as error:
        missing = (error.name or "grpc").partition(".")[0]
        raise HeadwayError(f"epp: {missing} is not installed; install headway[epp] for the endpoint picker.") from None
    logging.basicConfig(level=logging.INFO, format="headway: %(message)s", stream=sys.stderr)
    serve(config, lambda address: say(f"picking endpoints at {address} until Ctrl-C or SIGTERM"), tls_cert, tls_key)
