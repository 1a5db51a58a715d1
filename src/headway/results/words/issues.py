"""The issues of a run, worst first: findings, lost requests, and ignored prefixes."""

from collections import Counter
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from headway.results.findings import DETECTORS, WEIGHTS, rank
from headway.results.findings.observed import LIMIT
from headway.results.records import Finding
from headway.results.sample import MET, MISSED
from headway.results.survey import SHORT_QUEUE, Survey
from headway.results.words.material import Material
from headway.results.words.phrases import Line, Parts, Section, count, join, number, percent, phrase

# The area of each kind of issue.
AREAS: Final[dict[str, str]] = {
    **{detector.KIND: detector.AREA for detector in DETECTORS},
    "prefix_ignored": "routing",
    "prefix_passed": "routing",
    "turned_away": "admission",
    "timed_out": "latency",
    "failed": "capacity",
}
OTHERWISE: Final = "latency"
FOCUS: Final = tuple(sorted({*AREAS.values()}))
# For each outcome of a lost request: the kind of issue, and the verb of its sentence.
LOSSES: Final = {
    "rejected": ("turned_away", "were rejected"),
    "timed_out": ("timed_out", "timed out"),
    "failed": ("failed", "failed"),
}
NAMED: Final = 5  # maximum number of requests or instances that an issue names
AT_LEAST: Final = 0.05  # minimum fraction of decisions that ignore a cached prefix, for an issue


class Issue(Struct, frozen=True):
    kind: str
    severity: float
    head: Parts
    details: list[Parts]
    rank: float = 0.0  # explained fraction of the run's loss, times the weight of a finding's role; see `findings`

    @property
    def area(self) -> str:
        return AREAS.get(self.kind, OTHERWISE)


def issues(run: Material) -> list[Issue]:
    """Return all issues, first those that explain most of the run's loss."""
    problems = [*_findings(run), *_losses(run)]
    if run.survey is not None and (ignored := _prefix_ignored(run, run.survey)) is not None:
        problems.append(ignored)
    return sorted(problems, key=lambda issue: (-issue.rank, -issue.severity))


def write_issues(run: Material, problems: list[Issue], focus: Collection[str], examples: int) -> Section:
    """Write the issues of the areas in `focus`, or all issues if it is empty."""
    chosen = [issue for issue in problems if not focus or issue.area in focus]
    title = phrase("## Key Issues ({} found)", count("issues.count", len(chosen)))
    if not chosen:
        where = f"in {', '.join(sorted(focus))}" if focus else "in this run"
        return Section(title, [Line((f"No issue {where}.",), 8)])
    lines: list[Line] = []
    for place, issue in enumerate(chosen):
        weight = 5 if place == 0 else 8 + place if place < examples else 40 + place
        lines.append(Line(phrase(f"{issue.area.upper()}: {{}}.", issue.head), weight))
        lines += [Line(parts, weight + 2 + turn, 1) for turn, parts in enumerate(issue.details)]
    if left := len(problems) - len(chosen):
        lines.append(Line(phrase("{} more issues in other areas.", count("issues.elsewhere", left)), 60))
    return Section(title, lines, numbered=True)


def _findings(run: Material) -> list[Issue]:
    """Return one issue per kind of finding: the worst finding in full, and the number of other findings."""
    kinds: dict[str, list[int]] = {}
    for place, finding in enumerate(run.findings):
        kinds.setdefault(finding.kind, []).append(place)
    return [_issue(run, places) for places in kinds.values()]


def _issue(run: Material, places: list[int]) -> Issue:
    finding = run.findings[places[0]]
    source = f"finding.{places[0]}"
    details = [_when(run, finding, source)]
    if len(places) > 1:
        counts = {"more": len(places) - 1, "count": sum(run.findings[place].count for place in places)}
        text = "{more:count} more of this kind; {count:count} requests or events in total."
        details.append(phrase(text, of=counts, source=f"findings.{finding.kind}"))
    head = phrase("{title:quote}", of=finding, source=source)
    return Issue(finding.kind, finding.severity, head, details, -rank(finding)[0])


