"""The live fleet in the terminal: its nodes, the policies of its gateways, and a load test's results."""

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
    """Return a table with one row per node and, below it, the reasons why nodes are not ready or are cordoned."""
    if not nodes:
        return Text("No node is registered.")
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
    for place in range(2):  # do not cut names and states in a narrow terminal
        grid.columns[place].min_width = max(len(row[place]) for row in rows)
    return Group(grid, "", facts(notes)) if notes else grid


def policies(fleet: Json) -> RenderableType:
    if fleet["policies"] is None:
        return Text("etcd contains no policies.")
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
        return f"has not answered yet; its last answer was for revision {gateway.get('revision')}"
    return "in force" if gateway.get("accepted") else f"rejected: {gateway.get('error')}"


LATENCIES = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2E": "e2e", "lag": "lag"}
# The rows of `run_facts` that a client can measure.
OURS = ("requests", "throughput", "sessions", "goodput", "SLO met", "cache hits", "balance")
LATE_MS = 5.0  # if the p99 lag of the load generator is larger than this, the report says so


def report(summary: Mapping[str, Any], scenario: Mapping[str, Any]) -> RenderableType:
    client = summary["client"]
    lag = client["lag"]
    rows = [(name, text) for name, text in run_facts(summary, scenario) if name in OURS]
    if not client["told_cached"]:
        rows = [(name, "not reported by the endpoint" if name == "cache hits" else text) for name, text in rows]
    rows += [("not served", f"{times:,} × {reason}") for reason, times in client["reasons"].items()]
    parts: list[RenderableType] = [Text(f"{scenario['name']}, measured by its clients", style="bold"), ""]
    parts += [latency_table({**summary["latency"], "lag": lag}, LATENCIES), "", facts(rows), ""]
    parts.append(Text(_pace(client, lag["p99"])))
    for part in group_tables(summary, False):
        parts += ["", part]
    return Group(*parts)


def _pace(client: Mapping[str, Any], lag_ms: float | None) -> str:
    slowed = "" if client["speed"] == 1 else f", in the workload's time, at {client['speed']:g} times real time"
    text = f"Latencies count from the planned time of a request{slowed}."
    if lag_ms is not None and lag_ms > LATE_MS:
        text += f" This machine was too slow: it sent 1 % of the requests more than {number(lag_ms)} ms late."
    return text
