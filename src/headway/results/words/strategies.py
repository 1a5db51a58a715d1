"""The ways to tell a run: which sections there are, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from msgspec import Struct

from headway.results.words import audit, counterfactuals, focus, issues, mining, worst
from headway.results.words.figures import Line, Section
from headway.results.words.issues import Issue
from headway.results.words.material import Material
from headway.results.words.outcome import outcome


class Ask(Struct, frozen=True):
    """What somebody wants to be told."""

    focus: Collection[str] = ()
    examples: int = 3
    counters: bool = True


Sections = list[Section]


def issue_focused(run: Material, found: list[Issue], ask: Ask) -> Sections:
    """The worst problems, each with its evidence."""
    decisions = worst.section(run, ask.examples) if ask.counters else None
    return [
        outcome(run),
        issues.section(run, found, ask.focus, ask.examples),
        *([counterfactuals.section(run)] if ask.counters else []),
        *([] if decisions is None else [decisions]),
        focus.section(run, found, ask.focus),
    ]


def decision_audit(run: Material, found: list[Issue], ask: Ask) -> Sections:
    """Decisions at even distances through the run, each with what was believed and what happened."""
    return [
        outcome(run),
        audit.section(run, ask.examples),
        *([counterfactuals.section(run)] if ask.counters else []),
        _later(issues.section(run, found, ask.focus, ask.examples)),
        focus.section(run, found, ask.focus),
    ]


def counterfactual(run: Material, found: list[Issue], ask: Ask) -> Sections:
    """What would have been had requests gone elsewhere, by gain."""
    return [
        outcome(run),
        counterfactuals.section(run),
        worst.imagined(run, ask.examples),
        _later(issues.section(run, found, ask.focus, ask.examples)),
        focus.section(run, found, ask.focus),
    ]


def pattern_mining(run: Material, found: list[Issue], ask: Ask) -> Sections:
    """Conditions that go with bad ends."""
    return [
        outcome(run),
        mining.section(run, ask.examples),
        *([counterfactuals.section(run)] if ask.counters else []),
        _later(issues.section(run, found, ask.focus, ask.examples)),
        focus.section(run, found, ask.focus),
    ]


def _later(section: Section) -> Section:
    """The section where it is not what was asked for first."""
    section.lines = [Line(line.parts, line.weight + 12, line.depth, line.bound) for line in section.lines]
    return section


STRATEGIES: Final[dict[str, Callable[[Material, list[Issue], Ask], Sections]]] = {
    "issue-focused": issue_focused,
    "decision-audit": decision_audit,
    "counterfactual": counterfactual,
    "pattern-mining": pattern_mining,
}
