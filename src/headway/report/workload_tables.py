"""The output of `headway trace inspect` and `headway workload preview`: lengths, arrivals and reuse."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.errors import argument
from headway.report import html
from headway.report.charts import COLOURS, bins, figure, legend, lines, palette, side_by_side
from headway.report.number_format import GAP, count, number, percent, rate_text, time_text
from headway.report.terminal import bar, columns, facts, table
from headway.types import Json

WINDOWS = 10  # the dispersion of requests per window is printed if a trace has at least this many windows
GROUPS = (("tenant", "tenants"), ("kind", "kinds"), ("model", "models"))
MOST = 12  # maximum number of rows in a table of tenants, kinds or models
NAME_WIDTH = 28
SPREAD = ("mean", "p50", "p90", "p99", "min", "max")


def report(trace: Mapping[str, Any], name: str) -> RenderableType:
    title = f"{name}: {count(trace['requests'])} requests in {trace['format']} format"
    parts: list[RenderableType] = [Text(title, style="bold"), "", lengths(trace), "", *arrivals(trace)]
    parts += group_tables(trace)
    if rows := content(trace):
        parts += ["", facts(rows)]
    if trace["blocks"] is not None:
        parts += ["", *reuse(trace)]
    for note in trace["notes"]:
        parts += ["", Text(note)]
    return Group(*parts)


def lengths(trace: Mapping[str, Any]) -> RenderableType:
    rows, plots = [], []
    for label, key in (("prompt", "prompt_tokens"), ("output", "output_tokens")):
        values = trace[key]
        counts = [requests for _, requests in values["histogram"]]
        low, high = values["histogram"][0][0], values["histogram"][-1][0]
        plots.append((label, f"≤{count(low)} {columns(counts)} ≤{count(high)}, by powers of two"))
        rows.append([label, *(count(values[statistic]) for statistic in SPREAD)])
    return Group(table("tokens", *SPREAD, rows=rows), "", facts(plots))


def arrivals(trace: Mapping[str, Any]) -> list[RenderableType]:
    times = trace["arrivals"]
    if times is None:
        if trace.get("clock") == "trace":
            why = "Later turns have no times, because they wait for answers"
        else:
            why = "The sessions of this trace have no common clock"
        return [Text(f" {why}: rate and burstiness are unknown.")]
    rates = times["rate_over_time_per_s"]
    idc = ", ".join(_dispersion(window, value, trace["span_s"]) for window, value in times["idc"].items())
    rows = [
        ("rate", f"{rate_text(trace['rate_per_s'])} requests/s over {number(trace['span_s'])} s"),
        ("gaps", f"coefficient of variation {number(times['cv'], 3)} (0 even, 1 Poisson)"),
        ("dispersion", f"{idc} (variance of counts divided by their mean, 1 Poisson)"),
        ("peak to mean", f"{number(times['peak_to_mean_60s'], 2)} per minute"),
    ]
    head = f" arrivals over time, at most {rate_text(max(rates, default=None))} per second"
    plot: list[RenderableType] = ["", Text(head), Text(f" {columns(rates)}")] if rates else []
    return [facts(rows), *plot]


def _dispersion(window: str, value: float | None, span_s: float) -> str:
    """Write the dispersion of the arrivals for a window length. If the trace is too short for enough windows, write a
    dash."""
    enough = span_s >= WINDOWS * float(window.removesuffix("s"))
    return f"{number(value, 2) if enough else GAP} over {window}"


def group_tables(workload: Mapping[str, Any]) -> list[RenderableType]:
    """Return tables of tenants, kinds and models, each only if there are several."""
    parts: list[RenderableType] = []
    for label, key in GROUPS:
        if len(workload[key]) > 1:
            parts += ["", _groups(workload[key], label)]
    return parts


def _groups(groups: Sequence[Mapping[str, Any]], label: str) -> Table:
    rows = list(map(_group_row, groups[:MOST]))
    if len(groups) > MOST:
        rest = sum(group["requests"] for group in groups[MOST:])
        share = rest / sum(group["requests"] for group in groups)
        rows.append([f"{len(groups) - MOST:,} more", count(rest), percent(share)])
    grid = table(label, "requests", "share", "prompt mean", "p99", "output mean", "p99", rows=rows)
    names = grid.columns[0]
    names.no_wrap, names.overflow, names.max_width = False, "fold", NAME_WIDTH
    return grid


def _group_row(group: Mapping[str, Any]) -> list[str]:
    name = "(unknown)" if group["name"] is None else group["name"] or "(no name)"
    tokens = [count(group[key][at]) for key in ("prompt_tokens", "output_tokens") for at in ("mean", "p99")]
    return [name, count(group["requests"]), percent(group["share"]), *tokens]


def content(trace: Mapping[str, Any]) -> list[tuple[str, str]]:
    blocks, sessions, ideal = trace["blocks"], trace["sessions"], trace["ideal_reuse"]
    rows = []
    if blocks is not None:
        sizes = f"{count(blocks['referenced'])} of {blocks['tokens']} tokens"
        rows.append(("blocks", f"{sizes}, {count(blocks['distinct'])} distinct"))
    if sessions is not None:
        rows.extend(about_sessions(sessions))
    if ideal is not None:
        hits = f"{percent(ideal['block_hit_ratio'])} of blocks, {percent(ideal['token_hit_ratio'])} of prompt tokens"
        rows.append(("ideal reuse", f"{hits}: hits of one cache without limit"))
    return rows


def about_sessions(sessions: Mapping[str, Any]) -> list[tuple[str, str]]:
    turns = sessions["turns"]
    several = f"{percent(sessions['requests_in_multi_turn_share'])} of requests in"
    if sessions.get("source") == "derived":
        name = "chains"
        text = (
            f"{count(sessions['count'])} chains of requests that continue an earlier one's blocks (the format has no "
            f"session ids): {number(turns['mean'], 2)} requests each on average, {several} chains of several"
        )
    else:
        name = "sessions"
        text = (
            f"{count(sessions['count'])} of {number(turns['mean'], 2)} turns on average (p50 {count(turns['p50'])}, "
            f"p90 {count(turns['p90'])}, max {count(turns['max'])}), {several} sessions of several"
        )
    rows = [(name, text)]
    for name, key in (("turn gaps", "gap_s"), ("think times", "think_s")):
        values = sessions.get(key)
        if values is not None:
            rows.append((name, ", ".join(f"{at} {number(values[at])} s" for at in ("p50", "p90", "p99", "max"))))
    return rows


def reuse(trace: Mapping[str, Any]) -> list[RenderableType]:
    """Return tables of the block hits that LRU caches of several sizes would have on this trace."""
    block = trace["blocks"]["tokens"]
    tail_first = any(row["order"] == "tail-first" for row in trace["reuse"])
    used = ", tail first" if tail_first else ""
    parts: list[RenderableType] = [
        Text(f" Hits of LRU caches under round robin, in order of arrival{used};"),
        Text(f" the capacity counts blocks of the trace, of {block} tokens each:"),
        _hits(trace["reuse"], block),
    ]
    if trace["sticky_reuse"]:
        text = " The same if each session stays with one cache:"
        parts += ["", Text(text), _hits(trace["sticky_reuse"], block)]
    return parts


def _hits(caches: Sequence[Mapping[str, Any]], block: int) -> Table:
    rows = []
    for cache in caches:
        capacity, ratio = cache["capacity"], cache["block_hit_ratio"]
        sizes = ("unlimited", "") if capacity is None else (count(capacity), count(capacity * block))
        rows.append([str(cache["instances"]), *sizes, f"{100 * ratio:.2f} %", bar(ratio, 24)])
    return table("caches", "blocks each", "tokens each", "block hits", "", rows=rows, left=(0, 4))


def snippet(
    trace: Mapping[str, Any],
    path: str,
    block_tokens: int | None = None,
    limit: int | None = None,
    columns: str | None = None,
    skip_bad: bool = False,
) -> str:
    """Return the section of a scenario that replays this trace. If the times of each session count from the session's
    own start, the section includes `starts`, which sets when sessions start."""
    where = path if re.fullmatch(r"[\w./-]+", path) else json.dumps(path)
    starts = ", starts: {rate: 0.2/s, arrival: poisson}" if trace.get("clock") == "session" else ""
    mapping = None if columns is None else json.dumps(columns)
    options = {
        "block_tokens": block_tokens,
        "limit": limit,
        "columns": mapping,
        "skip_bad": "true" if skip_bad else None,
    }
    keys = "".join(f", {name}: {value}" for name, value in options.items() if value is not None)
    return f"workload: {{trace: {{format: {trace['format']}, path: {where}{keys}{starts}}}}}"


# The output of `headway workload preview`: a workload's first requests, in the terminal and as a page.

AS_IF = "Requests that wait for an answer are shown as if the answer came at once; in a run they arrive later."
TENANTS = len(COLOURS)  # maximum number of tenants with their own line in a chart; the others share one line

KINDS = (("Prompt tokens", "prompt_tokens"), ("Output tokens", "output_tokens"))
SECONDS = ("mean", "p50", "p90", "p99", "max")

Preview = Mapping[str, Any]


def preview_report(preview: Preview) -> RenderableType:
    """Return the preview for the terminal."""
    parts: list[RenderableType] = [Text(_title(preview), style="bold")]
    parts += map(Text, _notes(preview))
    if not preview["requests"]:
        return Group(*parts)
    parts += ["", lengths(preview), "", *arrivals(preview)]
    if len(preview["tenants"]) > 1:
        parts += ["", _over_time(preview["tenants"])]
    parts += group_tables(preview)
    rows = [] if preview["sessions"] is None else about_sessions(preview["sessions"])
    return Group(*parts, "", facts([*rows, ("ideal reuse", _reuse(preview))]))


def _title(preview: Preview) -> str:
    requests = count(preview["requests"])
    if not preview["requests"]:
        return f"{preview['scenario']}: no requests"
    if preview["complete"]:
        return f"{preview['scenario']}: all {requests} requests"
    expected = preview["expected_requests"]
    of = "" if expected is None else f" of {count(expected)}"
    return f"{preview['scenario']}: the first {requests}{of} requests"


def _notes(preview: Preview) -> list[str]:
    more = [] if preview["complete"] else [f"To see more, use {argument('requests')}."]
    return [*([AS_IF] if preview["waits"] else []), *more]


def _reuse(preview: Preview) -> str:
    ideal = preview["ideal_reuse"]
    hits = f"{percent(ideal['token_hit_ratio'])} of prompt tokens, {percent(ideal['request_hit_ratio'])} of requests"
    return f"{hits}: hits of one cache without limit, answers included"


def _over_time(tenants: Sequence[Preview]) -> Table:
    """Return a plot of each tenant's rate over time, relative to its own peak."""
    rows = []
    for tenant in tenants[:MOST]:
        rates = tenant["rate_over_time_per_s"]
        # Merge pairs of rates, so that the plot is half as wide and leaves space for the name.
        halves = [(first + second) / 2 for first, second in zip(rates[::2], rates[1::2], strict=False)]
        rows.append([tenant["name"], number(max(rates, default=None), 2), columns(halves)])
    grid = table("tenant", "peak/s", "rate over time", rows=rows, left=(0, 2))
    names = grid.columns[0]
    names.no_wrap, names.overflow, names.max_width = False, "ellipsis", 11
    return grid


