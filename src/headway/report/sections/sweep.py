"""What a sweep found: goodput and TTFT along the axis, or goodput against what it costs."""

from __future__ import annotations

from headway.report import html
from headway.report.book import Book, side_by_side
from headway.report.charts.base import brief
from headway.report.charts.sweep import along, pareto
from headway.report.palette import GREY
from headway.report.sweeping import Sweep, front
from headway.report.terminal import money, number, percent
from headway.results.ranking import value
from headway.types import Json

GOODPUT, TTFT, COST = "slo.goodput_requests_per_s", "latency.ttft.p99", "cost.usd"


def sweep(book: Book, found: Sweep) -> str:
    parts = [book.legend()]
    parts.append(_pareto(book, found) if found.path is None else _along(book, found))
    return html.section("Sweep", *parts, _table(book, found), name="sweep")


def _along(book: Book, found: Sweep) -> str:
    unit = f" ({found.unit})" if found.unit else ""
    axis = f"{found.path}{unit}"
    figures = [
        book.figure(
            "Goodput", along(axis, "goodput, requests/s", _rows(book, found, GOODPUT), book.colours, book.baseline)
        ),
        book.figure(
            "TTFT p99", along(axis, "TTFT p99, ms", _rows(book, found, TTFT), book.colours, book.baseline, log=True)
        ),
    ]
    return side_by_side(figures)


def _rows(book: Book, found: Sweep, figure: str) -> list[Json]:
    return [
        {"policy": name, "at": where, "value": brief(it)}
        for name, runs in found.lines.items()
        if name in book.colours
        for where, case in runs
        if (it := value(case.summary, figure)) is not None
    ]


def _pareto(book: Book, found: Sweep) -> str:
    cases = [(name, case) for name, runs in found.lines.items() for _, case in runs]
    costs = {value(case.summary, COST) for _, case in cases}
    x, title = (COST, "cost, USD") if len(costs) > 1 else (TTFT, "TTFT p99, ms")
    points = [
        (name, (across, up))
        for name, case in cases
        if (across := value(case.summary, x)) is not None and (up := value(case.summary, GOODPUT)) is not None
    ]
    best = front([place for _, place in points])
    rows = [
        {"policy": name, "label": name, "x": brief(place[0]), "y": brief(place[1]), "front": on}
        for (name, place), on in zip(points, best, strict=True)
    ]
    colours = {name: book.colours.get(name, GREY) for name, _ in points}
    return book.figure(f"Goodput against {title}", pareto(title, "goodput, requests/s", rows, colours))


def _table(book: Book, found: Sweep) -> str:
    heads = ["run", found.path or "", "goodput, requests/s", "good share", "TTFT p99, ms", "TPOT p99, ms", "cost, USD"]
    rows = []
    for name, runs in found.lines.items():
        for _, case in runs:
            given = case.vary.get(found.path) if found.path is not None else ""
            figures = (GOODPUT, "slo.goodput_ratio", TTFT, "latency.tpot.p99", COST)
            goodput, share, ttft, tpot, cost = (value(case.summary, path) for path in figures)
            cells = [number(goodput, 2), percent(share), number(ttft), number(tpot), money(cost)]
            rows.append([book.key(name), str(given), *cells])
    return html.details("The same as a table", html.table(heads, rows))
