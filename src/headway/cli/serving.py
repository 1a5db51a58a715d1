"""Verbs of the gateway: `serve`, `epp`, `key` and `replay`."""

import math
from pathlib import Path
from typing import Annotated

import yaml
from cyclopts import Parameter

from headway.cli.options import needs
from headway.cli.page import AsJson, Page, Verdict, say
from headway.errors import HeadwayError
from headway.http.event_loop import hangup_pending
from headway.types import Json


def serve(
    config: Annotated[Path, Parameter(help="The gateway's YAML file, with engines and policies.")],
    /,
    *,
    workers: Annotated[
        int, Parameter(help="Number of gateway processes. They share the port and exchange their counts.")
    ] = 1,
) -> None:
    """Route OpenAI-compatible traffic to the configured engines."""
    if not 1 <= workers <= 64:
        raise HeadwayError(f"--workers: must be between 1 and 64, got {workers}.")
    with hangup_pending():  # importing the gateway takes a while
        with needs("gateway", "serve"):
            from headway.gateway.gateway_process import log
            from headway.gateway.gateway_process import serve as run
        run(config, lambda address: log.info("serving at %s (stop with Ctrl-C or SIGTERM)", address), workers)


def epp(
    config: Annotated[Path, Parameter(help="A gateway's YAML file, with engines and policies.")],
    /,
    *,
    tls_cert: Annotated[Path | None, Parameter(help="Certificate (PEM), to serve gRPC over TLS.")] = None,
    tls_key: Annotated[Path | None, Parameter(help="Private key of the certificate (PEM).")] = None,
) -> None:
    """Pick endpoints for an Envoy inference gateway over gRPC.

    The server speaks Envoy's external processing protocol at the file's `listen` address.
    """
    with needs("gateway", "epp"):
        from headway.interop.endpoint_picker import log, serve
    announcement = "picking endpoints at %s (stop with Ctrl-C or SIGTERM)"
    serve(config, lambda address: log.info(announcement, address), tls_cert, tls_key)


def key(name: Annotated[str, Parameter(help="Name of the key's owner.")], /, *, as_json: AsJson = False) -> Page | Json:
    """Create an API key for the gateway.

    Headway prints the key once. Only its hash goes into the file that `keys:` names.
    """
    with needs("gateway", "key"):
        from headway.gateway.api_keys import new_key
        from headway.gateway.settings import check_name
    check_name(name, "NAME")
    secret, digest = new_key()
    if as_json:
        return {"name": name, "key": secret, "sha256": digest}
    say(f"the key of {name}, shown only this once: {secret}")
    line = yaml.safe_dump({name: {"sha256": digest}}, default_flow_style=None, allow_unicode=True, width=math.inf)
    return Page([], line.rstrip("\n"))


def replay(
    journal: Annotated[Path, Parameter(help="Journal file, named by `journal:` in the gateway's file.")],
    /,
    *,
    as_json: AsJson = False,
) -> Verdict:
    """Replay a gateway's journal and check its decisions.

    The exit status is 1 if a decision differs.
    """
    from msgspec import to_builtins

    with needs("gateway", "replay"):
        from headway.gateway.tape import replay as run
    replayed = run(journal)
    status = 1 if replayed.different else 0
    if as_json:
        return Verdict(to_builtins(replayed), status)
    text = f"{replayed.inputs:,} inputs in {replayed.seconds:,.1f} s: {replayed.decisions:,} decisions, "
    text += "all equal" if not replayed.different else f"{replayed.different:,} of them differ"
    lines = [f"  request {each.request}: {each.then}, now {each.now}" for each in replayed.differences]
    return Verdict(Page([], "\n".join([text, *lines])), status)