def preview_page(preview: Preview) -> str:
    """Return the preview as an HTML page."""
    title = _title(preview)
    return html.page(title, [html.heading(title, *_notes(preview)), html.SCRIPTLESS, *_sections(preview)])


def _sections(preview: Preview) -> Iterator[str]:
    if not preview["requests"]:
        return
    yield html.facts(_figures(preview))
    if preview["span_s"]:
        yield html.section("Requests per second", *_rates(preview))
    charts = [figure(key, *drawn) for (_, key), drawn in zip(KINDS, length_charts(preview), strict=True)]
    rows = [[name, *(count(preview[key][at]) for at in SPREAD)] for name, key in KINDS]
    yield html.section("Lengths", side_by_side(charts), html.table(["", *SPREAD], rows), *_histograms(preview, KINDS))
    for label, key in GROUPS:
        if len(preview[key]) > 1:
            heads = [label, "requests", "share", "prompt mean", "prompt p99", "output mean", "output p99"]
            yield html.section(f"By {label}", html.table(heads, map(_group_row, preview[key])))
    if preview["sessions"] is not None:
        yield _sessions(preview["sessions"])
    note = "Share of the prompts that one cache without limit would hit, generated answers included."
    ideal = preview["ideal_reuse"]
    shares = [[percent(ideal["token_hit_ratio"]), percent(ideal["request_hit_ratio"])]]
    yield html.section("Ideal reuse", html.table(["of prompt tokens", "of requests"], shares), note=note)


