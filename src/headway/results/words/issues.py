"""The issues of a run, worst first: findings, lost requests, ignored prefixes, and bursts of tenants."""

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from headway.results.findings import DETECTORS
from headway.results.records import Finding
from headway.results.survey import SHORT_QUEUE, Survey
from headway.results.words.material import MET, MISSED, UNCOUNTED, Material
from headway.results.words.phrases import Line, Parts, Section, count, join, number, percent, phrase
from headway.types import PS_PER_SECOND

WINDOWS: Final = 200  # maximum number of windows into which a run is divided
SHORTEST_PS: Final = PS_PER_SECOND
TIMES: Final = 3  # minimum ratio of the requests in a burst to the usual number of requests in a window
FEWEST: Final = 10  # minimum number of requests in a burst, and of misses of other tenants


class Burst(Struct, frozen=True):
    """The bursts of one tenant, and how many requests of other tenants missed their targets during these bursts and at
    other times."""

    tenant: str
    windows: int
    window_s: float
    at_ps: int  # time at which the window of the largest burst starts
    largest: int  # number of requests in the largest burst
    others_inside: int  # number of requests of other tenants that arrived in the window of a burst or in the next
    missed_inside: int  # number of requests in `others_inside` that missed their targets
    others_outside: int
    missed_outside: int

    @property
    def share(self) -> float:
        """The fraction of the other tenants' misses that happen during the bursts."""
        return self.missed_inside / (self.missed_inside + self.missed_outside)

    @property
    def rate_inside(self) -> float:
        return self.missed_inside / self.others_inside

    @property
    def rate_outside(self) -> float:
        return self.missed_outside / max(self.others_outside, 1)

    @property
    def matters(self) -> bool:
        return self.missed_inside >= FEWEST and self.share >= 0.1 and self.rate_inside >= 1.5 * self.rate_outside


def bursts(run: Material) -> list[Burst]:
    """Return the bursts of each tenant whose bursts harm other tenants: during the bursts, the other tenants miss their
    targets more often than at other times. The bursts with the most misses are first."""
    codes, words = run.tenants
    if len(set(words)) < 2 or run.rows <= run.warmup:
        return []
    arrivals = run.column("arrival_ps")
    begun_ps = arrivals[run.warmup]
    window_ps = max(SHORTEST_PS, (arrivals[run.rows - 1] - begun_ps) // WINDOWS + 1)
    # For each tenant, the number of requests and of misses in each window.
    sent: defaultdict[int, Counter[int]] = defaultdict(Counter)
    missed: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for row in range(run.warmup, run.rows):
        if run.missed[row] != UNCOUNTED:
            window = (arrivals[row] - begun_ps) // window_ps
            sent[codes[row]][window] += 1
            missed[codes[row]][window] += run.missed[row] == MISSED
    total, total_missed = sum(sent.values(), Counter[int]()), sum(missed.values(), Counter[int]())
    windows = max(total, default=0) + 1
    suffered = []
    for code, numbers in sent.items():
        usual = numbers.total() / windows
        high = {window: number for window, number in numbers.items() if number >= max(FEWEST, TIMES * usual)}
        if not high:
            continue
        inside = sorted({later for window in high for later in (window, window + 1)})
        others = sum(total[window] - numbers[window] for window in inside)
        lost = sum(total_missed[window] - missed[code][window] for window in inside)
        all_lost = total_missed.total() - missed[code].total()
        peak = max(high, key=lambda window: (high[window], -window))
        burst = Burst(
            tenant=words[code],
            windows=len(high),
            window_s=window_ps / PS_PER_SECOND,
            at_ps=begun_ps + peak * window_ps,
            largest=high[peak],
            others_inside=others,
            missed_inside=lost,
            others_outside=total.total() - numbers.total() - others,
            missed_outside=all_lost - lost,
        )
        if burst.matters:
            suffered.append(burst)
    return sorted(suffered, key=lambda burst: (-burst.missed_inside, burst.tenant))


# The area of each kind of issue.
AREAS: Final[dict[str, str]] = {
    **{detector.KIND: detector.AREA for detector in DETECTORS},
    "prefix_ignored": "routing",
    "prefix_passed": "routing",
    "bursts": "admission",
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

    @property
    def area(self) -> str:
        return AREAS.get(self.kind, OTHERWISE)


def issues(run: Material) -> list[Issue]:
    """Return all issues, worst first."""
    problems = [*_findings(run), *_losses(run), *_bursts(run)]
    if run.survey is not None and (ignored := _prefix_ignored(run, run.survey)) is not None:
        problems.append(ignored)
    return sorted(problems, key=lambda issue: -issue.severity)


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
    return Issue(finding.kind, finding.severity, phrase("{title:quote}", of=finding, source=source), details)


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
    return Issue(kind, min(1.0, severity), head, [pattern, (*parts, ".")])


def _bursts(run: Material) -> list[Issue]:
    problems = []
    word = "SLO misses" if run.has_slo else "losses"
    for burst in bursts(run):
        head = (
            f"bursts of tenant {{tenant:name}} coincide with {{share:percent}} of the other tenants' {word}"
            " ({missed_inside:count} requests)"
        )
        when = (
            "In {windows:count} windows of {window_s:seconds} it sent at least {} times its usual number of requests;"
            " the largest, from {at_ps:at}, had {largest:count}."
        )
        rates = (
            "Of the other tenants' requests, {rate_inside:percent} missed in or right after these windows,"
            " {rate_outside:percent} at other times."
        )
        source, times = f"burst.{burst.tenant}", number("constant.TIMES", TIMES)
        details = [phrase(when, times, of=burst, source=source), phrase(rates, of=burst, source=source)]
        problems.append(Issue("bursts", min(1.0, burst.share), phrase(head, of=burst, source=source), details))
    return problems


def explain_no_decisions(run: Material) -> Parts:
    """Explain why a section cannot describe any decisions."""
    if run.result.decisions is not None:
        return ("No request was routed.",)
    return ("Decisions were not traced: to record them, use `headway run --trace decisions`.",)
