"""What `headway trace inspect` prints: a trace's shape and its reuse, with small plots."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.report import html
from headway.report.charts import COLOURS, bins, figure, legend, lines, palette, side_by_side
from headway.report.terminal import GAP, bar, columns, facts, number, percent, table, time_text

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


# What `headway workload preview` shows: a workload's first requests, in the terminal and as a page for a browser.

AS_IF = "Times of requests that wait for answers are as if answers came at once; in a run they come later."
TENANTS = len(COLOURS)  # lines of a chart, beyond which the rest is one line

SECONDS = ("mean", "p50", "p90", "p99", "max")

Found = Mapping[str, Any]


def preview_report(found: Found) -> RenderableType:
    """For the terminal."""
    parts: list[RenderableType] = [Text(_title(found), style="bold")]
    parts.extend(Text(note) for note in _notes(found))
    if not found["requests"]:
        return Group(*parts)
    parts.extend(("", lengths(found), "", *arrivals(found)))
    if len(found["tenants"]) > 1:
        parts.extend(("", _over_time(found["tenants"])))
    for label, key in GROUPS:
        if len(found[key]) > 1:
            parts.extend(("", groups(found[key], label)))
    rows = [] if found["sessions"] is None else about_sessions(found["sessions"])
    return Group(*parts, "", facts([*rows, ("ideal reuse", _reuse(found))]))


def _title(found: Found) -> str:
    taken = number(found["requests"], 0)
    if not found["requests"]:
        return f"{found['scenario']}: no requests"
    if found["complete"]:
        return f"{found['scenario']}: all {taken} requests"
    expected = found["expected_requests"]
    of = "" if expected is None else f" of {number(expected, 0)}"
    return f"{found['scenario']}: the first {taken}{of} requests"


def _notes(found: Found) -> list[str]:
    more = [] if found["complete"] else ["--requests looks at more of them."]
    return [*([AS_IF] if found["waits"] else []), *more]


def _reuse(found: Found) -> str:
    ideal = found["ideal_reuse"]
    hits = f"{percent(ideal['token_hit_ratio'])} of prompt tokens, {percent(ideal['request_hit_ratio'])} of requests"
    return f"{hits}: what one cache without limit would hit, answers included"


def _over_time(tenants: Sequence[Found]) -> Table:
    """Every tenant's rate over time, each by its own height."""
    made = table("tenant", "peak/s", "rate over time")
    made.columns[-1].justify = "left"
    names = made.columns[0]
    names.no_wrap, names.overflow, names.max_width = False, "ellipsis", 11
    for tenant in tenants[:MOST]:
        rates = tenant["rate_over_time_per_s"]
        made.add_row(Text(tenant["name"]), number(max(rates, default=None), 2), Text(columns(_halved(rates))))
    return made


def _halved(rates: Sequence[float]) -> list[float]:
    """Half as many columns, so that a name has room beside them."""
    return [(first + second) / 2 for first, second in zip(rates[::2], rates[1::2], strict=False)]


def preview_page(found: Found) -> str:
    """For a browser: one file."""
    return html.page(_title(found), [html.heading(_title(found), *_notes(found)), html.scriptless(), *_sections(found)])


def _sections(found: Found) -> Iterator[str]:
    if not found["requests"]:
        return
    yield html.facts(_figures(found))
    if found["span_s"]:
        yield html.section("Requests a second", *_rates(found))
    kinds = (("Prompt tokens", "prompt_tokens"), ("Output tokens", "output_tokens"))
    charts = [
        figure(key, name, bins(name, _bins(found[key]), "requests", colour))
        for (name, key), colour in zip(kinds, COLOURS, strict=False)
    ]
    rows = [[name, *(number(found[key][at], 0) for at in SPREAD)] for name, key in kinds]
    yield html.section("Lengths", side_by_side(charts), html.table(["", *SPREAD], rows), *_histograms(found, kinds))
    for label, key in GROUPS:
        if len(found[key]) > 1:
            yield html.section(f"By {label}", _group_table(found[key], label))
    if found["sessions"] is not None:
        yield _sessions(found["sessions"])
    note = "What one cache without limit would hit of the prompts, generated answers included."
    ideal = found["ideal_reuse"]
    shares = [[percent(ideal["token_hit_ratio"]), percent(ideal["request_hit_ratio"])]]
    yield html.section("Ideal reuse", html.table(["of prompt tokens", "of requests"], shares), note=note)


