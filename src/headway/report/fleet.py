"""The live fleet in the terminal: its nodes, and the policies that its gateways were given."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from headway.config.documents import yaml_text
from headway.report.terminal import GAP, facts, number, percent, table
from headway.types import Json


def listing(nodes: Sequence[Json]) -> RenderableType:
    """One row a node; below it why one is not ready or cordoned."""
    if not nodes:
        return Text("no node is registered")
    made = table("node", "state", "role", "pool", "running", "queued", "KV", "busy", "watts")
    for column in made.columns[1:4]:
        column.justify = "left"
    said = []
    for one in nodes:
        signals = one.get("signals", {})
        kv = signals.get("kv_used"), signals.get("kv_blocks")
        made.add_row(
            Text(one["name"]),
            _state(one),
            Text(str(one.get("role", GAP))),
            Text(str(one.get("pool", GAP))),
            number(signals.get("running"), 0),
            number(signals.get("queued"), 0),
            percent(kv[0] / kv[1] if kv[0] is not None and kv[1] else None),
            percent(signals.get("busy")),
            number(signals.get("watts"), 0),
        )
        why = [one.get("error", ""), one.get("why", ""), str(one.get("cordon", {}).get("why", ""))]
        said += [(one["name"], text) for text in why if text]
    return Group(made, "", facts(said)) if said else made


def policies(found: Json) -> RenderableType:
    if found["policies"] is None:
        return Text("no policies stand in etcd")
    parts: list[RenderableType] = [Text(yaml_text(found["policies"]).rstrip()), ""]
    rows = [(name, _verdict(one, found["revision"])) for name, one in found["gateways"].items()]
    return Group(*parts, facts([("revision", str(found["revision"])), *rows]))


def _state(one: Json) -> str:
    if not one["registered"]:
        return "cordoned, not registered"
    words = ["unreadable" if "error" in one else "ready" if one["ready"] else "not ready"]
    return ", ".join([*words, *(["cordoned"] if one["cordoned"] else [])])


def _verdict(one: Json, revision: int) -> str:
    if one.get("revision") != revision:
        return f"has not answered yet; its last word is on revision {one.get('revision')}"
    return "in force" if one.get("accepted") else f"refused: {one.get('error')}"
