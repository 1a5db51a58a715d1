"""What went wrong, the worst first: findings, and what the decisions and the tenants' bursts show beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from headway.results.records import Finding
from headway.results.survey import SHORT_QUEUE, Survey
from headway.results.words.material import MET, MISSED, UNCOUNTED, Material
from headway.results.words.phrases import (
    Line,
    Parts,
    Section,
    at,
    count,
    joined,
    name,
    number,
    percent,
    quoted,
    said,
    seconds,
)
from headway.types import PS_PER_SECOND

WINDOWS: Final = 200  # that a run is cut into, at most
SHORTEST_PS: Final = PS_PER_SECOND
TIMES: Final = 3  # the usual number of requests, in a burst
FEWEST: Final = 10  # requests of a burst, and misses of others worth a word


class Burst(Struct, frozen=True):
    """The bursts of one tenant."""

    tenant: str
    windows: int
    window_ps: int
    at_ps: int  # when the window of the largest began
    largest: int  # its requests
    others_inside: int  # requests of other tenants that came meanwhile or right after
    missed_inside: int  # and were not served as promised
    others_outside: int
    missed_outside: int

    @property
    def share(self) -> float:
        """Of what the others missed."""
        return self.missed_inside / (self.missed_inside + self.missed_outside)

    def rates(self) -> tuple[float, float]:
        """How many of the others' requests missed, meanwhile and otherwise."""
        return self.missed_inside / self.others_inside, self.missed_outside / max(self.others_outside, 1)


