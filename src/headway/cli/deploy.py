"""`headway deploy`: puts policies into force at a live gateway."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headway.cli.options import EtcdChoice, flag, needs
from headway.cli.page import AsJson, Page, Verdict, confirm, say
from headway.errors import HeadwayError
from headway.types import Json

if TYPE_CHECKING:
    from headway.gateway.deploy import Target


@Parameter(name="*")
@dataclass(frozen=True)
class Etcd(EtcdChoice):
    """How to reach etcd, if policies are deployed through it."""

    etcd: Annotated[
        str | None, Parameter(help="Endpoints of etcd, separated by commas. Deploys to all gateways that use it.")
    ] = None  # type: ignore[assignment]


NO_ETCD = Etcd()


def deploy(
    bundle: Annotated[Path, Parameter(help="A policy bundle (.yaml) or a source in the policy language.")],
    /,
    *,
    to: Annotated[
        Path | None, Parameter(help="The gateway's file. Headway rewrites it; the gateway notices and reloads.")
    ] = None,
    admin: Annotated[
        str | None,
        Parameter(help="URL of the gateway's admin API, such as http://127.0.0.1:8001."),
    ] = None,
    key_env: Annotated[
        str, Parameter(help="Environment variable that holds the admin API's key.")
    ] = "HEADWAY_ADMIN_KEY",
    etcd: Etcd = NO_ETCD,
    canary: Annotated[
        str | None, Parameter(help="Apply the new policies to this share of sessions only, such as 5%.")
    ] = None,
    dry_run: Annotated[bool, flag("Show what would change, without changing it.")] = False,
    yes: Annotated[bool, flag("Deploy without asking.", "--yes", "-y")] = False,
    wait: Annotated[str, Parameter(help="Wait this long for the gateway to confirm.")] = "30s",
    as_json: AsJson = False,
) -> Page | Json | Verdict:
    """Put policies into force at a live gateway.

    Checks the policies, shows how they differ from those in force, asks, swaps them, and waits for confirmation.
    """
    with needs("gateway", "deploy"):
        from headway.config.units import positive_seconds
        from headway.gateway.deploy import read_bundle
    wait_s, share = positive_seconds(wait, "--wait"), None if canary is None else share_of(canary)
    change = (target := target_of(to, admin, key_env, etcd)).change(read_bundle(bundle), share)
    document: Json = {"where": change.where, "diff": change.diff, "deployed": False, "said": None}
    if not change.diff:
        document["said"] = "nothing would change" if dry_run else "nothing changes"
    elif not dry_run and (yes or agrees(change.diff)):
        document |= {"deployed": True, "said": target.carry_out(change, wait_s)}
    if as_json:
        return document
    diff = change.diff.rstrip("\n") if yes or dry_run else ""  # otherwise `agrees` has already printed the diff
    return Page([], "\n".join(filter(None, (diff, document["said"]))) or None)


def target_of(to: Path | None, admin: str | None, key_env: str, etcd: Etcd) -> Target:
    from headway.gateway.deploy import AdminApi, EtcdTarget, FileTarget

    if etcd.etcd is not None:
        if to is not None or admin is not None:
            raise HeadwayError("--etcd: cannot be combined with --to or --admin, because it deploys to every gateway.")
        return EtcdTarget(etcd.settings())
    api = None if admin is None else AdminApi(admin, key_env)
    if to is not None:
        return FileTarget(to, api)
    if api is None:
        raise HeadwayError("deploy: no target. Pass --to gateway.yaml, --admin URL or --etcd ENDPOINTS.")
    return api


def share_of(text: str) -> float:
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100 if "%" in text else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise HeadwayError(f"--canary: expected a share such as 5% or 0.05, got {text!r}.")
    return share


def agrees(diff: str) -> bool:
    if sys.stdin.isatty():
        say(diff)
    return confirm("Deploy this?", "--yes to deploy, or --dry-run to see the difference")
