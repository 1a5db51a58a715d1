"""Distributions of TTFT, TPOT and E2E, the runs overlaid."""

from __future__ import annotations

from typing import Final

from headway.report import html
from headway.report.book import Book, side_by_side
from headway.report.charts.distributions import cdf
from headway.report.terminal import number
from headway.results.percentiles import PS_PER_MS
from headway.results.promises import promises
from headway.types import Json

NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
LONG: Final = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End to end"}
STATISTICS: Final = ("mean", "p50", "p75", "p90", "p95", "p99", "min", "max")


def distributions(book: Book) -> str:
    figures = []
    for name, short in NAMES.items():
        curves = {one.label: one.curves[name] for one in book.drawn if one.curves[name]}
        if curves:
            target = target_ms(book.cases.cases[0].scenario, name)
            chart = cdf(short, curves, book.colours, book.baseline, target)
            figures.append(book.figure(f"{LONG[name]} ({short})", chart))
    if not figures:
        return ""
    rows = [
        [book.key(case.label), short, *(number(case.summary["latency"][name][at]) for at in STATISTICS)]
        for name, short in NAMES.items()
        for case in book.cases.cases
    ]
    table = html.details("The same as a table", html.table(["run", "ms", *STATISTICS], rows))
    note = "Share of completed requests at or below a time; the further left, the better. A broken line is the target."
    return html.section(
        "Latencies", book.legend(), side_by_side(figures), table, note=f"{note} {book.note}".strip(), name="latencies"
    )


def target_ms(scenario: Json, name: str) -> float | None:
    """What all were promised; nothing where a tenant has targets of its own."""
    promised = promises(scenario)
    target_ps = None if promised.own else getattr(promised.everybody, f"{name}_ps")
    return None if target_ps is None else target_ps / PS_PER_MS
