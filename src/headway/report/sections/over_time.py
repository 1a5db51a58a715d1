"""The run over time: who waits, who runs, how many replicas serve, and what happened."""

from __future__ import annotations

from headway.report import html
from headway.report.book import Book, side_by_side
from headway.report.charts.load import Line, events, lines
from headway.report.digest import Digest
from headway.report.over_time import mean
from headway.report.terminal import number, time_text
from headway.types import PS_PER_SECOND, Json


def over_time(book: Book) -> str:
    grids = [one.loads.grid for one in book.drawn]
    span = (min(grid.seconds(0) for grid in grids), max(grid.seconds(grid.bins) for grid in grids))
    colours, base = book.colours, book.baseline
    waiting = {one.label: _line(one, one.loads.waiting) for one in book.drawn}
    running = {one.label: _line(one, one.loads.running) for one in book.drawn}
    figures = [
        book.figure("Requests that wait to begin", lines("requests waiting", waiting, span, colours, base)),
        book.figure("Requests that run", lines("requests running", running, span, colours, base)),
    ]
    served = {one.label: _steps(one) for one in book.drawn if one.replicas}
    if served:
        figures.append(book.figure("Replicas that serve", lines("replicas serving", served, span, colours, base)))
    happened = [row for one in book.drawn for row in _events(one)]
    if happened:
        figures.append(book.figure("What happened", events(happened, span, colours)))
    rows = [
        [
            book.key(one.label),
            number(mean(one.loads.waiting), 2),
            number(max(one.loads.waiting), 1),
            number(mean(one.loads.running), 2),
            number(max(one.loads.running), 1),
            time_text(one.summary["duration_s"]),
        ]
        for one in book.drawn
    ]
    heads = ["run", "waiting, mean", "fullest part", "running, mean", "fullest part", "until all was done"]
    table = html.table(heads, rows)
    return html.section("Over time", book.legend(), side_by_side(figures), table, _happened(book), name="over-time")


def _line(one: Digest, values: list[float]) -> Line:
    grid = one.loads.grid
    points = [(grid.seconds(place), value) for place, value in enumerate(values)]
    return [*points, (grid.seconds(grid.bins), 0.0)]


def _steps(one: Digest) -> Line:
    grid = one.loads.grid
    points = [(at, float(count)) for at, count in one.replicas]
    return [*points, (max(grid.seconds(grid.bins), points[-1][0]), points[-1][1])]


def _events(one: Digest) -> list[Json]:
    found = [
        {"policy": one.label, "kind": it.kind, "at": it.at_s, "until": it.at_s, "count": it.count, "said": it.said}
        for it in one.events
    ]
    for finding in one.findings:
        ends = [at / PS_PER_SECOND for at in (finding.at_ps, finding.until_ps)]
        kind = finding.kind.replace("_", " ")
        row = {"policy": one.label, "kind": kind, "at": ends[0], "until": ends[1], "count": finding.count}
        found.append({**row, "said": finding.title})
    return found


def _happened(book: Book) -> str:
    """The events as a table: how many of each kind."""
    rows = []
    for one in book.drawn:
        kinds = dict.fromkeys(it.kind for it in one.events)
        for kind in kinds:
            its = [it for it in one.events if it.kind == kind]
            first, last = (time_text(edge(it.at_s for it in its)) for edge in (min, max))
            rows.append([book.key(one.label), kind, number(sum(it.count for it in its), 0), first, last])
    return html.details("Events", html.table(["run", "what", "count", "first", "last"], rows)) if rows else ""