def _when(run: Material, finding: Finding, source: str) -> Parts:
    text = "From {at_ps:at} to {until_ps:at}" if finding.until_ps > finding.at_ps else "From {at_ps:at}"
    parts = phrase(text, of=finding, source=source)
    if finding.instances:
        parts += phrase(", on {}", join([run.instance(index) for index in finding.instances[:NAMED]]))
    if finding.requests:
        some = [number(f"{source}.requests.{turn}", row) for turn, row in enumerate(finding.requests[:NAMED])]
        parts += phrase("; for example requests {}", join(some))
    return (*parts, ".")


def _losses(run: Material) -> list[Issue]:
    """Return an issue for rejected, timed-out and failed requests, with the most frequent reason."""
    problems = []
    requests = run.summary["requests"]
    for end, (kind, verb) in LOSSES.items():
        if not requests[end]:
            continue
        share = requests[end] / requests["arrived"]
        text = f"{{requests.{end}:count}} of {{requests.arrived:count}} requests ({{}}) {verb}"
        head = run.phrase(text, percent(f"losses.{end}.share", share))
        ends = zip(run.column("outcome"), run.column("reason"), strict=True)
        reasons = Counter(reason for outcome, reason in ends if outcome == end)
        reason, times = min(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
        most = phrase(
            "Most often: {reason:quote} ({times:count} times).",
            of={"reason": reason, "times": times},
            source=f"losses.{end}",
        )
        problems.append(Issue(kind, share, head, [most] if reason else []))
    return problems


def _prefix_ignored(run: Material, survey: Survey) -> Issue | None:
    away, place = survey.away, "decisions.away"
    if away.count < AT_LEAST * survey.count:
        return None
    head = phrase(
        "{} of {} decisions passed over an instance believed to cache more of the prefix, by {} tokens on average",
        count(f"{place}.count", away.count),
        count("decisions.count", survey.count),
        count(f"{place}.tokens_mean", round(away.tokens / away.count)),
    )
    short = phrase(
        "in {short_queue:count}{} the instance passed over had fewer than {} requests queued.",
        () if away.deciders else (" of them",),
        number("constant.SHORT_QUEUE", SHORT_QUEUE),
        of=away,
        source=place,
    )
    pattern = phrase("Pattern: {}", short)
    if away.deciders:
        scorer, times = min(away.deciders.items(), key=lambda pair: (-pair[1], pair[0]))
        pattern = phrase(
            "Pattern: in {decided:count} of them, scorer {decider:name} contributed most to the choice; {}",
            short,
            of={"decider": scorer, "decided": times},
            source=place,
        )
    parts = phrase("Result: {uncached:count} of them hit no cache", of=away, source=place)
    kind, severity = "prefix_ignored", 0.5 * away.count / survey.count
    if run.has_slo and away.judged:
        missed = run.missed.count(MISSED)
        rate, usual = away.missed / away.judged, missed / max(1, missed + run.missed.count(MET))
        parts += phrase(
            "; {} missed their SLO, against {} of all requests",
            percent(f"{place}.missed_rate", rate),
            percent("requests.missed_rate", usual),
        )
        if rate > usual:
            severity = max(severity / 2, away.missed / missed)
        else:  # ignoring the cached prefix did no harm
            kind, severity = "prefix_passed", severity / 4
    weight = WEIGHTS[LIMIT] if kind == "prefix_ignored" and run.has_slo else 0.0
    return Issue(kind, min(1.0, severity), head, [pattern, (*parts, ".")], weight * min(1.0, severity))


def explain_no_decisions(run: Material) -> Parts:
    """Explain why a section cannot describe any decisions."""
    if run.result.decisions is not None:
        return ("No request was routed.",)
    return ("Decisions were not traced: to record them, use `headway run --trace decisions`.",)
