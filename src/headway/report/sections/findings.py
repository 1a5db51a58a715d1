"""What somebody should know of the runs, in words, the gravest first."""

from __future__ import annotations

from html import escape
from typing import Any, Final

from headway.report import html
from headway.report.book import Book
from headway.report.digest import Digest
from headway.report.terminal import time_text
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
