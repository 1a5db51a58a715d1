"""Where the load was: requests at each instance over time, and how full its KV cache was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headway.report import html
from headway.report.charts import Line, events, heat, largest, lines, side_by_side
from headway.report.digest import Book, Digest
from headway.report.over_time import busiest, mean
from headway.report.terminal import number, percent, time_text
from headway.types import PS_PER_SECOND, Json

INSTANCES: Final = 48  # rows of a heat map; beyond, the busiest
APART: Final = 4  # a largest load so many times another's would leave nothing of that to be seen
PANELS: Final = 4  # heat maps of a kind; beyond, those of the baseline and the best
TRACE: Final = "To see how full the KV caches were over time, run with `--trace decisions -o FOLDER`."


def load(book: Book) -> str:
    shown = _panels(book)
    note = "Requests at each instance, waiting or running, averaged over parts of the run."
    left = len(book.drawn) - len(shown)
    if left:
        note += f" {len(shown)} runs are shown, the best and the baseline."
    many = max(len(one.names) for one in shown)
    if many > INSTANCES:
        note += f" Of {many:,} instances the {INSTANCES} busiest are shown."
    tops = [largest((value for row in one.loads.instances.values() for value in row), 1.0) for one in shown]
    apart = max(tops) > APART * min(tops)
    note += " Their loads are so unlike that each has its own scale." if apart else " One scale for all."
    figures = [
        book.figure(
            book.key(one.label),
            heat(
                "requests at the instance",
                _rows(one, one.loads.instances),
                one.loads.grid,
                top if apart else max(tops),
            ),
        )
        for one, top in zip(shown, tops, strict=True)
    ]
    parts = [side_by_side(figures), html.details("The same as a table", _table(book, shown))]
    parts.append(_kv(book, shown))
    return html.section("Load by instance", *parts, note=note, name="load")


def _kv(book: Book, shown: Sequence[Digest]) -> str:
    full = [one for one in shown if one.kv]
    if not full:
        return html.said(TRACE)
    figures = [
        book.figure(
            book.key(one.label),
            heat("KV blocks in use", _rows(one, one.kv), one.loads.grid, 1.0, share=True),
        )
        for one in full
    ]
    return f"<h3>KV blocks in use</h3>{side_by_side(figures)}"


def _panels(book: Book) -> list[Digest]:
    """The runs in order, at most so many, the baseline always among them."""
    others = [one for one in book.drawn if one.label != book.baseline]
    base = [one for one in book.drawn if one.label == book.baseline]
    chosen = [one.label for one in (*base, *others[: PANELS - len(base)])]
    return [one for one in book.drawn if one.label in chosen]


def _rows(one: Digest, values: Mapping[int, Sequence[float | None]]) -> dict[str, Sequence[float | None]]:
    chosen = busiest(one.loads.instances.items(), INSTANCES)
    return {one.names[index]: values[index] for index in chosen if index in values}


def _table(book: Book, shown: Sequence[Digest]) -> str:
    heads = [
        "run",
        "instance",
        "requests",
        "share",
        "mean at once",
        "fullest part",
        "busy",
        "KV at most",
        "preemptions",
    ]
    rows = []
    for one in shown:
        stats = dict(zip(one.names, one.summary["instances"], strict=True))
        for index in busiest(one.loads.instances.items(), INSTANCES):
            its, values = stats[index], one.loads.instances[index]
            rows.append(
                [
                    book.key(one.label),
                    its["id"],
                    number(its["requests"], 0),
                    percent(its["share"]),
                    number(mean(values), 2),
                    number(max(values), 1),
                    percent(its["utilization"]),
                    percent(its["peak_kv_utilization"]),
                    number(its["preemptions"], 0),
                ]
            )
    return html.table(heads, rows)


# The run over time: who waits, who runs, how many replicas serve, and what happened.


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
