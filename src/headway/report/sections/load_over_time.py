"""Where the load was: requests at each instance over time, and how full its KV cache was."""

from collections.abc import Mapping, Sequence
from typing import Final

from headway.report import html
from headway.report.charts import Line, events, heat, largest, lines, side_by_side
from headway.report.digest import Book, Digest
from headway.report.number_format import count, number, percent, time_text
from headway.report.over_time import busiest, mean
from headway.results.records import group_by
from headway.types import PS_PER_SECOND, Json

INSTANCES: Final = 48  # rows of a heat map; beyond, the busiest
APART: Final = 4  # a largest load so many times another's would leave nothing of that to be seen
PANELS: Final = 4  # heat maps of a kind; beyond, those of the baseline and the best
TRACE: Final = "To see how full the KV caches were over time, run with `--trace decisions -o FOLDER`."


def load(book: Book) -> str:
    runs = _panels(book)
    note = "Requests at each instance, waiting or running, averaged over parts of the run."
    if len(book.drawn) > len(runs):
        note += f" {len(runs)} runs are shown, the best and the baseline."
    many = max(len(run.names) for run in runs)
    if many > INSTANCES:
        note += f" Of {many:,} instances the {INSTANCES} busiest are shown."
    tops = [largest((value for row in run.loads.instances.values() for value in row), 1.0) for run in runs]
    apart = max(tops) > APART * min(tops)
    note += " Their loads are so unlike that each has its own scale." if apart else " One scale for all."
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
    """The runs in order, at most `PANELS`, the baseline always among them."""
    others = [run for run in book.drawn if run.label != book.baseline]
    base = [run for run in book.drawn if run.label == book.baseline]
    chosen = [run.label for run in (*base, *others[: PANELS - len(base)])]
    return [run for run in book.drawn if run.label in chosen]


def _rows(run: Digest, values: Mapping[int, Sequence[float | None]]) -> dict[str, Sequence[float | None]]:
    chosen = busiest(run.loads.instances.items(), INSTANCES)
    return {run.names[index]: values[index] for index in chosen if index in values}


def _table(book: Book, runs: Sequence[Digest]) -> str:
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
    return number(mean(values), 2), number(max(values), 1)


# The run over time: requests that wait and run, replicas that serve, and what happened.


def over_time(book: Book) -> str:
    runs = book.drawn
    grids = [run.loads.grid for run in runs]
    span = (min(grid.seconds(0) for grid in grids), max(grid.seconds(grid.bins) for grid in grids))
    series = {
        ("Requests that wait to begin", "requests waiting"): {run.label: _line(run, run.loads.waiting) for run in runs},
        ("Requests that run", "requests running"): {run.label: _line(run, run.loads.running) for run in runs},
        ("Replicas that serve", "replicas serving"): {run.label: _steps(run) for run in runs if run.replicas},
    }
    figures = [
        book.figure(title, lines(unit, points, span, book.colours, book.baseline))
        for (title, unit), points in series.items()
        if points
    ]
    rows = [row for run in runs for row in _events(run)]
    if rows:
        figures.append(book.figure("What happened", events(rows, span, book.colours)))
    heads = ["run", "waiting, mean", "fullest part", "running, mean", "fullest part", "until all was done"]
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


def _events(run: Digest) -> list[Json]:
    rows = [(event.kind, event.at_s, event.at_s, event.count, event.text) for event in run.events]
    for finding in run.findings:
        begin, end = (at / PS_PER_SECOND for at in (finding.at_ps, finding.until_ps))
        rows.append((finding.kind.replace("_", " "), begin, end, finding.count, finding.title))
    names = ("policy", "kind", "at", "until", "count", "said")
    return [dict(zip(names, (run.label, *row), strict=True)) for row in rows]


def _event_counts(book: Book) -> str:
    """How many events there were of each kind, as a table."""
    rows = []
    for run in book.drawn:
        for kind, same in group_by(run.events, lambda event: event.kind).items():
            first, last = (time_text(edge(event.at_s for event in same)) for edge in (min, max))
            rows.append([book.key(run.label), kind, count(sum(event.count for event in same)), first, last])
    return html.details("Events", html.table(["run", "what", "count", "first", "last"], rows)) if rows else ""