def length_charts(workload: Preview) -> list[tuple[str, Json]]:
    """Return titles and histograms of the lengths of prompts and outputs."""
    return [
        (name, bins(name, _bins(workload[key]), "requests", colour))
        for (name, key), colour in zip(KINDS, COLOURS, strict=False)
    ]


def _figures(preview: Preview) -> list[tuple[str, str]]:
    rows = [
        ("requests shown", count(preview["requests"])),
        ("requests per second", number(preview["rate_per_s"], 2)),
        ("from first to last arrival", time_text(preview["span_s"])),
        ("mean prompt tokens", count(preview["prompt_tokens"]["mean"])),
        ("mean output tokens", count(preview["output_tokens"]["mean"])),
        ("of prompt tokens reusable", percent(preview["ideal_reuse"]["token_hit_ratio"])),
    ]
    if preview["expected_requests"] is not None and not preview["complete"]:
        rows.insert(1, ("requests expected", count(preview["expected_requests"])))
    if preview["sessions"] is not None:
        rows.append(("sessions", count(preview["sessions"]["count"])))
    return rows


def _rates(preview: Preview) -> list[str]:
    series = _rate_series(preview)
    chart = rate_chart(preview)
    peaks = html.table(["tenant", "peak/s"], [[name, number(max(rates), 2)] for name, rates in series.items()])
    return [legend(_tenant_colours(series)), figure("rates", "", chart), html.details("Peak rates", peaks)]


