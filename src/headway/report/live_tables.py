"""The live fleet in the terminal: its nodes, and the policies that its gateways were given."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from headway.config.documents import yaml_text
from headway.report.number_format import GAP, count, number, percent
from headway.report.run import group_tables, run_facts
from headway.report.terminal import facts, latency_table, table
from headway.types import Json


def listing(nodes: Sequence[Json]) -> RenderableType:
    """One row a node; below it why one is not ready or cordoned."""
    if not nodes:
        return Text("no node is registered")
    rows, notes = [], []
    for node in nodes:
        signals = node.get("signals", {})
        used, blocks = signals.get("kv_used"), signals.get("kv_blocks")
        rows.append(
            [
                node["name"],
                _state(node),
                str(node.get("role", GAP)),
                str(node.get("pool", GAP)),
                count(signals.get("running")),
                count(signals.get("queued")),
                percent(used / blocks if used is not None and blocks else None),
                percent(signals.get("busy")),
                count(signals.get("watts")),
            ]
        )
        reasons = [node.get("error", ""), node.get("why", ""), str(node.get("cordon", {}).get("why", ""))]
        notes += [(node["name"], reason) for reason in reasons if reason]
    grid = table("node", "state", "role", "pool", "running", "queued", "KV", "busy", "watts", rows=rows, left=range(4))
    return Group(grid, "", facts(notes)) if notes else grid


def policies(fleet: Json) -> RenderableType:
    if fleet["policies"] is None:
        return Text("no policies stand in etcd")
    parts: list[RenderableType] = [Text(yaml_text(fleet["policies"]).rstrip()), ""]
    rows = [(name, _verdict(gateway, fleet["revision"])) for name, gateway in fleet["gateways"].items()]
    return Group(*parts, facts([("revision", str(fleet["revision"])), *rows]))


def _state(node: Json) -> str:
    if not node["registered"]:
        return "cordoned, not registered"
    state = "unreadable" if "error" in node else "ready" if node["ready"] else "not ready"
    return f"{state}, cordoned" if node["cordoned"] else state


def _verdict(gateway: Json, revision: int) -> str:
    if gateway.get("revision") != revision:
        return f"has not answered yet; its last word is on revision {gateway.get('revision')}"
    return "in force" if gateway.get("accepted") else f"refused: {gateway.get('error')}"


# What clients of an endpoint saw, as a page for people.

LATENCIES = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2E": "e2e", "lag": "lag"}
OURS = ("requests", "throughput", "sessions", "goodput", "SLO met", "cache hits", "balance")  # a client knows no more
LATE_MS = 5.0  # a load generator that is later than that says so


def report(summary: Mapping[str, Any], scenario: Mapping[str, Any]) -> RenderableType:
    client = summary["client"]
    lag = client["lag"]
    rows = [(name, text) for name, text in run_facts(summary, scenario) if name in OURS]
    if not client["told_cached"]:
        rows = [(name, "the endpoint does not tell" if name == "cache hits" else text) for name, text in rows]
    rows += [("not served", f"{times:,} × {reason}") for reason, times in client["reasons"].items()]
    parts: list[RenderableType] = [Text(f"{scenario['name']}, as its clients saw it", style="bold"), ""]
    parts += [latency_table({**summary["latency"], "lag": lag}, LATENCIES), "", facts(rows), ""]
    parts.append(Text(_pace(client, lag["p99"])))
    for part in group_tables(summary, False):
        parts += ["", part]
    return Group(*parts)


def _pace(client: Mapping[str, Any], lag_ms: float | None) -> str:
    slowed = "" if client["speed"] == 1 else f", times are the workload's at {client['speed']:g} of the wall's speed"
    text = f"Latencies count from when a request was to be sent{slowed}."
    if lag_ms is not None and lag_ms > LATE_MS:
        text += f" This machine was late: 1 % of the requests were sent more than {number(lag_ms)} ms after that."
    return text
