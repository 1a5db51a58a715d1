"""All parameters and figures of the runs."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from headway.display.displayed import flat
from headway.experiment.verdict import format_figure
from headway.report import html
from headway.report.cases import Case, differing
from headway.report.digest import Book
from headway.report.number_format import GAP
from headway.results.ranking import paths, value

RUNS: Final = 24  # maximum number of columns (runs) in a table


def parameters(book: Book) -> str:
    cases = book.cases.cases
    scenarios = [case.scenario for case in cases]
    apart = differing(scenarios, ("name",)) if len(cases) > 1 else []
    common = [[key, _plain(value)] for key, value in flat(scenarios[0]).items() if key not in apart]
    parts = [html.details("Every parameter", html.table(["key", "value"], common, "words"))]
    if apart:
        tables = [flat(scenario) for scenario in scenarios[:RUNS]]
        rows = [[key, *(_plain(table[key]) if key in table else GAP for table in tables)] for key in apart]
        parts.insert(
            0, html.details("Parameters in which the runs differ", html.table(_heads("key", cases), rows, "words"))
        )
    parts.append(html.details("Every figure", _figures(cases)))
    return html.section("Parameters", *parts, name="parameters")


def _figures(cases: Sequence[Case]) -> str:
    names = dict.fromkeys(path for case in cases for path in paths(case.summary))
    rows = [[path, *(_number(value(case.summary, path)) for case in cases[:RUNS])] for path in names]
    return html.table(_heads("figure", cases), rows)


def _heads(first: str, cases: Sequence[Case]) -> list[str]:
    return [first, *(case.label for case in cases[:RUNS])]


def _number(figure: float | None) -> str:
    return GAP if figure is None or figure != figure else "0" if not figure else format_figure(figure)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
