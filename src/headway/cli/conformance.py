"""`headway conformance`: what any router before OpenAI engines should do."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from headway.cli.page import AsJson, Page, Verdict, say
from headway.errors import HeadwayError


def conformance(
    url: Annotated[
        str | None, Parameter(help="A router that is pointed at the engines of --listen; Headway's own if left out.")
    ] = None,
    /,
    *,
    start: Annotated[
        str | None,
        Parameter(help="The command that starts the router, with {engines}, {port} and perhaps {metrics_port} in it."),
    ] = None,
    listen: Annotated[
        str, Parameter(help="Address of the first engine; the others have the next ports. Port 0: any that are free.")
    ] = "127.0.0.1:0",
    engines: Annotated[int, Parameter(help="How many engines.")] = 3,
    model: Annotated[str | None, Parameter(help="The model that is asked for; the engines' own if left out.")] = None,
    metrics: Annotated[str | None, Parameter(help="The router's Prometheus page.")] = None,
    key_env: Annotated[str | None, Parameter(help="An environment variable with the bearer to send.")] = None,
    as_json: AsJson = False,
) -> Verdict:
    """Try a router with emulated engines behind it: affinity, streaming, cancelling, failures, overload.

    Ends with status 1 where a check fails.
    """
    try:
        from headway.conformance.conformance_run import conformance as tried
        from headway.gateway.settings import address
    except ImportError as error:
        raise HeadwayError(f"conformance: {error.name} is not installed; install headway[gateway] for it.") from None
    from headway.conformance.conformance_run import conformance_report as report
    from headway.report.progress import Bar

    if not 2 <= engines <= 16:
        raise HeadwayError(f"--engines: there are 2 to 16, got {engines}.")
    if key_env is not None and not os.environ.get(key_env):
        raise HeadwayError(f"--key-env: the environment variable {key_env} is not set.")
    with Bar(None, "checks") as bar:
        found = tried(
            url,
            start,
            listen=address(listen, "--listen"),
            engines=engines,
            model=model,
            metrics=metrics,
            key=None if key_env is None else os.environ[key_env],
            say=say if url is not None and start is None else lambda _: None,
            progress=bar.update,
        )
    return Verdict(found.summary() if as_json else Page([report(found)]), 0 if found.passed else 1)