def bursts(run: Material) -> list[Burst]:
    """Of the tenants whose bursts others suffer from, that with most misses of others first."""
    codes, words = run.tenants
    if len(set(words)) < 2 or run.rows <= run.warmup:
        return []
    arrivals = run.column("arrival_ps")
    begun_ps = arrivals[run.warmup]
    window_ps = max(SHORTEST_PS, (arrivals[run.rows - 1] - begun_ps) // WINDOWS + 1)
    sent: Counter[tuple[int, int]] = Counter()
    missed: Counter[tuple[int, int]] = Counter()
    for row in range(run.warmup, run.rows):
        if run.missed[row] != UNCOUNTED:
            place = codes[row], (arrivals[row] - begun_ps) // window_ps
            sent[place] += 1
            missed[place] += run.missed[row] == MISSED
    windows = max((window for _, window in sent), default=0) + 1
    total, total_missed = _by_window(sent), _by_window(missed)
    own: dict[int, list[tuple[int, int]]] = {}
    for (code, window), requests in sorted(sent.items()):
        own.setdefault(code, []).append((window, requests))
    found = []
    for code, numbers in own.items():
        usual = sum(number for _, number in numbers) / windows
        high = [(window, number) for window, number in numbers if number >= max(FEWEST, TIMES * usual)]
        if not high:
            continue
        inside = sorted({later for window, _ in high for later in (window, window + 1)})
        others = [total[window] - sent[code, window] for window in inside]
        lost = [total_missed[window] - missed[code, window] for window in inside]
        all_others = sum(total.values()) - sum(number for _, number in numbers)
        all_lost = sum(total_missed.values()) - sum(missed[code, window] for window, _ in numbers)
        largest = max(high, key=lambda one: (one[1], -one[0]))
        burst = Burst(
            tenant=words[code],
            windows=len(high),
            window_ps=window_ps,
            at_ps=begun_ps + largest[0] * window_ps,
            largest=largest[1],
            others_inside=sum(others),
            missed_inside=sum(lost),
            others_outside=all_others - sum(others),
            missed_outside=all_lost - sum(lost),
        )
        if burst.missed_inside >= FEWEST and _matters(burst):
            found.append(burst)
    return sorted(found, key=lambda one: (-one.missed_inside, one.tenant))


def _by_window(counts: Counter[tuple[int, int]]) -> Counter[int]:
    found: Counter[int] = Counter()
    for (_, window), requests in counts.items():
        found[window] += requests
    return found


def _matters(burst: Burst) -> bool:
    inside, outside = burst.rates()
    return burst.share >= 0.1 and inside >= 1.5 * outside


# What an issue of each kind is about.
AREAS: Final = {
    "priority_inversion": "scheduling",
    "slo_violation": "latency",
    "cache_thrashing": "memory",
    "shadow_divergence": "cache",
    "scale_oscillation": "scaling",
    "pd_backpressure": "transfers",
    "preemption_storm": "memory",
    "herding": "routing",
    "hot_spot": "routing",
    "head_of_line_blocking": "scheduling",
    "starvation": "fairness",
    "saturation": "capacity",
    "prefix_ignored": "routing",
    "prefix_passed": "routing",
    "bursts": "admission",
    "turned_away": "admission",
    "timed_out": "latency",
    "failed": "capacity",
}
OTHERWISE: Final = "latency"
FOCUS: Final = tuple(sorted({*AREAS.values()}))
# Ends that are nobody's wish: the kind of issue, and what it is called.
LOSSES: Final = {
    "rejected": ("turned_away", "were turned away"),
    "timed_out": ("timed_out", "timed out"),
    "failed": ("failed", "failed"),
}
NAMED: Final = 5  # requests or instances of an issue that are named
AT_LEAST: Final = 0.05  # of the decisions against what was believed, to be an issue


class Issue(Struct, frozen=True):
    kind: str
    severity: float
    head: Parts
    details: list[Parts]

    @property
    def area(self) -> str:
        return AREAS.get(self.kind, OTHERWISE)


def issues(run: Material) -> list[Issue]:
    """All of them, the worst first."""
    found = [*_findings(run), *_losses(run), *_bursts(run)]
    if run.survey is not None and (ignored := _prefix_ignored(run, run.survey)) is not None:
        found.append(ignored)
    return sorted(found, key=lambda one: -one.severity)


def write_issues(run: Material, found: list[Issue], focus: Collection[str], examples: int) -> Section:
    """Those of the areas asked for, or all."""
    shown = [one for one in found if not focus or one.area in focus]
    title = said("## Key Issues ({} found)", count("issues.count", len(shown)))
    if not shown:
        where = f"in {', '.join(sorted(focus))}" if focus else "in this run"
        return Section(title, [Line((f"Nothing was found {where}.",), 8)])
    lines: list[Line] = []
    for place, issue in enumerate(shown):
        weight = 5 if place == 0 else 8 + place if place < examples else 40 + place
        lines.append(Line(said(f"{issue.area.upper()}: {{}}.", issue.head), weight))
        lines += [Line(parts, weight + 2 + turn, 1) for turn, parts in enumerate(issue.details)]
    left = len(found) - len(shown)
    if left:
        others = count("issues.elsewhere", left)
        lines.append(Line(said("{} more in other areas.", others), 60))
    return Section(title, lines, numbered=True)


# --- what others found -------------------------------------------------------------------------------------------


def _findings(run: Material) -> list[Issue]:
    """One issue a kind: its worst finding in full, the others counted."""
    kinds: dict[str, list[int]] = {}
    for place, finding in enumerate(run.findings):
        kinds.setdefault(finding.kind, []).append(place)
    return [_issue(run, places) for places in kinds.values()]


def _issue(run: Material, places: list[int]) -> Issue:
    finding = run.findings[places[0]]
    source = f"finding.{places[0]}"
    details = [_when(run, finding, source)]
    if len(places) > 1:
        more = count(f"findings.{finding.kind}.more", len(places) - 1)
        about = count(f"findings.{finding.kind}.count", sum(run.findings[place].count for place in places))
        details.append(said("{} more of this kind; {} requests or events in all.", more, about))
    return Issue(finding.kind, finding.severity, (quoted(f"{source}.title", finding.title),), details)


def _when(run: Material, finding: Finding, source: str) -> Parts:
    parts = said("From {}", at(f"{source}.at_ps", finding.at_ps))
    if finding.until_ps > finding.at_ps:
        parts += said(" to {}", at(f"{source}.until_ps", finding.until_ps))
    if finding.instances:
        some = [run.instance(index) for index in finding.instances[:NAMED]]
        parts += said(", on {}", joined(some))
    if finding.requests:
        some = [number(f"{source}.requests.{turn}", row) for turn, row in enumerate(finding.requests[:NAMED])]
        parts += said("; requests such as {}", joined(some))
    return (*parts, ".")


# --- who got nothing -----------------------------------------------------------------------------------------------


def _losses(run: Material) -> list[Issue]:
    """Requests that were turned away, gave up or failed, and why."""
    found = []
    requests = run.summary["requests"]
    for end, (kind, what) in LOSSES.items():
        if not requests[end]:
            continue
        share = requests[end] / requests["arrived"]
        head = said(
            f"{{}} of {{}} requests ({{}}) {what}",
            count(f"summary.requests.{end}", requests[end]),
            count("summary.requests.arrived", requests["arrived"]),
            percent(f"losses.{end}.share", share),
        )
        reasons = Counter(
            why for how, why in zip(run.column("outcome"), run.column("reason"), strict=True) if how == end
        )
        details = []
        why, times = min(reasons.items(), key=lambda one: (-one[1], one[0]))
        if why:
            told = quoted(f"losses.{end}.reason", why)
            details.append(said("Most often: {} ({} times).", told, count(f"losses.{end}.times", times)))
        found.append(Issue(kind, share, head, details))
    return found


# --- what decisions show -----------------------------------------------------------------------------------------


def _prefix_ignored(run: Material, survey: Survey) -> Issue | None:
    away, place = survey.away, "decisions.away"
    if away.count < AT_LEAST * survey.count:
        return None
    head = said(
        "{} of {} decisions routed a request away from an instance believed to hold more of its prefix, by {} tokens"
        " on average",
        count(f"{place}.count", away.count),
        count("decisions.count", survey.count),
        count(f"{place}.tokens_mean", round(away.tokens / away.count)),
    )
    details = []
    if away.deciders:
        scorer, times = min(away.deciders.items(), key=lambda one: (-one[1], one[0]))
        details.append(
            said(
                "Pattern: {} spoke most for the instance chosen in {} of them; in {} the instance passed over had fewer"
                " than {} queued.",
                name(f"{place}.decider", scorer),
                count(f"{place}.decided", times),
                count(f"{place}.short_queue", away.short_queue),
                number("constant.SHORT_QUEUE", SHORT_QUEUE),
            )
        )
    else:
        details.append(
            said(
                "Pattern: in {} of them the instance passed over had fewer than {} queued.",
                count(f"{place}.short_queue", away.short_queue),
                number("constant.SHORT_QUEUE", SHORT_QUEUE),
            )
        )
    parts = said("Result: {} of them found nothing cached", count(f"{place}.uncached", away.uncached))
    kind, severity = "prefix_ignored", 0.5 * away.count / survey.count
    if run.has_slo and away.judged:
        missed = run.missed.count(MISSED)
        rate, usual = away.missed / away.judged, missed / max(1, missed + run.missed.count(MET))
        parts += said(
            "; {} missed their SLO, against {} of all requests",
            percent(f"{place}.missed_rate", rate),
            percent("requests.missed_rate", usual),
        )
        if rate > usual:
            severity = max(severity / 2, away.missed / missed)
        else:  # it may have been right to
            kind, severity = "prefix_passed", severity / 4
    return Issue(kind, min(1.0, severity), head, [*details, (*parts, ".")])


def _bursts(run: Material) -> list[Issue]:
    found = []
    word = "SLO misses" if run.has_slo else "losses"
    for burst in bursts(run):
        place = f"burst.{burst.tenant}"
        head = said(
            f"bursts of tenant {{}} coincide with {{}} of the other tenants' {word} ({{}} requests)",
            name(f"{place}.tenant", burst.tenant),
            percent(f"{place}.share", burst.share),
            count(f"{place}.missed_inside", burst.missed_inside),
        )
        inside, outside = burst.rates()
        when = said(
            "In {} windows of {} it sent {} times its usual number or more; the largest, from {}, had {} requests.",
            count(f"{place}.windows", burst.windows),
            seconds(f"{place}.window_s", burst.window_ps / PS_PER_SECOND),
            number("constant.TIMES", TIMES),
            at(f"{place}.at_ps", burst.at_ps),
            count(f"{place}.largest", burst.largest),
        )
        rates = said(
            "Of the others' requests {} missed then or right after, {} otherwise.",
            percent(f"{place}.rate_inside", inside),
            percent(f"{place}.rate_outside", outside),
        )
        found.append(Issue("bursts", min(1.0, burst.share), head, [when, rates]))
    return found


def undecided(run: Material) -> Parts:
    """Why there is nothing to say of decisions."""
    if run.result.decisions is not None:
        return ("No request was routed.",)
    return ("Decisions were not traced: `headway run --trace decisions` writes them down.",)
