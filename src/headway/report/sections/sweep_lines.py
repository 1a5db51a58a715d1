"""What a sweep found: goodput and TTFT along the axis, or goodput against what it costs."""

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
from headway.report.terminal import brief, money, number, percent
from headway.results.ranking import rank, value
from headway.types import Json

# A sweep taken apart: along which quantity it goes, and which lines its runs make.

NUMBER = re.compile(r"\s*([+-]?\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([^\d\s].*)?$")


class Sweep(Struct, frozen=True):
    """`path` is what goes along the axis, None where nothing varied is a quantity; `lines` are the runs of each
    combination of what else varied, with where they lie on the axis."""

    path: str | None
    unit: str
    lines: dict[str, list[tuple[float, Case]]]

    def table(self, cases: Cases) -> Cases:
        """The runs to look at more closely, under the names of their lines and best first: where the lines lie furthest
        apart, or all where there is no axis."""
        if self.path is None:
            found, note = {name: runs[-1][1] for name, runs in self.lines.items()}, ""
        else:
            where = self.widest()
            found = self.at(where)
            note = f"All but the sweep itself is told at {self.path}={where:g}{self.unit}, where the runs differ most."
        own = [name for name, case in found.items() if case.label == cases.baseline]
        baseline = next(iter([*own, *found])) if len(found) > 1 else None
        ranked = rank([(name, case.summary) for name, case in found.items()])
        told = [replace(found[name], label=name) for name, _ in ranked]
        return replace(cases, cases=told, baseline=baseline, note=note)

    def at(self, place: float) -> dict[str, Case]:
        """The runs at one place of the axis, by line."""
        return {name: case for name, runs in self.lines.items() for where, case in runs if where == place}

    def widest(self) -> float:
        """Where on the axis the lines lie furthest apart, by the share of good requests and then by TTFT; the last such
        place."""

        def spread(place: float, figure: str) -> float:
            found = [value(case.summary, figure) for case in self.at(place).values()]
            known = [one for one in found if one is not None]
            return max(known) - min(known) if known else -1.0

        places = sorted({where for runs in self.lines.values() for where, _ in runs})
        return max(places, key=lambda at: (spread(at, "slo.goodput_ratio"), spread(at, "latency.ttft.p99"), at))


def sweep_of(cases: Cases) -> Sweep:
    path = _axis(cases)
    lines: dict[str, list[tuple[float, Case]]] = {}
    for case in cases.cases:
        place = quantity(case.vary[path])[0] if path is not None else 0.0
        lines.setdefault(_line(case, cases, path), []).append((place, case))
    for runs in lines.values():
        runs.sort(key=lambda run: run[0])
    unit = "" if path is None else quantity(cases.vary[path][0])[1]
    return Sweep(path, unit, lines)


def _axis(cases: Cases) -> str | None:
    """What varies and is a quantity everywhere: the rate of arrivals, or else what has the most values."""
    paths = [
        path
        for path, values in cases.vary.items()
        if len(values) > 1
        and all(_is_quantity(one) for one in values)
        and all(path in case.vary for case in cases.cases)
    ]
    return max(paths, key=lambda path: (path.endswith("rate"), len(cases.vary[path])), default=None)


def _line(case: Case, cases: Cases, path: str | None) -> str:
    """What a run is called but for its place on the axis."""
    several = len({one.label for one in cases.cases}) > 1
    rest = [
        f"{key.rpartition('.')[2]}={one}"
        for key, one in case.vary.items()
        if key != path and not (several and key.startswith(f"policies.{cases.stage}"))
    ]
    return ", ".join([*([case.label] if several else []), *rest]) or case.label


def _is_quantity(given: Any) -> bool:
    if isinstance(given, bool):
        return False
    return isinstance(given, int | float) or (isinstance(given, str) and NUMBER.fullmatch(given) is not None)


def quantity(given: Any) -> tuple[float, str]:
    """A number and its unit, from 20, "20/s" or "250ms"."""
    if isinstance(given, int | float):
        return float(given), ""
    found = NUMBER.fullmatch(given)
    return (float(found[1].replace("_", "")), found[2] or "") if found else (0.0, "")


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Of each point, low x and high y being better, whether no other is at least as good in both and better in one."""
    found = [False] * len(points)
    best: float | None = None
    for place in sorted(range(len(points)), key=lambda one: (points[one][0], -points[one][1])):
        height = points[place][1]
        twin = (
            best is not None
            and height == best
            and any(found[one] and points[one] == points[place] for one in range(len(points)))
        )
        if best is None or height > best or twin:
            found[place] = True
            best = height
    return found


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
