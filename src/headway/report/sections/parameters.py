"""Every parameter of the runs and every figure of their summaries, for those who want to look something up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from headway.experiment.verdict import written
from headway.report import html
from headway.report.book import Book
from headway.report.cases import Case, differing, flat
from headway.report.terminal import GAP
from headway.results.ranking import paths, value

RUNS: Final = 24  # columns of a table


def parameters(book: Book) -> str:
    cases = book.cases.cases
    scenarios = [case.scenario for case in cases]
    apart = differing(scenarios, ("name",)) if len(cases) > 1 else []
    common = [[key, _written(one)] for key, one in flat(scenarios[0]).items() if key not in apart]
    parts = [html.details("Every parameter", _words(["key", "value"], common))]
    if apart:
        tables = [flat(one) for one in scenarios[:RUNS]]
        rows = [[key, *(_written(table[key]) if key in table else GAP for table in tables)] for key in apart]
        parts.insert(0, html.details("Parameters in which the runs differ", _words(_heads("key", cases), rows)))
    parts.append(html.details("Every figure", _figures(cases)))
    return html.section("Parameters", *parts, name="parameters")


def _figures(cases: Sequence[Case]) -> str:
    names = dict.fromkeys(path for case in cases for path in paths(case.summary))
    rows = [[path, *(_number(value(case.summary, path)) for case in cases[:RUNS])] for path in names]
    return html.table(_heads("figure", cases), rows)


def _heads(first: str, cases: Sequence[Case]) -> list[str]:
    return [first, *(case.label for case in cases[:RUNS])]


def _words(heads: list[str], rows: list[list[str]]) -> str:
    return html.table(heads, rows).replace('class="wide"', 'class="wide words"', 1)


def _number(it: float | None) -> str:
    return GAP if it is None or it != it else "0" if not it else written(it)


def _written(it: Any) -> str:
    return it if isinstance(it, str) else msgspec.json.encode(it).decode()
