"""What `headway trace inspect` prints: a trace's shape and its reuse, with small plots."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.report.plots import bar, columns
from headway.report.terminal import GAP, facts, number, percent, table

WINDOWS = 10  # fewer counts than this have no variance worth printing
GROUPS = (("tenant", "tenants"), ("kind", "kinds"), ("model", "models"))
MOST = 12  # rows of a table of names
NAME_WIDTH = 28
SPREAD = ("mean", "p50", "p90", "p99", "min", "max")


def report(found: Mapping[str, Any], name: str) -> RenderableType:
    title = f"{name}: {number(found['requests'], 0)} requests in {found['format']} format"
    parts: list[RenderableType] = [Text(title, style="bold"), "", lengths(found), "", *arrivals(found)]
    for label, key in GROUPS:
        if len(found[key]) > 1:
            parts.extend(("", groups(found[key], label)))
    rows = content(found)
    if rows:
        parts.extend(("", facts(rows)))
    if found["blocks"] is not None:
        parts.extend(("", *reuse(found)))
    for note in found["notes"]:
        parts.extend(("", Text(note)))
    return Group(*parts, "", Text("To replay it, in a scenario:"))


def lengths(found: Mapping[str, Any]) -> RenderableType:
    made = table("tokens", *SPREAD)
    plots = []
    for label, key in (("prompt", "prompt_tokens"), ("output", "output_tokens")):
        values = found[key]
        counts = [count for _, count in values["histogram"]]
        low, high = values["histogram"][0][0], values["histogram"][-1][0]
        plots.append((label, f"≤{number(low, 0)} {columns(counts)} ≤{number(high, 0)}, by powers of two"))
        made.add_row(label, *(number(values[statistic], 0) for statistic in SPREAD))
    return Group(made, "", facts(plots))


def arrivals(trace: Mapping[str, Any]) -> list[RenderableType]:
    found = trace["arrivals"]
    if found is None:
        if trace.get("clock") == "trace":
            why = "Later turns have no times of their own, they wait for answers"
        else:
            why = "No clock goes through the whole trace"
        return [Text(f" {why}: no rate and no burstiness to report.")]
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


def groups(rows: Sequence[Mapping[str, Any]], label: str) -> Table:
    """What each tenant, kind or model sent, most requests first."""
    made = table(label, "requests", "share", "prompt mean", "p99", "output mean", "p99")
    names = made.columns[0]
    names.no_wrap, names.overflow, names.max_width = False, "fold", NAME_WIDTH
    for row in rows[:MOST]:
        prompt, output = row["prompt_tokens"], row["output_tokens"]
        figures = (prompt["mean"], prompt["p99"], output["mean"], output["p99"])
        name = "(not said)" if row["name"] is None else row["name"] or "(no name)"
        made.add_row(
            Text(name), number(row["requests"], 0), percent(row["share"]), *(number(value, 0) for value in figures)
        )
    if len(rows) > MOST:
        rest = sum(row["requests"] for row in rows[MOST:])
        share = rest / sum(row["requests"] for row in rows)
        made.add_row(Text(f"{len(rows) - MOST:,} more"), number(rest, 0), percent(share))
    return made


def content(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    blocks, sessions, ideal = found["blocks"], found["sessions"], found["ideal_reuse"]
    rows = []
    if blocks is not None:
        sizes = f"{number(blocks['referenced'], 0)} of {blocks['tokens']} tokens"
        rows.append(("blocks", f"{sizes}, {number(blocks['distinct'], 0)} distinct"))
    if sessions is not None:
        rows.extend(about_sessions(sessions))
    if ideal is not None:
        hits = f"{percent(ideal['block_hit_ratio'])} of blocks, {percent(ideal['token_hit_ratio'])} of prompt tokens"
        rows.append(("ideal reuse", f"{hits}: what one cache without limit would hit"))
    return rows


def about_sessions(sessions: Mapping[str, Any]) -> list[tuple[str, str]]:
    turns = sessions["turns"]
    several = f"{percent(sessions['requests_in_multi_turn_share'])} of requests in"
    if sessions.get("source") == "derived":
        rows = [
            (
                "chains",
                f"{number(sessions['count'], 0)} of requests that continue an earlier one's blocks (the format has no "
                f"session ids): {number(turns['mean'], 2)} requests each on average, {several} chains of several",
            )
        ]
    else:
        rows = [
            (
                "sessions",
                f"{number(sessions['count'], 0)} of {number(turns['mean'], 2)} turns on average (p50 "
                f"{number(turns['p50'], 0)}, p90 {number(turns['p90'], 0)}, max {number(turns['max'], 0)}), {several} "
                "sessions of several",
            )
        ]
    for name, key in (("turn gaps", "gap_s"), ("think times", "think_s")):
        values = sessions.get(key)
        if values is not None:
            rows.append((name, ", ".join(f"{at} {number(values[at])} s" for at in ("p50", "p90", "p99", "max"))))
    return rows


def reuse(found: Mapping[str, Any]) -> list[RenderableType]:
    """Share of blocks that LRU caches of each size would hit in order of arrival."""
    block = found["blocks"]["tokens"]
    tail_first = any(row["order"] == "tail-first" for row in found["reuse"])
    used = ", tail first" if tail_first else ""
    parts: list[RenderableType] = [
        Text(f" What LRU caches under round robin would hit, in order of arrival{used};"),
        Text(f" a cache's capacity counts the trace's own blocks, of {block} tokens each:"),
        _hits(found["reuse"], block),
    ]
    if found["sticky_reuse"]:
        parts.extend(
            ("", Text(" The same where each session stays with one cache:"), _hits(found["sticky_reuse"], block))
        )
    return parts


def _hits(rows: Sequence[Mapping[str, Any]], block: int) -> Table:
    made = table("caches", "blocks each", "tokens each", "block hits", "")
    made.columns[-1].justify = "left"
    for row in rows:
        capacity = row["capacity"]
        sizes = ("unlimited", "") if capacity is None else (number(capacity, 0), number(capacity * block, 0))
        ratio = row["block_hit_ratio"]
        made.add_row(str(row["instances"]), *sizes, f"{100 * ratio:.2f} %", bar(ratio, 24))
    return made


def snippet(found: Mapping[str, Any], path: str, block_tokens: int | None = None, limit: int | None = None) -> str:
    """The section of a scenario that replays this trace as it was looked at; sessions without a common clock need to
    be told when to start."""
    where = path if re.fullmatch(r"[\w./-]+", path) else json.dumps(path)
    starts = ", starts: {rate: 0.2/s, arrival: poisson}" if found.get("clock") == "session" else ""
    said = "".join(
        f", {name}: {value}" for name, value in (("block_tokens", block_tokens), ("limit", limit)) if value is not None
    )
    return f"workload: {{trace: {{format: {found['format']}, path: {where}{said}{starts}}}}}"
