"""What an operator does through etcd: look at the nodes, cordon, drain, and push policies to every gateway; and which
policies a gateway takes from there."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET

from headway.config.documents import beside, parse_yaml, read_yaml
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.live_policies import read_policies
from headway.gateway.membership.etcd_client import Etcd
from headway.gateway.membership.node import Node, check_id
from headway.policies import registry
from headway.policies.bundle import Bundle, is_bundle
from headway.types import Json

LOOK_S = 0.25  # how often it is looked whether something has happened
QUIET = 2  # heartbeats without a request, after which a node is drained: one may have been on its way at the first
LARGEST: Final = 256 * 1024


class EtcdFleet:
    def __init__(self, etcd: Etcd) -> None:
        self.etcd = etcd
        self.prefix = etcd.settings.prefix

    async def nodes(self) -> list[Json]:
        """Every node that is registered or cordoned, by name."""
        found = await self.etcd.range(f"{self.prefix}/")
        nodes, cordons = ({}, {})  # type: tuple[dict[str, bytes], dict[str, bytes]]
        for key, item in found.items.items():
            kind, _, name = key.removeprefix(f"{self.prefix}/").partition("/")
            if kind in ("nodes", "cordon"):
                (nodes if kind == "nodes" else cordons)[name] = item.value
        return [_row(name, nodes.get(name), cordons.get(name)) for name in sorted({*nodes, *cordons})]

    async def cordon(self, name: str, why: str = "", drain: bool = False) -> bool:
        """Whether a node of that name is registered; a name of a gateway's file can be cordoned all the same."""
        check_id(name, "NAME")
        document = {"why": why} if why else {}
        await self.etcd.put(
            f"{self.prefix}/cordon/{name}", msgspec.json.encode({**document, **({"drain": True} if drain else {})})
        )
        return await self.etcd.get(f"{self.prefix}/nodes/{name}") is not None

    async def uncordon(self, name: str) -> bool:
        """Whether it was cordoned."""
        return await self.etcd.delete(f"{self.prefix}/cordon/{check_id(name, 'NAME')}")

    async def drain(self, name: str, why: str, wait_s: float) -> str:
        """Cordon it and wait until its engine has nothing left to do. What stands in the way; nothing where it has."""
        if not await self.cordon(name, why, drain=True):
            return "no agent tells what it still has to do"
        until = time.monotonic() + wait_s
        seen, quiet, left = 0, 0, "no heartbeat came"
        while quiet < QUIET:
            item = await self.etcd.get(f"{self.prefix}/nodes/{name}")
            if item is None:
                return ""  # it has gone
            if seen and item.revision != seen:
                signals = Node.read(item.value, item.key).signals
                if "running" not in signals:
                    return "its agent does not know what the engine has to do"
                count = round(signals["running"] + signals.get("queued", 0))
                quiet = quiet + 1 if not count else 0
                left = f"{count} requests are left" if count else left
            seen = item.revision
            if quiet < QUIET and time.monotonic() > until:
                return left
            await asyncio.sleep(LOOK_S)
        return ""

    async def policy(self) -> Json:
        """The policies that stand in etcd, and what each gateway made of them."""
        key = f"{self.prefix}/routing/policy"
        item = await self.etcd.get(key)
        status = await self.etcd.range(f"{key}-status/")
        return {
            "revision": None if item is None else item.revision,
            "policies": None if item is None else read_policy(item.value, key),
            "gateways": {
                name.removeprefix(f"{key}-status/"): msgspec.json.decode(one.value)
                for name, one in sorted(status.items.items())
            },
        }

    async def push(self, policies: Json, wait_s: float) -> Json:
        """Put them where gateways read them, and wait for those that answered before; what each made of them."""
        document = msgspec.json.encode(policies)
        if len(document) > LARGEST:
            raise HeadwayError(f"policies: have {len(document):,} bytes; {LARGEST:,} are the most.")
        revision, _ = await self.etcd.put(f"{self.prefix}/routing/policy", document)
        until = time.monotonic() + wait_s
        while True:
            found = await self.policy()
            late = [one for one in found["gateways"].values() if one.get("revision", 0) < revision]
            if (found["gateways"] and not late) or time.monotonic() >= until:
                return found
            await asyncio.sleep(LOOK_S)


def _row(name: str, node: bytes | None, cordon: bytes | None) -> Json:
    found: Json = {"name": name, "registered": node is not None, "cordoned": cordon is not None}
    if cordon is not None:
        try:
            found["cordon"] = msgspec.json.decode(cordon)
        except msgspec.MsgspecError:
            found["cordon"] = {"why": cordon.decode(errors="replace")}
    if node is not None:
        try:
            read = Node.read(node, name)
        except HeadwayError as error:
            return {**found, "error": str(error)}
        known = {key: value for key, value in msgspec.structs.asdict(read).items() if value is not UNSET}
        found |= {"role": "both", "pool": "default", **known}
    return found


def load_policies(file: Path) -> Json:
    """Of a bundle, a scenario, a gateway's file, or a mapping of stages alone; checked as a gateway would."""
    data = read_yaml(file)
    if not isinstance(data, dict):
        raise HeadwayError(f"{file}: expected policies by stage, or a bundle, got {shown(data)}.")
    given: Any = data.get("policies", data)
    if "format" in data:
        given = Bundle.read(str(file)).policies
    elif isinstance(given, str):
        given = Bundle.read(beside(given, file)).policies
    try:
        read_policies(given)
        read_policy(msgspec.json.encode(given), "policies")
    except HeadwayError as error:
        raise HeadwayError(f"{file}: {error}") from None
    return dict(given)


def read_policy(value: bytes, where: str) -> dict[str, Any]:
    """A `policies:` block or a bundle, in JSON or YAML. Policy files are not run:
    write access to etcd must not grant code execution on a gateway's machine."""
    if len(value) > LARGEST:
        raise HeadwayError(f"{where}: has {len(value):,} bytes; {LARGEST:,} are the most.")
    try:
        found = msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = parse_yaml(value.decode(errors="replace"), where)
    if not isinstance(found, dict):
        raise HeadwayError(f"{where}: expected a mapping of stages to policies, or a bundle, got {shown(found)}.")
    _refuse_files(found, where)
    return dict(Bundle.read(found).policies) if is_bundle(found) else found


def _refuse_files(document: Any, where: str) -> None:
    waiting = [(document, "", where)]
    while waiting:
        value, key, place = waiting.pop()
        if isinstance(value, dict):
            waiting += [(item, str(name), f"{place}.{name}") for name, item in value.items()]
            waiting += [(name, "", place) for name in value]
        elif isinstance(value, list):
            waiting += [(item, "", place) for item in value]
        elif _names_file(value, key):
            raise HeadwayError(
                f"{place}: names a file ({shown(value)}), and none is read for etcd; write the policy's text under "
                "`source`, or name one that the gateway has."
            )


def _names_file(value: Any, key: str) -> bool:
    if not isinstance(value, str) or key == "source":  # which is a policy's text
        return False
    return key in ("path", "file", "policies") or registry.is_file(value) or value.endswith(".py")
