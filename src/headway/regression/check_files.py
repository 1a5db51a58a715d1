"""The verdict of a check as files: Markdown for a pull request, and JUnit XML for a CI server."""

from collections.abc import Iterable, Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from headway.regression.check_tables import (
    HEADINGS,
    change_row,
    condition_row,
    needed,
    sentences,
    title,
    turn_text,
)
from headway.regression.measure import OPEN, Measured
from headway.regression.verdict import Check

SUITE: Final = "headway check"
# Characters that XML forbids, for names and titles that contain them.
CONTROL: Final = dict.fromkeys([*range(9), 11, 12, *range(14, 32)], "\N{REPLACEMENT CHARACTER}")


def markdown(check: Check) -> str:
    """Return the verdict as Markdown: the verdict first, then the conditions, then the details."""
    first, *rest = sentences(check)
    lines = [f"### headway check: {_cell(first)}", "", _cell(title(check)), ""]
    lines += _table(["verdict", *HEADINGS[1:]], [_verdict_row(each) for each in check.conditions])
    if check.changes:
        lines += ["", "Changed most:", ""]
        lines += _table(("figure", "base → candidate", "change"), [change_row(each) for each in check.changes])
    for heading, turns in (("Findings that appeared:", check.appeared), ("Findings that went:", check.gone)):
        if turns:
            lines += ["", heading, "", *(f"* {_cell(turn_text(each))}" for each in turns)]
    return "\n".join([*lines, "", *(f"{_cell(line)}  " for line in rest)]).rstrip() + "\n"


def _verdict_row(each: Measured) -> list[str]:
    mark, *cells = condition_row(each)
    return [f"{mark} {each.outcome}", *cells]


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_line(headings), _line(["---"] * len(headings)), *map(_line, rows)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    for sign in ("\\", "|", "<", ">", "*", "_", "`"):
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def junit(check: Check) -> str:
    """Return the verdict as JUnit XML. A condition that holds is a failure, one that is open an error."""
    counts = {name: [each.outcome for each in check.conditions].count(name) for name in ("fail", OPEN)}
    numbers = {
        "tests": str(len(check.conditions)), "failures": str(counts["fail"]), "errors": str(counts[OPEN]),
    }  # fmt: skip
    root = Element("testsuites", numbers)
    suite = SubElement(root, "testsuite", {"name": SUITE, **numbers})
    for each in check.conditions:
        case = SubElement(suite, "testcase", {"classname": _text(title(check)), "name": _text(each.condition.text)})
        row = " | ".join(
            f"{heading} {cell}".strip() for heading, cell in zip(HEADINGS, condition_row(each), strict=True)
        )
        if each.outcome == "fail":
            SubElement(case, "failure", {"message": "the condition holds"}).text = _text(row)
        elif each.outcome == OPEN:
            SubElement(case, "error", {"message": _text(needed(each, check))}).text = _text(row)
        else:
            SubElement(case, "system-out").text = _text(row)
    SubElement(suite, "system-out").text = _text("\n".join(sentences(check)))
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _text(text: str) -> str:
    return text.translate(CONTROL)
