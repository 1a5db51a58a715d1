"""What `headway workload preview` shows: a workload's first requests, in the terminal and as a page for a browser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.report import html, trace
from headway.report.book import figure, side_by_side
from headway.report.charts.load import bins, lines
from headway.report.palette import COLOURS, legend, palette
from headway.report.plots import columns
from headway.report.terminal import facts, number, percent, table, time_text

AS_IF = "Times of requests that wait for answers are as if answers came at once; in a run they come later."
TENANTS = len(COLOURS)  # lines of a chart, beyond which the rest is one line
SPREAD = ("mean", "p50", "p90", "p99", "min", "max")
SECONDS = ("mean", "p50", "p90", "p99", "max")

Found = Mapping[str, Any]


def report(found: Found) -> RenderableType:
    """For the terminal."""
    parts: list[RenderableType] = [Text(_title(found), style="bold")]
    parts.extend(Text(note) for note in _notes(found))
    if not found["requests"]:
        return Group(*parts)
    parts.extend(("", trace.lengths(found), "", *trace.arrivals(found)))
    if len(found["tenants"]) > 1:
        parts.extend(("", _over_time(found["tenants"])))
    for label, key in trace.GROUPS:
        if len(found[key]) > 1:
            parts.extend(("", trace.groups(found[key], label)))
    rows = [] if found["sessions"] is None else trace.about_sessions(found["sessions"])
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
    for tenant in tenants[: trace.MOST]:
        rates = tenant["rate_over_time_per_s"]
        made.add_row(Text(tenant["name"]), number(max(rates, default=None), 2), Text(columns(_halved(rates))))
    return made


def _halved(rates: Sequence[float]) -> list[float]:
    """Half as many columns, so that a name has room beside them."""
    return [(first + second) / 2 for first, second in zip(rates[::2], rates[1::2], strict=False)]


def page(found: Found) -> str:
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
    for label, key in trace.GROUPS:
        if len(found[key]) > 1:
            yield html.section(f"By {label}", _groups(found[key], label))
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


def _groups(rows: Sequence[Found], label: str) -> str:
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