def _figures(found: Found) -> list[tuple[str, str]]:
    rows = [
        ("requests shown", number(found["requests"], 0)),
        ("requests a second", number(found["rate_per_s"], 2)),
        ("from first to last", time_text(found["span_s"])),
        ("prompt tokens on average", number(found["prompt_tokens"]["mean"], 0)),
        ("output tokens on average", number(found["output_tokens"]["mean"], 0)),
        ("of prompt tokens could be reused", percent(found["ideal_reuse"]["token_hit_ratio"])),
    ]
    if found["expected_requests"] is not None and not found["complete"]:
        rows.insert(1, ("requests expected", number(found["expected_requests"], 0)))
    if found["sessions"] is not None:
        rows.append(("sessions", number(found["sessions"]["count"], 0)))
    return rows


def _rates(found: Found) -> list[str]:
    """The rate over time, a line for each tenant, the smaller ones together."""
    tenants = found["tenants"]
    series = {tenant["name"]: tenant["rate_over_time_per_s"] for tenant in tenants[:TENANTS]}
    rest = [tenant["rate_over_time_per_s"] for tenant in tenants[TENANTS:]]
    if rest:
        together = [0.0] * max(map(len, rest))
        for rates in rest:
            together = [sofar + rate for sofar, rate in zip(together, rates, strict=True)]
        series[f"{len(rest):,} more"] = together
    start, span = found["first_s"], found["span_s"]
    steps = {
        name: [(start + span * place / len(rates), rate) for place, rate in enumerate([*rates, 0.0])]
        for name, rates in series.items()
    }
    grey = list(series)[-1] if rest else None
    colours = palette(series, grey)
    chart = lines("requests/s", steps, (start, start + span), colours, None, "tenant")
    peaks = html.table(["tenant", "peak/s"], [[name, number(max(rates), 2)] for name, rates in series.items()])
    return [legend(colours), figure("rates", "", chart), html.details("The highest rates", peaks)]


def _histograms(found: Found, kinds: Sequence[tuple[str, str]]) -> list[str]:
    """The charts' figures as tables."""
    tables = [[[size, number(count, 0)] for size, count in _bins(found[key])] for _, key in kinds]
    heads = ["tokens", "requests"]
    return [html.details(name, html.table(heads, rows)) for (name, _), rows in zip(kinds, tables, strict=True)]


def _bins(lengths: Found) -> list[tuple[str, float]]:
    return [(f"≤{number(most, 0)}", count) for most, count in lengths["histogram"]]


def _group_table(rows: Sequence[Found], label: str) -> str:
    headers = [label, "requests", "share", "prompt mean", "prompt p99", "output mean", "output p99"]
    cells = [
        [
            row["name"] or "(no name)",
            number(row["requests"], 0),
            percent(row["share"]),
            *(number(row[key][at], 0) for key in ("prompt_tokens", "output_tokens") for at in ("mean", "p99")),
        ]
        for row in rows
    ]
    return html.table(headers, cells)


def _sessions(found: Found) -> str:
    turns = found["turns"]
    rows = [["turns a session", *(number(turns[at], 1) for at in SECONDS)]]
    if found["gap_s"] is not None:
        rows.append(["seconds between turns", *(number(found["gap_s"][at], 2) for at in SECONDS)])
    share = percent(found["requests_in_multi_turn_share"])
    note = f"{number(found['count'], 0)} sessions; {share} of the requests are in sessions of several turns."
    return html.section("Sessions", html.table(["", *SECONDS], rows), note=note)
