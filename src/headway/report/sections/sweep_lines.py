"""The section on a sweep: goodput and TTFT against the varied key or, if no varied key is a quantity, goodput against
cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headway.report import html
from headway.report.cases import Case, Cases
from headway.report.charts import GREY, along, pareto, side_by_side
from headway.report.digest import Book
from headway.report.number_format import brief, money, number, percent
from headway.results.ranking import rank, value

NUMBER = re.compile(r"\s*([+-]?\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([^\d\s].*)?$")


class Sweep(Struct, frozen=True):
    """The runs of a sweep as lines of a chart. `path` is the varied key on the x axis; it is None if no varied key is a
    quantity. There is one line for each combination of the other varied keys: `lines` maps the line's name to its runs,
    each with its position on the x axis."""

    path: str | None
    unit: str
    lines: dict[str, list[tuple[float, Case]]]

    def table(self, cases: Cases) -> Cases:
        """Return the runs that the other parts of the page show, best first. Each run has the name of its line. If
        `path` is set, these are the runs at the position where the lines are furthest apart. Otherwise they are one run
        of each line."""
        if self.path is None:
            chosen, note = {name: runs[-1][1] for name, runs in self.lines.items()}, ""
        else:
            where = self.widest()
            chosen = self.at(where)
            note = f"All parts except the sweep show {self.path}={where:g}{self.unit}, where the runs differ most."
        own = [name for name, case in chosen.items() if case.label == cases.baseline]
        baseline = next(iter([*own, *chosen])) if len(chosen) > 1 else None
        ranked = rank([(name, case.summary) for name, case in chosen.items()])
        best_first = [replace(chosen[name], label=name) for name, _ in ranked]
        return replace(cases, cases=best_first, baseline=baseline, note=note)

    def at(self, place: float) -> dict[str, Case]:
        """Return the runs at one position on the x axis, by the name of their line."""
        return {name: case for name, runs in self.lines.items() for where, case in runs if where == place}

    def widest(self) -> float:
        """Return the position on the x axis where the lines are furthest apart in goodput ratio. On a tie, compare TTFT
        p99, and then choose the last position."""

        def spread(place: float, figure: str) -> float:
            figures = (value(case.summary, figure) for case in self.at(place).values())
            known = [each for each in figures if each is not None]
            return max(known) - min(known) if known else -1.0

        places = sorted({where for runs in self.lines.values() for where, _ in runs})
        return max(places, key=lambda at: (spread(at, "slo.goodput_ratio"), spread(at, "latency.ttft.p99"), at))


def sweep_of(cases: Cases) -> Sweep:
    path = _axis(cases)
    lines: dict[str, list[tuple[float, Case]]] = {}
    for case in cases.cases:
        place = _quantity(case.vary[path])[0] if path is not None else 0.0
        lines.setdefault(_line(case, cases, path), []).append((place, case))
    for runs in lines.values():
        runs.sort(key=lambda run: run[0])
    unit = "" if path is None else _quantity(cases.vary[path][0])[1]
    return Sweep(path, unit, lines)


def _axis(cases: Cases) -> str | None:
    """Return the varied key for the x axis, which must be a quantity in all runs: the arrival rate or, if that does not
    vary, the key with the most values."""
    paths = [
        path
        for path, values in cases.vary.items()
        if len(values) > 1
        and all(quantity(each) is not None for each in values)
        and all(path in case.vary for case in cases.cases)
    ]
    return max(paths, key=lambda path: (path.endswith("rate"), len(cases.vary[path])), default=None)


def _line(case: Case, cases: Cases, path: str | None) -> str:
    """Return the name of the line to which a run belongs: the run's label and varied keys, without the key on the x
    axis."""
    several = len({each.label for each in cases.cases}) > 1
    rest = [
        f"{key.rpartition('.')[2]}={setting}"
        for key, setting in case.vary.items()
        if key != path and not (several and key.startswith(f"policies.{cases.stage}"))
    ]
    return ", ".join([*([case.label] if several else []), *rest]) or case.label


def quantity(setting: Any) -> tuple[float, str] | None:
    """Return the number and the unit of 20, "20/s" or "250ms"; None if the setting is not a quantity."""
    if isinstance(setting, int | float) and not isinstance(setting, bool):
        return float(setting), ""
    match = NUMBER.fullmatch(setting) if isinstance(setting, str) else None
    return (float(match[1].replace("_", "")), match[2] or "") if match else None


def _quantity(setting: Any) -> tuple[float, str]:
    return quantity(setting) or (0.0, "")


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return for each point whether it is on the Pareto front, where low x and high y are better."""
    others = set(points)
    return [not any(x <= point[0] and y >= point[1] and (x, y) != point for x, y in others) for point in points]


GOODPUT, TTFT, COST = "slo.goodput_requests_per_s", "latency.ttft.p99", "cost.usd"


def sweep(book: Book, swept: Sweep) -> str:
    chart = _pareto(book, swept) if swept.path is None else along_axis(book, swept)
    return html.section("Sweep", book.legend(), chart, _table(book, swept), name="sweep")


LINES = (("Goodput", "goodput, requests/s", GOODPUT), ("TTFT p99", "TTFT p99, ms", TTFT))


def along_axis(book: Book, swept: Sweep, drawn: Sequence[tuple[str, str, str]] = LINES) -> str:
    """Return charts of figures (title, unit and path) against the varied key."""
    axis = f"{swept.path} ({swept.unit})" if swept.unit else f"{swept.path}"
    figures = []
    for title, unit, path in drawn:
        rows = [
            {"policy": name, "at": where, "value": brief(figure)}
            for name, runs in swept.lines.items()
            if name in book.colours
            for where, case in runs
            if (figure := value(case.summary, path)) is not None
        ]
        chart = along(axis, unit, rows, book.colours, book.baseline, log=path == TTFT)
        figures.append(book.figure(title, chart))
    return side_by_side(figures)


def _pareto(book: Book, swept: Sweep) -> str:
    cases = [(name, case) for name, runs in swept.lines.items() for _, case in runs]
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


def _table(book: Book, swept: Sweep) -> str:
    heads = ["run", swept.path or "", "goodput, requests/s", "good share", "TTFT p99, ms", "TPOT p99, ms", "cost, USD"]
    rows = []
    for name, runs in swept.lines.items():
        for _, case in runs:
            setting = case.vary.get(swept.path) if swept.path is not None else ""
            figures = (GOODPUT, "slo.goodput_ratio", TTFT, "latency.tpot.p99", COST)
            goodput, share, ttft, tpot, cost = (value(case.summary, path) for path in figures)
            cells = [number(goodput, 2), percent(share), number(ttft), number(tpot), money(cost)]
            rows.append([book.key(name), str(setting), *cells])
    return html.details("The same as a table", html.table(heads, rows))
