"""Operations through etcd: list nodes, cordon and drain them, and push policies to every gateway."""

import asyncio
import time
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET

from headway.config.documents import beside, parse_yaml, read_yaml
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.live_policies import read_policies, refuse_files
from headway.gateway.membership.etcd_client import Etcd, Item
from headway.gateway.membership.node import Node, check_id, check_size
from headway.policies.bundle import Bundle, is_bundle
from headway.types import Json

LOOK_S: Final = 0.25  # pause between two reads of etcd while waiting for a change
QUIET: Final = 2  # number of idle heartbeats to wait for, because a request may still be in transit at the first one


class EtcdFleet:
    def __init__(self, etcd: Etcd) -> None:
        self.etcd = etcd
        self.prefix = etcd.settings.prefix

    async def nodes(self) -> list[Json]:
        """List the nodes that are registered or cordoned, by name."""
        snapshot = await self.etcd.range(f"{self.prefix}/")
        nodes, cordons = (snapshot.under(f"{self.prefix}/{kind}/") for kind in ("nodes", "cordon"))
        return [_row(name, nodes.get(name), cordons.get(name)) for name in sorted({*nodes, *cordons})]

    async def cordon(self, name: str, why: str = "", drain: bool = False) -> bool:
        """Cordon a node, or an engine of a gateway's file. Return whether a node of that name is registered."""
        check_id(name, "NAME")
        document = {**({"why": why} if why else {}), **({"drain": True} if drain else {})}
        await self.etcd.put(f"{self.prefix}/cordon/{name}", msgspec.json.encode(document))
        return await self.etcd.get(f"{self.prefix}/nodes/{name}") is not None

    async def uncordon(self, name: str) -> bool:
        """Remove the cordon of a node. Return whether the node was cordoned."""
        return await self.etcd.delete(f"{self.prefix}/cordon/{check_id(name, 'NAME')}")

    async def drain(self, name: str, why: str, wait_s: float) -> str:
        """Cordon a node and wait until its engine is idle. Return "" if the engine is idle, otherwise the reason why it
        is not."""
        if not await self.cordon(name, why, drain=True):
            return "no agent reports its load"
        until = time.monotonic() + wait_s
        revision, quiet, left = 0, 0, "its agent sent no heartbeat"
        while quiet < QUIET:
            item = await self.etcd.get(f"{self.prefix}/nodes/{name}")
            if item is None:
                return ""  # the node has left
            if revision and item.revision != revision:
                signals = Node.read(item.value, item.key).signals
                if "running" not in signals:
                    return "its agent does not know the engine's load"
                count = round(signals["running"] + signals.get("queued", 0))
                quiet = quiet + 1 if not count else 0
                left = f"{count} requests are left" if count else left
            revision = item.revision
            if quiet < QUIET and time.monotonic() > until:
                return left
            await asyncio.sleep(LOOK_S)
        return ""

    async def policy(self) -> Json:
        """Return the policies in etcd, and whether each gateway accepted them."""
        key = f"{self.prefix}/routing/policy"
        item = await self.etcd.get(key)
        answers = (await self.etcd.range(f"{key}-status/")).under(f"{key}-status/")
        return {
            "revision": None if item is None else item.revision,
            "policies": None if item is None else read_policy(item.value, key),
            "gateways": {name: msgspec.json.decode(answer.value) for name, answer in sorted(answers.items())},
        }

    async def push(self, policies: Json, wait_s: float) -> Json:
        """Write policies to etcd, and wait until the known gateways have accepted or refused them. Return the state as
        `policy` does."""
        document = msgspec.json.encode(policies)
        check_size(document, "policies")
        revision, _ = await self.etcd.put(f"{self.prefix}/routing/policy", document)
        until = time.monotonic() + wait_s
        while True:
            status = await self.policy()
            late = [answer for answer in status["gateways"].values() if answer.get("revision", 0) < revision]
            if (status["gateways"] and not late) or time.monotonic() >= until:
                return status
            await asyncio.sleep(LOOK_S)


def _row(name: str, node: Item | None, cordon: Item | None) -> Json:
    row: Json = {"name": name, "registered": node is not None, "cordoned": cordon is not None}
    if cordon is not None:
        try:
            row["cordon"] = msgspec.json.decode(cordon.value)
        except msgspec.MsgspecError:
            row["cordon"] = {"why": cordon.value.decode(errors="replace")}
    if node is not None:
        try:
            fields = msgspec.structs.asdict(Node.read(node.value, name))
        except HeadwayError as error:
            return {**row, "error": str(error)}
        known = {key: value for key, value in fields.items() if value is not UNSET}
        row |= {"role": "both", "pool": "default", **known}
    return row


def load_policies(file: Path) -> Json:
    """Read and check the policies of a bundle, a scenario, a gateway's file or a mapping of stages."""
    data = read_yaml(file)
    if not isinstance(data, dict):
        raise HeadwayError(f"{file}: expected policies by stage, or a bundle, got {shown(data)}.")
    policies: Any = data.get("policies", data)
    if "format" in data:
        policies = Bundle.read(str(file)).policies
    elif isinstance(policies, str):
        policies = Bundle.read(beside(policies, file)).policies
    try:
        read_policies(policies)
        read_policy(msgspec.json.encode(policies), "policies")
    except HeadwayError as error:
        raise HeadwayError(f"{file}: {error}") from None
    return dict(policies)


def read_policy(value: bytes, where: str) -> dict[str, Any]:
    """Read a `policies:` block or a bundle, in JSON or YAML. Raise if it names a file."""
    check_size(value, where)
    try:
        document = msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        document = parse_yaml(value.decode(errors="replace"), where)
    if not isinstance(document, dict):
        raise HeadwayError(f"{where}: expected a mapping of stages to policies, or a bundle, got {shown(document)}.")
    refuse_files(document, where, "etcd")
    return dict(Bundle.read(document).policies) if is_bundle(document) else document
