"""What clients of an endpoint saw, as a page for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from headway.report.run import groups, run_facts
from headway.report.terminal import facts, number, table

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
