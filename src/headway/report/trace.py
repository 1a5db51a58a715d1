"""What `headway trace inspect` prints: a trace's shape and its reuse, with small plots."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.report.plots import bar, columns
from headway.report.terminal import GAP, facts, number, percent, table

WINDOWS = 10  # fewer counts than this have no variance worth printing
SPREAD = ("mean", "p50", "p90", "p99", "min", "max")


def report(found: Mapping[str, Any], name: str) -> RenderableType:
    title = f"{name}: {number(found['requests'], 0)} requests in {found['format']} format"
    parts: list[RenderableType] = [Text(title, style="bold"), "", lengths(found), "", *arrivals(found)]
    if found["sessions"] is not None:
        parts.extend(("", facts(content(found)), "", *reuse(found["reuse"], found["blocks"]["tokens"])))
    if found.get("note"):
        parts.extend(("", Text(found["note"])))
    return Group(*parts, "", Text("To replay it, in a scenario:"))


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
    idc = ", ".join(f"{_dispersion(window, value, trace['span_s'])}" for window, value in found["idc"].items())
    rows = [
        ("rate", f"{number(trace['rate_per_s'], 2)} requests/s over {number(trace['span_s'])} s"),
        ("gaps", f"coefficient of variation {number(found['cv'], 3)} (0 even, 1 Poisson)"),
        ("dispersion", f"{idc} (variance to mean of the counts, 1 Poisson)"),
        ("peak to mean", f"{number(found['peak_to_mean_60s'], 2)} at a minute"),
    ]
    parts: list[RenderableType] = [facts(rows)]
    if rates:
        parts.extend(
            ("", Text(f" arrivals over time, up to {number(max(rates), 2)} a second"), Text(f" {columns(rates)}"))
        )
    return parts


def _dispersion(window: str, value: float | None, span_s: float) -> str:
    """A variance of a few counts says nothing."""
    enough = span_s >= WINDOWS * float(window.removesuffix("s"))
    return f"{number(value, 2) if enough else GAP} over {window}"


def content(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    blocks, sessions = found["blocks"], found["sessions"]
    return [
        (
            "blocks",
            f"{number(blocks['referenced'], 0)} of {blocks['tokens']} tokens, {number(blocks['distinct'], 0)} distinct",
        ),
        (
            "chains",
            f"{number(sessions['count'], 0)} of requests that continue an earlier one's blocks (the format has no "
            f"session ids): {number(sessions['turns']['mean'], 2)} requests each on average, "
            f"{percent(sessions['requests_in_multi_turn_share'])} of requests in chains of several",
        ),
    ]


def reuse(rows: list[Mapping[str, Any]], block: int) -> list[RenderableType]:
    """Share of blocks that LRU caches of each size would hit in order of arrival, under round robin."""
    made = table("caches", "blocks each", "tokens each", "block hits", "")
    made.columns[-1].justify = "left"
    for row in rows:
        capacity = row["capacity"]
        sizes = ("unlimited", "") if capacity is None else (number(capacity, 0), number(capacity * block, 0))
        ratio = row["block_hit_ratio"]
        made.add_row(str(row["instances"]), *sizes, f"{100 * ratio:.2f} %", bar(ratio, 24))
    return [
        Text(" What LRU caches under round robin would hit, in order of arrival;"),
        Text(f" a cache's capacity counts the trace's own blocks, of {block} tokens each:"),
        made,
    ]


def snippet(found: Mapping[str, Any], path: str) -> str:
    """The section of a scenario that replays this trace."""
    where = path if re.fullmatch(r"[\w./-]+", path) else json.dumps(path)
    return f"workload: {{trace: {{format: {found['format']}, path: {where}}}}}"
