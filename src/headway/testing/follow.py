"""Follows the suggestions of planted troubles: applies the first suggestion of the first-named cause, runs again, and
compares the figure that the suggestion names."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from headway.experiment.run import simulate
from headway.results.findings import first_cause
from headway.results.ranking import direction, value
from headway.results.records import Finding, Suggestion
from headway.testing.planted.trouble import Trouble


class Followed(Struct, frozen=True, kw_only=True):
    """The effect of a suggestion. Without a cause or a suggestion, all figures are None."""

    trouble: str
    severity: str
    seed: int
    finding: Finding | None  # the first-named cause
    suggestion: Suggestion | None
    before: float | None = None  # the figure of the suggestion, without and with its change
    after: float | None = None

    @property
    def improved(self) -> bool:
        if self.suggestion is None or self.before is None or self.after is None:
            return False
        better = self.after - self.before
        return better > 0 if direction(self.suggestion.figure) == "high" else better < 0


def follow(trouble: Trouble, severity: str, seed: int = 0, may: Iterable[str] | None = None) -> Followed:
    """Run a trouble, follow the first suggestion of the first-named cause, and run it again. `may` limits the stages
    of the suggestions."""
    scenario = trouble.build(severity, seed)
    result = simulate(scenario, progress=False)
    finding = first_cause(result.findings(may=None if may is None else list(may)))
    suggestion = finding.suggestions[0] if finding is not None and finding.suggestions else None
    known = Followed(trouble=trouble.name, severity=severity, seed=seed, finding=finding, suggestion=suggestion)
    if suggestion is None:
        return known
    again = simulate(scenario, overrides=suggestion.overrides(), progress=False)
    return Followed(
        trouble=trouble.name,
        severity=severity,
        seed=seed,
        finding=finding,
        suggestion=suggestion,
        before=value(result.summary(), suggestion.figure),
        after=value(again.summary(), suggestion.figure),
    )


def effects(cases: Iterable[Followed]) -> str:
    """Return the suggestions and their effect as a Markdown table, with the share of figures that improved below it."""
    lines = ["| Trouble | Severity | Cause | Suggestion | Figure | Before → after |", "|---|---|---|---|---|---|"]
    improved = suggested = 0
    for each in cases:
        cause = each.finding.kind if each.finding is not None else "none"
        if each.suggestion is None:
            lines.append(f"| {each.trouble} | {each.severity} | {cause} | none | | |")
            continue
        suggested += 1
        improved += each.improved
        effect = f"{_number(each.before)} → {_number(each.after)}"
        effect = effect if each.improved else f"**{effect}**"
        lines.append(
            f"| {each.trouble} | {each.severity} | {cause} | {each.suggestion.text} | `{each.suggestion.figure}` "
            f"| {effect} |"
        )
    share = f" ({improved / suggested:.0%})" if suggested else ""
    return "\n".join([*lines, "", f"Improved: {improved} of {suggested} figures{share}."])


def _number(figure: float | None) -> str:
    return "none" if figure is None else f"{figure:,.3g}" if abs(figure) < 1000 else f"{figure:,.0f}"
