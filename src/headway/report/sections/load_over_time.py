"""The load over time: requests and KV cache use of each instance, waiting and running requests, and events."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

from headway.report import html
from headway.report.charts import Line, events, heat, largest, lines, side_by_side
from headway.report.digest import Book, Digest
from headway.report.number_format import count, number, percent, time_text
from headway.report.over_time import busiest
from headway.report.sections.finding_list import anchor
from headway.results.records import group_by
from headway.types import PS_PER_SECOND, Json

INSTANCES: Final = 48  # maximum number of rows in a heat map; the busiest instances are shown
APART: Final = 4  # if the peak loads of runs differ by more than this factor, each heat map has its own scale
PANELS: Final = 4  # maximum number of heat maps of one kind; the baseline and the best runs are shown
TRACE: Final = "To see the use of the KV caches over time, run with `--trace decisions -o FOLDER`."


def load(book: Book) -> str:
    runs = _panels(book)
    note = "Requests at each instance, waiting or running: means over parts of the run."
    if len(book.drawn) > len(runs):
        note += f" The charts show {len(runs)} runs: the best and the baseline."
    many = max(len(run.names) for run in runs)
    if many > INSTANCES:
        note += f" They show the {INSTANCES} busiest of {many:,} instances."
    tops = [largest((value for row in run.loads.instances.values() for value in row), 1.0) for run in runs]
    apart = max(tops) > APART * min(tops)
    note += " Peak loads differ widely, so each chart has its own scale." if apart else " All charts share one scale."
    figures = []
    for run, top in zip(runs, tops, strict=True):
        rows = _rows(run, run.loads.instances)
        chart = heat("requests at the instance", rows, run.loads.grid, top if apart else max(tops))
        figures.append(book.figure(book.key(run.label), chart))
    table = html.details("The same as a table", _table(book, runs))
    return html.section("Load by instance", side_by_side(figures), table, _kv(book, runs), note=note, name="load")


def _kv(book: Book, runs: Sequence[Digest]) -> str:
    figures = [
        book.figure(book.key(run.label), heat("KV blocks in use", _rows(run, run.kv), run.loads.grid, 1.0, share=True))
        for run in runs
        if run.kv
    ]
    return f"<h3>KV blocks in use</h3>{side_by_side(figures)}" if figures else html.paragraph(TRACE)


def _panels(book: Book) -> list[Digest]:
    """Return at most `PANELS` runs in order, always with the baseline."""
    others = [run for run in book.drawn if run.label != book.baseline]
    base = [run for run in book.drawn if run.label == book.baseline]
    chosen = [run.label for run in (*base, *others[: PANELS - len(base)])]
    return [run for run in book.drawn if run.label in chosen]


def _rows(run: Digest, values: Mapping[int, Sequence[float | None]]) -> dict[str, Sequence[float | None]]:
    chosen = busiest(run.loads.instances.items(), INSTANCES)
    return {run.names[index]: values[index] for index in chosen if index in values}


def _table(book: Book, runs: Sequence[Digest]) -> str:
    heads = ["run", "instance", "requests", "share", "mean load", "peak load", "busy", "peak KV", "preemptions"]
    rows = []
    for run in runs:
        stats = dict(zip(run.names, run.summary["instances"], strict=True))
        for index in busiest(run.loads.instances.items(), INSTANCES):
            instance, values = stats[index], run.loads.instances[index]
            rows.append(
                [
                    book.key(run.label),
                    instance["id"],
                    count(instance["requests"]),
                    percent(instance["share"]),
                    *_mean_and_top(values),
                    percent(instance["utilization"]),
                    percent(instance["peak_kv_utilization"]),
                    count(instance["preemptions"]),
                ]
            )
    return html.table(heads, rows)


def _mean_and_top(values: Sequence[float]) -> tuple[str, str]:
    return number(fmean(values), 2), number(max(values), 1)


def over_time(book: Book) -> str:
    runs = book.drawn
    grids = [run.loads.grid for run in runs]
    span = (min(grid.seconds(0) for grid in grids), max(grid.seconds(grid.bins) for grid in grids))
    series = {
        ("Waiting requests", "requests waiting"): {run.label: _line(run, run.loads.waiting) for run in runs},
        ("Running requests", "requests running"): {run.label: _line(run, run.loads.running) for run in runs},
        ("Serving replicas", "replicas serving"): {run.label: _steps(run) for run in runs if run.replicas},
    }
    figures = [
        book.figure(title, lines(unit, points, span, book.colours, book.baseline))
        for (title, unit), points in series.items()
        if points
    ]
    rows = [row for place, run in enumerate(runs) for row in _events(place, run)]
    if rows:
        figures.append(book.figure("Events", events(rows, span, book.colours)))
    heads = ["run", "waiting, mean", "waiting, peak", "running, mean", "running, peak", "duration"]
    cells = [
        [
            book.key(run.label),
            *_mean_and_top(run.loads.waiting),
            *_mean_and_top(run.loads.running),
            time_text(run.summary["duration_s"]),
        ]
        for run in runs
    ]
    parts = [book.legend(), side_by_side(figures), html.table(heads, cells), _event_counts(book)]
    return html.section("Over time", *parts, name="over-time")


def _line(run: Digest, values: list[float]) -> Line:
    grid = run.loads.grid
    return [(grid.seconds(place), value) for place, value in enumerate([*values, 0.0])]


def _steps(run: Digest) -> Line:
    grid = run.loads.grid
    points = [(at, float(replicas)) for at, replicas in run.replicas]
    return [*points, (max(grid.seconds(grid.bins), points[-1][0]), points[-1][1])]


def _events(place: int, run: Digest) -> list[Json]:
    """Return a row for each event and each finding of a run. `place` is its position among the drawn runs."""
    rows = [(event.kind, event.at_s, event.at_s, event.count, event.text, "") for event in run.events]
    for turn, finding in enumerate(run.findings):
        begin, end = (at / PS_PER_SECOND for at in (finding.at_ps, finding.until_ps))
        link = f"#{anchor(place, turn)}"
        rows.append((finding.kind.replace("_", " "), begin, end, finding.count, finding.title, link))
    names = ("policy", "kind", "at", "until", "count", "text", "link")
    return [dict(zip(names, (run.label, *row), strict=True)) for row in rows]


def _event_counts(book: Book) -> str:
    rows = []
    for run in book.drawn:
        for kind, same in group_by(run.events, lambda event: event.kind).items():
            first, last = (time_text(edge(event.at_s for event in same)) for edge in (min, max))
            rows.append([book.key(run.label), kind, count(sum(event.count for event in same)), first, last])
    return html.details("Events", html.table(["run", "event", "count", "first", "last"], rows)) if rows else ""
