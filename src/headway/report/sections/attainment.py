"""The fraction of requests within the SLO: of all requests, by class and by tenant."""

from collections.abc import Sequence
from typing import Final

from headway.experiment.verdict import has_slo
from headway.report import html
from headway.report.charts import Palette, axis, categories, grouped_bars, hints, side_by_side
from headway.report.digest import Book
from headway.report.number_format import brief, number, percent
from headway.types import Json


def attainment(group: str, rows: Sequence[Json], served: str, colours: Palette) -> Json:
    """Return a chart with a bar for each group and policy. A row has `policy`, `group` and `share`."""
    names = list(dict.fromkeys(row["group"] for row in rows))
    return grouped_bars(
        f"{served} by {group} and policy.",
        rows,
        axis("share", served, axis={"format": ".0%", "tickCount": 5}, scale={"domain": [0, 1]}),
        categories("group", names, labelLimit=130, ticks=False),
        colours,
        hints(("group", group), ("policy", "policy"), ("share", served)),
        height=max(80, len(names) * (10 + 9 * len(colours))),
    )


GROUPS: Final = (("classes", "class"), ("tenants", "tenant"))
MOST: Final = 12  # maximum number of groups in a chart; the groups with the most requests are shown
ROWS: Final = 200  # maximum number of rows in a table


def slo(book: Book) -> str:
    promised = any(has_slo(case.scenario) for case in book.cases.cases)
    served = "within the SLO" if promised else "served"
    figures = []
    tables = [_table(book, "", "", served)]
    for section, group in GROUPS:
        if any(section in case.summary for case in book.cases.cases):
            figures.append(book.figure(f"By {group}", attainment(group, _rows(book, section), served, book.colours)))
            tables.append(html.details(f"By {group}", _table(book, section, group, served)))
    note = "" if promised else "The scenario has no SLO, so every completed request counts as good."
    legend = [book.legend(), side_by_side(figures)] if figures else []
    return html.section("SLO", *legend, *tables, _fairness(book), note=note, name="slo")


def _largest(book: Book, section: str) -> list[str]:
    """Return the groups with the most requests, in order of their names."""
    counts: dict[str, int] = {}
    for case in book.cases.cases:
        for row in case.summary.get(section, []):
            counts[row["id"]] = max(counts.get(row["id"], 0), row["requests"]["arrived"])
    return sorted(sorted(counts, key=lambda name: (-counts[name], name))[:MOST])


def _rows(book: Book, section: str) -> list[Json]:
    largest = _largest(book, section)
    return [
        {"policy": run.label, "group": row["id"], "share": brief(row["slo"]["goodput_ratio"])}
        for run in book.drawn
        for row in run.summary.get(section, [])
        if row["id"] in largest and row["slo"]["goodput_ratio"] is not None
    ]


def _table(book: Book, section: str, group: str, served: str) -> str:
    """Return a table with a row for each run, or for each run and group."""
    targets = ("ttft", "tpot", "e2e")
    heads = ["requests", served, "per second", *(f"{target.upper()} met" for target in targets), "TTFT p99, ms"]
    rows = []
    for case in book.cases.cases:
        for row in case.summary.get(section, []) if section else [case.summary]:
            slo = row["slo"]
            rows.append(
                [
                    book.key(case.label),
                    *([row["id"]] if group else []),
                    number(row["requests"]["arrived"], 0),
                    percent(slo["goodput_ratio"]),
                    number(slo["goodput_requests_per_s"], 2),
                    *(percent(slo[f"{target}_attainment"]) for target in targets),
                    number(row["latency"]["ttft"]["p99"]),
                ]
            )
    left = len(rows) - ROWS
    more = f"<p>and {left:,} more rows, in summary.json</p>" if left > 0 else ""
    return html.table(["run", *([group] if group else []), *heads], rows[:ROWS]) + more


def _fairness(book: Book) -> str:
    cases = [case for case in book.cases.cases if "fairness" in case.summary]
    if not cases:
        return ""
    rows = [
        [book.key(case.label), *(number(case.summary["fairness"][name], 3) for name in ("jain_goodput", "jain_tokens"))]
        for case in cases
    ]
    heads = ["run", "Jain index of tenants' goodput shares", "of their tokens"]
    return f"<h3>Fairness</h3>{html.table(heads, rows)}"
