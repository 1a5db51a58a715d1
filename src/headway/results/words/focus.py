"""Suggestions: the first one of each issue that the reader may follow."""

from collections.abc import Callable, Collection, Iterator
from typing import Final

import headway.policies  # noqa: F401  (registers the policies)
from headway.results.findings.cluster_remedies import more_retries
from headway.results.findings.observed import Observed
from headway.results.findings.policy_remedies import cached_prefixes, reject_late
from headway.results.findings.run_settings import name_of
from headway.results.records import ADMISSION, SCOPE, Suggestion
from headway.results.words.issues import AREAS, Issue
from headway.results.words.material import Material
from headway.results.words.phrases import Line, Parts, Section, percent, phrase


def write_focus(run: Material, problems: list[Issue], focus: Collection[str], stages: Collection[str]) -> Section:
    """Write the first suggestion for these stages of each kind of issue: first of the findings in their order, then of
    the other issues. A suggestion that several issues share is written once."""
    lines: list[Line] = []
    seen = set()
    for kind, source, suggestion in suggestions(run, problems, stages):
        if (not focus or AREAS[kind] in focus) and str(suggestion.change or suggestion.text) not in seen:
            seen.add(str(suggestion.change or suggestion.text))
            text = phrase("{text:quote}. It should improve {figure:name}.", of=suggestion, source=source)
            lines.append(Line(text, 6 + 3 * len(lines)))
    if not lines:
        lines.append(Line(_nothing(run, problems, stages), 14))
    return Section(("## Suggested Focus",), lines)


def suggestions(
    run: Material, problems: list[Issue], stages: Collection[str] = SCOPE
) -> Iterator[tuple[str, str, Suggestion]]:
    """Yield the first suggestion for these stages of each kind of issue, with the kind and the source of its text."""
    kinds = set()
    for place, finding in enumerate(run.findings):
        for turn, suggestion in enumerate(finding.suggestions):
            if suggestion.stage in stages and finding.kind not in kinds:
                kinds.add(finding.kind)
                yield finding.kind, f"finding.{place}.suggestions.{turn}", suggestion
    for issue in problems:
        if issue.kind in OTHERS:
            for turn, suggestion in enumerate(OTHERS[issue.kind](run.observed)):
                if suggestion.stage in stages:
                    yield issue.kind, f"issue.{issue.kind}.suggestions.{turn}", suggestion
                    break


def _nothing(run: Material, problems: list[Issue], stages: Collection[str]) -> Parts:
    if problems and set(stages) != set(SCOPE):
        return (f"No suggestion for {', '.join(stages)}: a change of another stage is needed.",)
    if problems:
        return ("No suggestion for these issues.",)
    if set(stages) != set(SCOPE):
        return ("No problem found; look at the worst decisions.",)
    if run.summary["requests"]["completed"]:
        shares = [instance["utilization"] for instance in run.summary["instances"]]
        busy = [share for share in shares if share is not None]
        if busy and max(busy) < 0.5:
            most = percent("instances.most_utilization", max(busy))
            return phrase(
                "No instance was busy more than {} of the time: check with `headway plan` whether fewer suffice.", most
            )
    return ("No problem found; try a higher load, or compare policies with `headway compare`.",)


def _turned_away(run: Observed) -> Iterator[Suggestion]:
    yield from reject_late(run)
    if name_of(run, ADMISSION) != "always":
        text = "Admission: use always, so that no request is rejected before it reaches an instance."
        yield Suggestion(ADMISSION, {"policies.admission": "always"}, "rates.admission", text)


# For each kind of issue that is no finding: its suggestions.
OTHERS: Final[dict[str, Callable[[Observed], Iterator[Suggestion]]]] = {
    "prefix_ignored": cached_prefixes,
    "turned_away": _turned_away,
    "timed_out": reject_late,
    "failed": more_retries,
}
