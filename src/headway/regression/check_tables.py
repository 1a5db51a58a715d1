"""The verdict of a check in the terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.errors import worded
from headway.experiment.paired import MOST
from headway.experiment.verdict import format_figure
from headway.regression.changes import Change, Turn
from headway.regression.conditions import Condition
from headway.regression.measure import OPEN, Measured
from headway.regression.verdict import Check
from headway.report.number_format import GAP
from headway.report.result_view import View
from headway.report.terminal import Fitted, label_column, table, wrap
from headway.results.figure_table import MS

MARKS: Final = {"pass": "✓", "fail": "✗", OPEN: "?"}
FIGURES: Final = ("change", "interval", "base", "candidate")  # columns; a narrow terminal drops the last two
HEADINGS: Final = ("", "fails if", *FIGURES)
UNITS: Final = {MS: " ms", "s": " s", "per second": "/s"}
ROUND: Final = 8  # a suggested number of pairs is a multiple of it


def check_view(check: Check) -> View:
    return View(report(check))


def report(check: Check) -> RenderableType:
    """Return the conditions as a table, what else changed, and the verdict."""
    labels = [HEADINGS[1], *(each.condition.text for each in check.conditions)]
    rows = Fitted(labels, FIGURES, lambda some, width: _conditions(check, some, width), fixed=FIGURES[:2])
    parts: list[RenderableType] = [Text(title(check), style="bold"), "", rows]
    if check.changes:
        parts += ["", Text("Changed most:")]
        parts += [table("", "", "", rows=[change_row(each) for each in check.changes], left=(0, 1, 2))]
    for heading, turns in (("Findings that appeared:", check.appeared), ("Findings that went:", check.gone)):
        if turns:
            parts += ["", Text(heading), *(Text(f"  {turn_text(each)}") for each in turns)]
    return Group(*parts, "", *map(Text, sentences(check)))


def title(check: Check) -> str:
    return f"{check.base} → {check.candidate}"


def _conditions(check: Check, columns: Sequence[str], width: int) -> Table:
    places = [HEADINGS.index(column) for column in columns]
    rows = [condition_row(each) for each in check.conditions]
    cells = [[row[0], wrap(row[1], width), *(row[place] for place in places)] for row in rows]
    grid = table(*HEADINGS[:2], *columns, rows=cells)
    label_column(grid, 1, width)
    return grid


def condition_row(each: Measured) -> list[str]:
    """Return the cells of a condition, as in HEADINGS."""
    condition, estimate = each.condition, each.estimate
    level = condition.kind == "level"
    means = [GAP if level else figure(each.base, condition), figure(each.candidate, condition)]
    head = [MARKS[each.outcome], condition.text]
    if estimate is None:
        return [*head, GAP, GAP, *means]
    mean, low, high = (amount(condition, value) for value in (estimate.mean, estimate.low, estimate.high))
    return [*head, GAP if level else mean, f"{low} to {high}", *means]


def figure(value: float | None, condition: Condition) -> str:
    return GAP if value is None else f"{format_figure(value)}{UNITS.get(condition.unit, '')}"


def amount(condition: Condition, value: float) -> str:
    """Write a value of the scale of the condition's numbers: a percentage, a change, or a level."""
    shown = condition.shown(value)
    if condition.kind == "relative":
        return percentage(shown)
    sign = "+" if condition.kind == "change" and shown > 0 else ""
    return f"{sign}{format_figure(shown)}"


def percentage(share: float) -> str:
    digits = 1 if abs(share) < 1 else 0
    return f"{100 * share:+,.{digits}f} %"


def change_row(each: Change) -> list[str]:
    word = "better" if each.better else "worse"
    values = f"{format_figure(each.base)} → {format_figure(each.candidate)}"
    return [each.figure, values, word if each.relative is None else f"{percentage(each.relative)}, {word}"]


def turn_text(turn: Turn) -> str:
    where = f" in {turn.workload}" if turn.workload else ""
    return f"{turn.kind}{where}: in {turn.base} of {turn.runs} runs before, in {turn.candidate} now. {turn.title}"


def sentences(check: Check) -> list[str]:
    """Return the verdict, what would be needed to tell, and the notes."""
    lines = [f"{MARKS[check.outcome]} {check.outcome.capitalize()}: {verdict(check)}"]
    if check.outcome == OPEN:
        lines += [needed(each, check) for each in check.conditions if each.outcome == OPEN]
    elif check.pairs:
        lines += [spread(each) for each in check.conditions if each.outcome == "fail" and each.workloads]
    return [*lines, *check.notes, *([method(check)] if check.pairs else [])]


def verdict(check: Check) -> str:
    some = [each for each in check.conditions if each.outcome == check.outcome]
    names = ", ".join(each.condition.text for each in some)
    if check.outcome == "pass":
        return "no condition holds."
    if check.outcome == "fail":
        return f"{names} {'hold' if len(some) > 1 else 'holds'}."
    return f"{names} {'are' if len(some) > 1 else 'is'} still open."


def needed(each: Measured, check: Check) -> str:
    """Say what would decide a condition that is open."""
    text = f"{each.condition.text}: "
    if each.estimate is None:
        return f"{text}{each.reason}."
    many = each.estimate.needed
    longer = "a longer trace" if check.unit == "windows" else "more seeds"
    if each.estimate.low == each.estimate.high:
        return f"{text}all {check.pairs} differences are equal, which says nothing of others; {many} would do."
    if many is None or (check.unit == "seeds" and many > MOST):
        return f"{text}the value is so close to the limit that {longer} will hardly tell. Choose another limit."
    many = max(-(-many // ROUND) * ROUND, check.pairs + ROUND)
    if check.unit == "seeds":
        return f"{text}about {many:,} seeds would tell. Use {option('seeds', many)}."
    return f"{text}about {many:,} windows would tell, instead of {check.pairs}. Use {longer}."


def option(name: str, value: int) -> str:
    return worded(f"--{name} {value}", f"{name}={value}")


def spread(each: Measured) -> str:
    """Name the workload with the largest change in the direction of the condition."""
    condition = each.condition
    ordered = sorted(each.workloads.items(), key=lambda pair: pair[1], reverse=condition.sign == ">")
    name, value = ordered[0]
    return f"{condition.text}: most in {name}, {amount(condition, value)}."


def method(check: Check) -> str:
    """Say how many runs there were and how sure the verdict is."""
    many = f" in {len(check.workloads)} workloads" if len(check.workloads) > 1 else ""
    most = f" of at most {check.most}" if check.most > check.pairs else ""
    unit = check.unit if check.pairs != 1 else check.unit.removesuffix("s")
    return (
        f"{check.pairs} {unit}{most}{many}, paired; at most {100 * check.error:g} % of such verdicts are wrong, "
        "whenever they stop."
    )
