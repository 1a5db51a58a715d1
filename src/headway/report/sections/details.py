"""The findings of the runs, most severe first, and all their parameters and figures."""

from collections.abc import Sequence
from html import escape
from typing import Any, Final

import msgspec

from headway.display.displayed import flat
from headway.experiment.verdict import format_figure
from headway.report import html
from headway.report.cases import Case, differing
from headway.report.digest import Book, Digest
from headway.report.number_format import GAP, time_text
from headway.results.ranking import paths, value
from headway.results.records import Finding
from headway.types import PS_PER_SECOND

SHOWN: Final = 12  # maximum number of findings shown per run
GRAVE, NOTABLE = 0.6, 0.3  # minimum severity of grave and of notable findings


def findings(book: Book) -> str:
    parts = []
    for run in book.drawn:
        if len(book.drawn) > 1:
            parts.append(f"<h3>{book.key(run.label)}</h3>")
        if not run.findings:
            parts.append("<p>No findings.</p>")
        boxes = [_finding(finding, run) for finding in run.findings]
        parts += boxes[:SHOWN]
        if left := boxes[SHOWN:]:
            parts.append(html.details(f"{len(left):,} more", *left))
    return html.section("Findings", *parts, name="findings")


def _finding(finding: Finding, run: Digest) -> str:
    grade = "grave" if finding.severity >= GRAVE else "notable" if finding.severity >= NOTABLE else "slight"
    begin, end = (time_text(at / PS_PER_SECOND) for at in (finding.at_ps, finding.until_ps))
    where = ", ".join(run.names.get(index, str(index)) for index in finding.instances)
    about = [
        f"{finding.kind.replace('_', ' ')}, severity {finding.severity:.2f}",
        f"at {begin}" if begin == end else f"from {begin} to {end}",
        *([f"on {where}"] if where else []),
    ]
    evidence = [[name, _value(value)] for name, value in finding.evidence.items()]
    if finding.requests:
        evidence.append(["example requests", ", ".join(map(str, finding.requests))])
    table = html.details("Evidence", html.table(["figure", "value"], evidence, "words")) if evidence else ""
    title, notes = escape(finding.title), escape("; ".join(about))
    return f'<div class="finding {grade}"><h3>{title}</h3><p>{notes}</p>{table}</div>'


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
