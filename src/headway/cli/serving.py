"""Verbs of the gateway itself: `serve`, `epp`, the keys of its clients, and its journal decided again."""

import math
from pathlib import Path
from typing import Annotated

import yaml
from cyclopts import Parameter

from headway.cli.options import needs
from headway.cli.page import AsJson, Page, Verdict, log_to_stderr, say
from headway.errors import HeadwayError
from headway.types import Json


def serve(
    config: Annotated[Path, Parameter(help="The gateway's YAML file: its engines and its policies.")],
    /,
    *,
    workers: Annotated[
        int, Parameter(help="Processes, each with the whole gateway; they tell each other their counts.")
    ] = 1,
) -> None:
    """Serve OpenAI's API before the engines that the file names, decided by its policies."""
    with needs("gateway", "serve", " for the gateway"):
        from headway.gateway.gateway_process import serve as run
    if not 1 <= workers <= 64:
        raise HeadwayError(f"--workers: a gateway has 1 to 64 processes, got {workers}.")
    log_to_stderr()
    run(config, lambda address: say(f"serving at {address} until Ctrl-C or SIGTERM"), workers)


def epp(
    config: Annotated[Path, Parameter(help="A gateway's YAML file: its engines and its policies.")],
    /,
    *,
    tls_cert: Annotated[Path | None, Parameter(help="A certificate (PEM), where the gateway asks over TLS,")] = None,
    tls_key: Annotated[Path | None, Parameter(help="and its key.")] = None,
) -> None:
    """Pick endpoints for an inference gateway, by Envoy's external processing (gRPC), at the file's `listen`."""
    with needs("epp", "epp", " for the endpoint picker"):
        from headway.interop.endpoint_picker import serve
    log_to_stderr()
    serve(config, lambda address: say(f"picking endpoints at {address} until Ctrl-C or SIGTERM"), tls_cert, tls_key)


def key(name: Annotated[str, Parameter(help="Whose it is.")], /, *, as_json: AsJson = False) -> Page | Json:
    """Make an API key: it is shown this once, and only its hash goes into the file that `keys:` names."""
    with needs("gateway", "key"):
        from headway.gateway.api_keys import check_name, new_key
    check_name(name, "NAME")
    secret, digest = new_key()
    if as_json:
        return {"name": name, "key": secret, "sha256": digest}
    say(f"the key of {name}, which is not kept anywhere: {secret}")
    line = yaml.safe_dump({name: {"sha256": digest}}, default_flow_style=None, allow_unicode=True, width=math.inf)
    return Page([], line.rstrip("\n"))


def replay(
    journal: Annotated[Path, Parameter(help="The file that `journal:` named in the gateway's file.")],
    /,
    *,
    as_json: AsJson = False,
) -> Verdict:
    """Feed what a gateway heard to its policies again, and tell whether they decide the same."""
    from msgspec import to_builtins

    with needs("gateway", "replay"):
        from headway.gateway.tape import replay as run
    replayed = run(journal)
    status = 1 if replayed.different else 0
    if as_json:
        return Verdict(to_builtins(replayed), status)
    text = f"{replayed.inputs:,} inputs in {replayed.seconds:,.1f} s: {replayed.decisions:,} decisions, "
    text += "all the same again" if not replayed.different else f"{replayed.different:,} of them different now"
    lines = [f"  request {each.request}: {each.then}, now {each.now}" for each in replayed.differences]
    return Verdict(Page([], "\n".join([text, *lines])), status)
