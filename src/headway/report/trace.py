"""What `headway trace inspect` prints: a trace's shape and its reuse, with small plots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.report.plots import bar, columns
from headway.report.terminal import facts, number, percent, table

SPREAD = ("mean", "p50", "p90", "p99", "min", "max")


def report(found: Mapping[str, Any], name: str) -> RenderableType:
    title = f"{name}: {number(found['requests'], 0)} requests in {found['format']} format"
    parts: list[RenderableType] = [Text(title, style="bold"), "", lengths(found), "", *arrivals(found)]
    if found["sessions"] is not None:
        parts.extend(("", facts(content(found)), "", *reuse(found["reuse"])))
    if found.get("note"):
        parts.extend(("", Text(found["note"])))
    return Group(*parts)


def lengths(found: Mapping[str, Any]) -> Table:
    made = table("tokens", *SPREAD, "by powers of two")
    for label, key in (("prompt", "prompt_tokens"), ("output", "output_tokens")):
        values = found[key]
        counts = [count for _, count in values["histogram"]]
        low, high = values["histogram"][0][0], values["histogram"][-1][0]
        plot = f"≤{number(low, 0)} {columns(counts)} ≤{number(high, 0)}"
        made.add_row(label, *(number(values[statistic], 0) for statistic in SPREAD), plot)
    return made


def arrivals(trace: Mapping[str, Any]) -> list[RenderableType]:
    found = trace["arrivals"]
    rates = found["rate_over_time_per_s"]
    idc = ", ".join(f"{number(value, 2)} over {window}" for window, value in found["idc"].items() if value is not None)
    rows = [
        ("rate", f"{number(trace['rate_per_s'], 2)} requests/s over {number(trace['span_s'])} s"),
        ("gaps", f"coefficient of variation {number(found['cv'], 3)} (0 even, 1 Poisson)"),
        ("dispersion", f"{idc or 'too short to say'} (1 Poisson)"),
        ("peak to mean", f"{number(found['peak_to_mean_60s'], 2)} at a minute"),
    ]
    parts: list[RenderableType] = [facts(rows)]
    if rates:
        parts.extend(
            ("", Text(f" arrivals over time, up to {number(max(rates), 2)} a second"), Text(f" {columns(rates)}"))
        )
    return parts


def content(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    blocks, sessions = found["blocks"], found["sessions"]
    return [
        (
            "blocks",
            f"{number(blocks['referenced'], 0)} of {blocks['tokens']} tokens, {number(blocks['distinct'], 0)} distinct",
        ),
        (
            "sessions",
            f"{number(sessions['count'], 0)} (as the blocks tell), {number(sessions['turns']['mean'], 2)} turns "
            f"on average, {percent(sessions['requests_in_multi_turn_share'])} of requests in several turns",
        ),
    ]


def reuse(rows: list[Mapping[str, Any]]) -> list[RenderableType]:
    """Share of blocks that LRU caches of each size would hit in order of arrival, under round robin."""
    made = table("caches", "blocks each", "block hits", "")
    made.columns[-1].justify = "left"
    for row in rows:
        capacity = "unlimited" if row["capacity"] is None else number(row["capacity"], 0)
        ratio = row["block_hit_ratio"]
        made.add_row(str(row["instances"]), capacity, f"{100 * ratio:.2f} %", bar(ratio))
    return [Text(" What LRU caches under round robin would hit, in order of arrival:"), made]
