"""`headway deploy`: policies to a live gateway."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headway.cli.options import EtcdChoice, flag, needs
from headway.cli.page import AsJson, Page, Verdict, say
from headway.errors import HeadwayError
from headway.types import Json

if TYPE_CHECKING:
    from headway.gateway.deploy import Target


@Parameter(name="*")
@dataclass(frozen=True)
class Etcd(EtcdChoice):
    """How etcd is reached, where that is where they go."""

    etcd: Annotated[
        str | None, Parameter(help="Instead of a file: etcd's endpoints, separated by commas, for all gateways there.")
    ] = None  # type: ignore[assignment]


NO_ETCD = Etcd()


def deploy(
    bundle: Annotated[Path, Parameter(help="A bundle, or a source in the policy language.")],
    /,
    *,
    to: Annotated[
        Path | None, Parameter(help="The gateway's file. It is written anew, and the gateway watches it.")
    ] = None,
    admin: Annotated[
        str | None,
        Parameter(help="The gateway's admin API, as in http://127.0.0.1:8001; asked whether it is in force."),
    ] = None,
    key_env: Annotated[str, Parameter(help="The environment variable with the admin API's key.")] = "HEADWAY_ADMIN_KEY",
    etcd: Etcd = NO_ETCD,
    canary: Annotated[
        str | None, Parameter(help="Let it decide on this share of sessions alone, as in 5%, beside those in force.")
    ] = None,
    dry_run: Annotated[bool, flag("Show what would change, and change nothing.")] = False,
    yes: Annotated[bool, flag("Do not ask.", "--yes", "-y")] = False,
    wait: Annotated[str, Parameter(help="How long the gateway may take.")] = "30s",
    as_json: AsJson = False,
) -> Page | Json | Verdict:
    """Check policies, show how they differ from those of a live gateway, swap them and wait until they are in force."""
    with needs("gateway", "deploy"):
        from headway.config.units import positive_seconds
        from headway.gateway.deploy import read_bundle
    wait_s, share = positive_seconds(wait, "--wait"), None if canary is None else share_of(canary)
    change = (target := target_of(to, admin, key_env, etcd)).change(read_bundle(bundle), share)
    document: Json = {"where": change.where, "diff": change.diff, "deployed": False, "said": None}
    if not change.diff:
        document["said"] = "nothing would change" if dry_run else "nothing changes"
    elif not dry_run and (yes or confirm(change.diff)):
        document |= {"deployed": True, "said": target.carry_out(change, wait_s)}
    if as_json:
        return document
    diff = change.diff.rstrip("\n") if yes or dry_run else ""  # the question has shown it already
    return Page([], "\n".join(filter(None, (diff, document["said"]))) or None)


def target_of(to: Path | None, admin: str | None, key_env: str, etcd: Etcd) -> Target:
    from headway.gateway.deploy import AdminApi, EtcdTarget, FileTarget

    if etcd.etcd is not None:
        if to is not None or admin is not None:
            raise HeadwayError("--etcd: is for all gateways that read from there; leave --to and --admin out.")
        return EtcdTarget(etcd.settings())
    api = None if admin is None else AdminApi(admin, key_env)
    if to is not None:
        return FileTarget(to, api)
    if api is None:
        raise HeadwayError("deploy: say where to: --to gateway.yaml, --admin URL or --etcd ENDPOINTS.")
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


def confirm(diff: str) -> bool:
    if not sys.stdin.isatty():
        raise HeadwayError("--yes: there is nobody to be asked; say --yes to deploy, or --dry-run to look.")
    say(diff)
    print("Deploy this? [y/N] ", end="", file=sys.stderr, flush=True)  # stdout is for what came of it
    return sys.stdin.readline().strip().lower() in ("y", "yes")
