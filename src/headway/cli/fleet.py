"""`headway fleet`: lists and controls the engines that are registered in etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import App, Parameter

from headway.cli.options import EtcdChoice
from headway.cli.page import AsJson, Page, Verdict, say
from headway.types import Json

if TYPE_CHECKING:
    from headway.gateway.membership.etcd_fleet import EtcdFleet

fleet = App(name="fleet", help="List, cordon and drain the engines registered in etcd.", help_format="plaintext")

Result = TypeVar("Result")
Name = Annotated[str, Parameter(help="Name of the node.")]
Why = Annotated[str, Parameter(help="Reason, for other operators to read.")]


@fleet.command(name="list")
def list_nodes(*, etcd: EtcdChoice, as_json: AsJson = False) -> Page | Json:
    """List every registered or cordoned node and the load that its agent reports."""
    from headway.report.live_tables import listing

    nodes = _do(etcd, lambda fleet: fleet.nodes())
    return {"nodes": nodes} if as_json else Page([listing(nodes)])


@fleet.command
def cordon(name: Name, /, *, etcd: EtcdChoice, why: Why = "") -> None:
    """Stop sending new requests to a node until it is uncordoned."""
    known = _do(etcd, lambda fleet: fleet.cordon(name, why))
    say(f"{name} is cordoned" if known else f"{name} is cordoned; no node of that name is registered yet")


@fleet.command
def uncordon(name: Name, /, *, etcd: EtcdChoice) -> None:
    """Send new requests to a cordoned node again."""
    was = _do(etcd, lambda fleet: fleet.uncordon(name))
    say(f"{name} is no longer cordoned" if was else f"{name} was not cordoned")


@fleet.command
def drain(
    name: Name,
    /,
    *,
    etcd: EtcdChoice,
    why: Why = "",
    wait: Annotated[str, Parameter(help="Wait this long for the engine to finish its requests.")] = "10m",
) -> Verdict:
    """Cordon a node and wait until its engine is idle. The node stays cordoned."""
    etcd.settings()
    from headway.config.units import positive_seconds

    wait_s = positive_seconds(wait, "--wait")
    left = _do(etcd, lambda fleet: fleet.drain(name, why, wait_s))
    say(f"{name} is cordoned, but {left}" if left else f"{name} is drained")
    return Verdict(Page([]), 1 if left else 0)


@fleet.command
def policy(
    file: Annotated[
        Path | None, Parameter(help="File to push: policies by stage, a bundle, a scenario or a gateway's file.")
    ] = None,
    /,
    *,
    etcd: EtcdChoice,
    wait: Annotated[str, Parameter(help="Wait this long for gateways to answer.")] = "5s",
    as_json: AsJson = False,
) -> Verdict:
    """Print the policies in etcd and whether each gateway accepted them; with a file, push it first."""
    etcd.settings()
    from headway.config.units import positive_seconds
    from headway.gateway.membership.etcd_fleet import load_policies
    from headway.report.live_tables import policies

    wait_s = positive_seconds(wait, "--wait")
    pushed = None if file is None else load_policies(file)
    document = _do(etcd, lambda fleet: fleet.policy() if pushed is None else fleet.push(pushed, wait_s))
    replies = document["gateways"].values()
    if pushed is not None and not replies:
        say("no gateway has answered yet")
    refused = pushed is not None and not all(reply.get("accepted") for reply in replies)
    return Verdict(document if as_json else Page([policies(document)]), 1 if refused else 0)


def _do(choice: EtcdChoice, act: Callable[[EtcdFleet], Awaitable[Result]]) -> Result:
    settings = choice.settings()
    from headway.gateway.membership.etcd_client import Etcd
    from headway.gateway.membership.etcd_fleet import EtcdFleet

    async def run() -> Result:
        async with Etcd(settings) as etcd:
            return await act(EtcdFleet(etcd))

    return asyncio.run(run())
