"""Findings: problems of a run, with their time, the requests and instances affected, and the figures.

Each module that declares `KIND` detects one kind of finding, which the module's docstring and docs/findings.md define.
A module declares `KIND`, `ROLE`, `AREA`, the functions `find(run)` and `suggest(run, finding)`, and `ORDER`, its
position among findings of equal rank. To add a kind, add a module.

`suggest` returns changes of the scenario that should help, best first and for every stage that can help: the reader
chooses by stage. Each change is new for this run: `find` drops suggestions that would change nothing.
`cluster_remedies` and `policy_remedies` have the changes that several kinds suggest, and `run_settings` what they need
to know about the run.

The role of a kind is CAUSE if the finding names a specific cause, LIMIT if it names the resource that limits requests,
and SYMPTOM if it only describes what happened. Findings are ranked by the fraction of the run's loss that they explain,
times the weight of their role. So a cause is named before a limit if it explains at least half as much. A module may
declare `YIELDS_TO`: kinds that are more specific. If a finding of such a kind explains part of the loss, a finding of
this module explains only the rest.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from msgspec.structs import replace

from headway.results.findings.backlog import saturation
from headway.results.findings.observed import CAUSE, LIMIT, SYMPTOM, Observed, Run
from headway.results.findings.run_settings import changes_something, no_suggestions
from headway.results.records import NOTE, SEVERE, WARNING, Finding, Suggestion

__all__ = ["DETECTORS", "KINDS", "ROLES", "find", "first_cause", "saturation"]

_MODULES: Final = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
DETECTORS: Final = sorted((each for each in _MODULES if hasattr(each, "KIND")), key=lambda module: module.ORDER)
KINDS: Final = tuple(detector.KIND for detector in DETECTORS)
ROLES: Final[dict[str, str]] = {detector.KIND: detector.ROLE for detector in DETECTORS}
YIELDS_TO: Final[dict[str, tuple[str, ...]]] = {
    detector.KIND: getattr(detector, "YIELDS_TO", ()) for detector in DETECTORS
}
_SUGGEST: Final[dict[str, Callable[[Observed, Finding], Iterable[Suggestion]]]] = {
    detector.KIND: getattr(detector, "suggest", no_suggestions) for detector in DETECTORS
}
WEIGHTS: Final = {CAUSE: 1.0, LIMIT: 0.5, SYMPTOM: 0.1}
# The level of a finding, by the fraction of the run's requests that are late because of it.
SEVERE_FROM: Final = 0.2
WARNING_FROM: Final = 0.02
RANK_DIGITS: Final = 6  # explained fractions that differ by less are equal, so that the severity decides


def find(result: Run) -> list[Finding]:
    """Return all findings of a run, first the one that explains most of the loss; see `rank`."""
    run = Observed(result)
    findings = give_way([finding for detector in DETECTORS for finding in detector.find(run)])
    graded = [replace(each, level=level(each.explains * run.loss.late_share)) for each in findings]
    totals = total_by_kind(graded)
    run.findings = sorted(graded, key=lambda each: rank(each, totals[each.kind]))
    return [replace(each, suggestions=_suggestions(run, each)) for each in run.findings]


def _suggestions(run: Observed, finding: Finding) -> list[Suggestion]:
    """Return the suggestions for a finding, each change once. Leave out those that would change nothing, and those for
    stages without a setting in the run, such as the engines of live traffic."""
    suggestions: dict[str, Suggestion] = {}
    for each in _SUGGEST[finding.kind](run, finding):
        if changes_something(run.scenario, each.change):
            suggestions.setdefault(str(each.change), each)
    return list(suggestions.values())


def give_way(findings: list[Finding]) -> list[Finding]:
    """Reduce what findings explain by what findings of the kinds that they yield to explain."""
    explained = total_by_kind(findings)
    result = []
    for finding in findings:
        rest = finding.explains - sum(explained.get(kind, 0.0) for kind in YIELDS_TO[finding.kind])
        result.append(finding if rest >= finding.explains else replace(finding, explains=max(0.0, rest)))
    return result


def total_by_kind(findings: Iterable[Finding]) -> dict[str, float]:
    """Return what the findings of each kind explain together, at most 1. The findings of a limit do not add up, because
    each names another resource."""
    totals: dict[str, float] = {}
    for each in findings:
        known = totals.get(each.kind, 0.0)
        totals[each.kind] = max(known, each.explains) if ROLES[each.kind] == LIMIT else min(1.0, known + each.explains)
    return totals


def rank(finding: Finding, total: float | None = None) -> tuple[float, float, float, int, int]:
    """Return the sort key of a finding. `total` is what all findings of a cause's kind explain together. Findings that
    explain equally much are in order of severity, then of start."""
    weight = WEIGHTS[ROLES[finding.kind]]
    together = total if total is not None and ROLES[finding.kind] == CAUSE and finding.explains else finding.explains
    own = round(finding.explains * weight, RANK_DIGITS)
    return -round(together * weight, RANK_DIGITS), -own, -finding.severity, finding.at_ps, KINDS.index(finding.kind)


def level(share: float) -> str:
    return SEVERE if share >= SEVERE_FROM else WARNING if share >= WARNING_FROM else NOTE


def first_cause(findings: Iterable[Finding]) -> Finding | None:
    """Return the first finding that is not only a symptom."""
    return next((finding for finding in findings if ROLES[finding.kind] != SYMPTOM), None)