def rate_chart(workload: Preview) -> Json:
    """Return a chart of the rate over time: a line for each tenant, and one line for all smaller tenants together."""
    series = _rate_series(workload)
    start, span = workload.get("first_s", 0.0), workload["span_s"]
    steps = {
        name: [(start + span * place / len(rates), rate) for place, rate in enumerate([*rates, 0.0])]
        for name, rates in series.items()
    }
    return lines("requests/s", steps, (start, start + span), _tenant_colours(series), None, "tenant")


def _tenant_colours(series: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Return a colour for each tenant; the smaller tenants together are grey."""
    return palette(series, list(series)[-1] if len(series) > TENANTS else None)


def _rate_series(workload: Preview) -> dict[str, list[float]]:
    """Return the rates over time by tenant. A trace without tenants has one series."""
    tenants = workload["tenants"] or [{"name": "all", **workload["arrivals"]}]
    series = {tenant["name"] or "(unknown)": tenant["rate_over_time_per_s"] for tenant in tenants[:TENANTS]}
    rest = [tenant["rate_over_time_per_s"] for tenant in tenants[TENANTS:]]
    if rest:
        together = [0.0] * max(map(len, rest))
        for rates in rest:
            together = [sofar + rate for sofar, rate in zip(together, rates, strict=True)]
        series[f"{len(rest):,} more"] = together
    return series


def _histograms(preview: Preview, kinds: Sequence[tuple[str, str]]) -> list[str]:
    tables = [[[size, count(requests)] for size, requests in _bins(preview[key])] for _, key in kinds]
    heads = ["tokens", "requests"]
    return [html.details(name, html.table(heads, rows)) for (name, _), rows in zip(kinds, tables, strict=True)]


def _bins(lengths: Preview) -> list[tuple[str, float]]:
    return [(f"≤{count(most)}", requests) for most, requests in lengths["histogram"]]


def _sessions(sessions: Preview) -> str:
    turns = sessions["turns"]
    rows = [["turns per session", *(number(turns[at], 1) for at in SECONDS)]]
    if sessions["gap_s"] is not None:
        rows.append(["seconds between turns", *(number(sessions["gap_s"][at], 2) for at in SECONDS)])
    share = percent(sessions["requests_in_multi_turn_share"])
    note = f"{count(sessions['count'])} sessions; {share} of the requests are in sessions of several turns."
    return html.section("Sessions", html.table(["", *SECONDS], rows), note=note)
