"""Where the load was: requests at each instance over time, and how full its KV cache was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headway.report import html
from headway.report.book import Book, side_by_side
from headway.report.charts.base import largest
from headway.report.charts.load import heat
from headway.report.digest import Digest
from headway.report.over_time import busiest, mean
from headway.report.terminal import number, percent

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
