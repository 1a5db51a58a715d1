"""What somebody should know of the runs, in words, the gravest first."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

import msgspec

from headway.experiment.verdict import written
from headway.report import html
from headway.report.cases import Case, differing, flat
from headway.report.digest import Book, Digest
from headway.report.terminal import GAP, time_text
from headway.results.ranking import paths, value
from headway.results.records import Finding
from headway.types import PS_PER_SECOND

SHOWN: Final = 12  # of a run
GRAVE, NOTABLE = 0.6, 0.3  # severities from which on


def findings(book: Book) -> str:
    parts = []
    several = len(book.drawn) > 1
    for one in book.drawn:
        if several:
            parts.append(f"<h3>{book.key(one.label)}</h3>")
        if not one.findings:
            parts.append("<p>Nothing out of the ordinary was found.</p>")
        parts += [_finding(finding, one) for finding in one.findings[:SHOWN]]
        left = one.findings[SHOWN:]
        if left:
            parts.append(html.details(f"{len(left):,} more", *(_finding(finding, one) for finding in left)))
    return html.section("Findings", *parts, name="findings")


def _finding(found: Finding, one: Digest) -> str:
    grade = "grave" if found.severity >= GRAVE else "notable" if found.severity >= NOTABLE else "slight"
    begin, end = (time_text(at / PS_PER_SECOND) for at in (found.at_ps, found.until_ps))
    where = ", ".join(one.names.get(index, str(index)) for index in found.instances)
    said = [
        f"{found.kind.replace('_', ' ')}, severity {found.severity:.2f}",
        f"at {begin}" if begin == end else f"from {begin} to {end}",
        *([f"on {where}"] if where else []),
    ]
    evidence = [[name, _value(value)] for name, value in found.evidence.items()]
    if found.requests:
        evidence.append(["requests, for instance", ", ".join(map(str, found.requests))])
    table = html.details("Evidence", html.table(["figure", "value"], evidence)) if evidence else ""
    table = table.replace('class="wide"', 'class="wide words"', 1)
    return f'<div class="finding {grade}"><h3>{escape(found.title)}</h3><p>{escape("; ".join(said))}</p>{table}</div>'


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_value(inner)}" for name, inner in value.items())
    return str(value)


# Every parameter of the runs and every figure of their summaries, for those who want to look something up.

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
