"""The share of requests served within the SLO: of all, of each class and of each tenant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headway.experiment.verdict import has_slo
from headway.report import html
from headway.report.charts import Palette, axis, by_policy, chart, hints, side_by_side
from headway.report.digest import Book
from headway.report.terminal import brief, number, percent
from headway.types import Json

# The share served within the SLO, for each class or tenant under each policy.


def attainment(whom: str, rows: Sequence[Json], served: str, colours: Palette) -> Json:
    """A bar for each group and policy. A row has `policy`, `group` and `share`."""
    names = list(dict.fromkeys(row["group"] for row in rows))
    return chart(
        f"{served} by {whom} and policy.",
        rows,
        height=max(80, len(names) * (10 + 9 * len(colours))),
        mark={"type": "bar", "cornerRadiusEnd": 2},
        encoding={
            "x": axis("share", served, axis={"format": ".0%", "tickCount": 5}, scale={"domain": [0, 1]}),
            "y": {
                "field": "group",
                "type": "nominal",
                "title": None,
                "sort": names,
                "axis": {"labelLimit": 130, "ticks": False},
            },
            "yOffset": {"field": "policy", "type": "nominal", "sort": list(colours)},
            "color": by_policy(colours),
            "tooltip": hints(("group", whom), ("policy", "policy"), ("share", served)),
        },
    )


GROUPS: Final = (("classes", "class"), ("tenants", "tenant"))
MOST: Final = 12  # groups of a chart, those with the most requests
ROWS: Final = 200  # of a table


def slo(book: Book) -> str:
    promised = any(has_slo(case.scenario) for case in book.cases.cases)
    served = "within the SLO" if promised else "served"
    figures = []
    tables = [_table(book, "", "", served)]
    for section, whom in GROUPS:
        if any(section in case.summary for case in book.cases.cases):
            figures.append(book.figure(f"By {whom}", attainment(whom, _rows(book, section), served, book.colours)))
            tables.append(html.details(f"By {whom}", _table(book, section, whom, served)))
    note = "" if promised else "Nobody was promised anything, so that whoever was served counts."
    legend = [book.legend(), side_by_side(figures)] if figures else []
    return html.section("SLO", *legend, *tables, _fairness(book), note=note, name="slo")


def _largest(book: Book, section: str) -> list[str]:
    """The groups with the most requests, by name."""
    counts: dict[str, int] = {}
    for case in book.cases.cases:
        for row in case.summary.get(section, []):
            counts[row["id"]] = max(counts.get(row["id"], 0), row["requests"]["arrived"])
    return sorted(sorted(counts, key=lambda name: (-counts[name], name))[:MOST])


def _rows(book: Book, section: str) -> list[Json]:
    shown = _largest(book, section)
    return [
        {"policy": one.label, "group": row["id"], "share": brief(row["slo"]["goodput_ratio"])}
        for one in book.drawn
        for row in one.summary.get(section, [])
        if row["id"] in shown and row["slo"]["goodput_ratio"] is not None
    ]


def _table(book: Book, section: str, whom: str, served: str) -> str:
    """A row for each run, or for each run and group."""
    heads = [
        "run",
        *([whom] if whom else []),
        "requests",
        served,
        "a second",
        "TTFT met",
        "TPOT met",
        "E2E met",
        "TTFT p99, ms",
    ]
    rows = []
    for case in book.cases.cases:
        for row in case.summary.get(section, []) if section else [case.summary]:
            its = row["slo"]
            rows.append(
                [
                    book.key(case.label),
                    *([row["id"]] if whom else []),
                    number(row["requests"]["arrived"], 0),
                    percent(its["goodput_ratio"]),
                    number(its["goodput_requests_per_s"], 2),
                    *(percent(its[f"{name}_attainment"]) for name in ("ttft", "tpot", "e2e")),
                    number(row["latency"]["ttft"]["p99"]),
                ]
            )
    left = len(rows) - ROWS
    return html.table(heads, rows[:ROWS]) + (f"<p>and {left:,} more rows, in summary.json</p>" if left > 0 else "")


def _fairness(book: Book) -> str:
    told = [case for case in book.cases.cases if "fairness" in case.summary]
    if not told:
        return ""
    rows = [
        [book.key(case.label), *(number(case.summary["fairness"][name], 3) for name in ("jain_goodput", "jain_tokens"))]
        for case in told
    ]
    heads = ["run", "Jain of tenants' goodput shares", "of their tokens"]
    return f"<h3>Fairness</h3>{html.table(heads, rows)}"
