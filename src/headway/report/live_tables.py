"""The live fleet in the terminal: its nodes, and the policies that its gateways were given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from headway.config.documents import yaml_text
from headway.report.run import groups, run_facts
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


# What clients of an endpoint saw, as a page for people.

LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2e"))
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
OURS = ("requests", "throughput", "sessions", "goodput", "SLO met", "cache hits", "balance")  # a client knows no more
LATE_MS = 5.0  # a load generator that is later than that says so


def report(summary: Mapping[str, Any], scenario: Mapping[str, Any]) -> RenderableType:
    latencies = table("ms", *STATISTICS)
    for name, key in LATENCIES:
        values = summary["latency"][key]
        latencies.add_row(Text(name), *(number(values[statistic]) for statistic in STATISTICS))
    client = summary["client"]
    lag = client["lag"]
    latencies.add_row(Text("lag"), *(number(lag[statistic]) for statistic in STATISTICS))
    rows = [(name, said) for name, said in run_facts(summary, scenario) if name in OURS]
    if not client["told_cached"]:
        rows = [(name, "the endpoint does not tell" if name == "cache hits" else said) for name, said in rows]
    rows += [("not served", f"{count:,} × {reason}") for reason, count in client["reasons"].items()]
    parts: list[RenderableType] = [Text(f"{scenario['name']}, as its clients saw it", style="bold"), ""]
    parts += [latencies, "", facts(rows), ""]
    parts.append(Text(_pace(client, lag["p99"])))
    for name in ("tenants", "classes", "kinds", "models"):
        if name in summary:
            parts += ["", groups(name, summary[name], False)]
    return Group(*parts)


def _pace(client: Mapping[str, Any], lag_ms: float | None) -> str:
    slowed = "" if client["speed"] == 1 else f", times are the workload's at {client['speed']:g} of the wall's speed"
    said = f"Latencies count from when a request was to be sent{slowed}."
    if lag_ms is not None and lag_ms > LATE_MS:
        said += f" This machine was late: 1 % of the requests were sent more than {number(lag_ms)} ms after that."
    return said
