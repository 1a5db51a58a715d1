"""The data of one run that a page needs, small enough to keep several runs in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import fsum
from typing import Final

from msgspec import Struct

from headway.report import html
from headway.report.cases import Cases
from headway.report.charts import figure, legend, palette
from headway.report.number_format import brief
from headway.report.over_time import Loads, coarse, loads
from headway.results.decisions import Decision, scorer_weights
from headway.results.findings.observed import Observed
from headway.results.records import Counterfactual, Finding, best_alternatives
from headway.results.result import Result
from headway.results.scaling import levels
from headway.results.statistics import PS_PER_MS, Spread, spread_of
from headway.results.survey import best_estimate, survey
from headway.results.time_grid import Grid
from headway.types import PS_PER_SECOND, SERVING, Json

WORST: Final = 10
MOST: Final = 100_000  # maximum number of decisions to read; if a run has more, evenly spaced decisions are read
EDGES_MS: Final = (-300, -100, -30, -10, -3, -1, 1, 3, 10, 30, 100, 300, 1000)
CLASSES: Final = (
    f"below {EDGES_MS[0]}",
    *("within ±1" if high == 1 else f"{low} to {high}" for low, high in pairwise(EDGES_MS)),
    f"above {EDGES_MS[-1]:,}",
)


class Regrets(Struct, frozen=True):
    """Statistics of the regret of decisions: how much earlier the best candidate would have given the first token."""

    counts: list[int]  # number of decisions in each class of regret, in the order of CLASSES
    some: int  # number of decisions with regret
    spread: Spread  # statistics of the regret, in milliseconds

    @property
    def total(self) -> int:
        return sum(self.counts)


class Bad(Struct, frozen=True):
    """One of the worst decisions."""

    decision: Decision
    estimated_ps: int
    best: int  # index of the best instance according to the latency model
    true_ps: int | None  # regret according to simulations; None if no alternative was simulated

    @property
    def regret_ps(self) -> int:
        return self.estimated_ps if self.true_ps is None else self.true_ps


class Decided(Struct, frozen=True):
    """The decisions of one run."""

    count: int
    step: int  # every `step`-th decision was read
    # For each scorer: its weight times (score of the chosen candidate − mean score of all candidates).
    contributions: dict[str, float]
    estimated: Regrets
    true: Regrets | None
    worst: list[Bad]


def digest_decisions(result: Result) -> Decided | None:
    """Return the figures of a run's decisions; None if they were not traced."""
    decisions = result.decisions
    if decisions is None or not len(decisions):
        return None
    best = best_alternatives(result.counterfactuals)
    tried = {request: result.counterfactuals[place] for request, place in best.items()}
    step = -(-len(decisions) // MOST)
    looked = survey(result, step=step)
    weights = scorer_weights(result.scenario["policies"]["routing"])
    whole = fsum(map(abs, weights.values())) or 1.0
    places = [place for _, place in looked.worst]
    places += [place for each in tried.values() if (place := decisions.find(each.at_ps, each.request)) is not None]
    worst = [_bad(decisions[place], tried) for place in dict.fromkeys(places)]
    worst = sorted(
        (bad for bad in worst if bad.regret_ps > 0),
        key=lambda bad: (-bad.regret_ps, bad.decision.request, bad.decision.at_ps),
    )
    true = [each.regret_ps or 0 for each in tried.values()]
    return Decided(
        count=len(decisions),
        step=step,
        contributions={
            name: weights.get(name, whole) / whole * fsum(all_) / len(all_) for name, all_ in looked.arguments.items()
        },
        estimated=regrets(looked.regrets_ps),
        true=regrets(true) if true else None,
        worst=worst[:WORST],
    )


def regrets(regrets_ps: Sequence[int]) -> Regrets:
    counts = [0] * len(CLASSES)
    edges = [edge * PS_PER_MS for edge in EDGES_MS]
    for regret in regrets_ps:
        counts[bisect_left(edges, regret)] += 1
    return Regrets(counts, sum(regret > 0 for regret in regrets_ps), spread_of(regrets_ps))


def _bad(decision: Decision, tried: Mapping[int, Counterfactual]) -> Bad:
    again = tried.get(decision.request)
    true_ps = again.regret_ps or 0 if again is not None and again.at_ps == decision.at_ps else None
    best = decision.candidates[best_estimate(decision)]
    return Bad(decision, decision.estimated_regret_ps() or 0, best, true_ps)


class Book:
    """The input of a report's sections: the runs and their colours. The book also numbers the charts."""

    def __init__(self, cases: Cases, drawn: Sequence[Digest], note: str = "") -> None:
        self.cases = cases  # the runs that tables show
        self.drawn = list(drawn)  # the runs that charts show
        self.note = note  # says which runs the charts show; empty if they show all runs
        self.baseline = cases.baseline
        self.colours = palette((run.label for run in drawn), self.baseline)
        self.figures: list[tuple[str, Json]] = []  # title and specification of each chart so far

    def legend(self) -> str:
        return legend(self.colours, self.baseline)

    def figure(self, title: str, chart: Json) -> str:
        """Return a chart with its title."""
        self.figures.append((title, chart))
        return figure(f"chart-{len(self.figures)}", title, chart)

    def key(self, label: str) -> html.Markup:
        """Return a policy's name, preceded by its colour if charts show the policy."""
        colour = self.colours.get(label)
        mark = f'<span class="key" style="background:{colour}"></span>' if colour and len(self.colours) > 1 else ""
        return html.unbroken(label, mark)


CELLS: Final = 10  # number of cells per side of a calibration chart
POINTS: Final = 120  # maximum number of points of a curve, without the points of its tail
TAIL: Final = (0.992, 0.995, 0.997, 0.998, 0.999, 0.9995, 0.9999)  # quantiles of the points in a curve's tail

Curve = list[tuple[float, float]]  # points: a time in ms, and the fraction of requests at or below it


class Event(Struct, frozen=True):
    """An event of the cluster, or several events of one kind in one interval of the run."""

    kind: str
    at_s: float
    count: int
    text: str = ""


class Affected(Struct, frozen=True):
    """A request that a finding names."""

    at_s: float
    instance: int  # index of its instance; -1 if it was never sent to one
    tenant: str
    outcome: str
    ttft_ms: float | None
    e2e_ms: float | None
    times: dict[str, float]  # seconds in each part of its time, see `time_split`
    reason: str  # the reason of its last routing decision; empty if decisions were not traced


class Digest(Struct, frozen=True):
    """The data of one run for its charts."""

    label: str
    folder: str  # path of the run folder; empty if the run has no folder
    summary: Json
    names: dict[int, str]  # names of the instances, by index
    curves: dict[str, Curve]
    loads: Loads
    kv: dict[int, list[float | None]]  # instance -> fraction of its GPU blocks in use, per interval
    replicas: list[tuple[float, int]]  # time in seconds, and number of serving replicas from that time on
    events: list[Event]
    calibration: dict[tuple[int, int], int]  # (believed, actual) cached fraction in tenths -> number of requests
    decided: Decided | None
    findings: list[Finding]
    late_times: dict[str, float]  # mean seconds of the late requests in each part of their time, see `time_split`
    affected: dict[int, Affected] = {}  # the requests that the findings name, by number


def digest(label: str, result: Result, folder: str = "") -> Digest:
    load = loads(result)
    run = Observed(result)
    findings = result.findings()
    return Digest(
        label=label,
        folder=folder,
        summary=result.summary(),
        names=result.instance_ids(),
        curves=curves(run),
        loads=load,
        kv=_kv(result, load.grid),
        replicas=[(level.at_ps / PS_PER_SECOND, level.serving) for level in levels(result.states)],
        events=_events(result, load.grid),
        calibration=calibration(result) if "shadow" in result.summary() else {},
        decided=digest_decisions(result),
        findings=findings,
        affected=affected(run, result, sorted({row for each in findings for row in each.requests})),
        late_times=late_times(run),
    )


def curves(run: Observed) -> dict[str, Curve]:
    """Return the distributions of the completed requests after the warm-up."""
    sample = run.sample
    return {"ttft": curve(sample.ttft_ps), "tpot": curve(sample.tpot_ps()), "e2e": curve(sample.e2e_ps)}


def late_times(run: Observed) -> dict[str, float]:
    late = run.loss.late
    return {part: time / PS_PER_SECOND / len(late) for part, time in run.split.total(late).items()} if late else {}


def affected(run: Observed, result: Result, rows: Sequence[int]) -> dict[int, Affected]:
    names = ("arrival_ps", "instance", "tenant", "outcome", "first_token_ps", "finished_ps")
    columns = [result.requests.column(name) for name in names]
    reasons = _reasons(result, rows)
    found = {}
    for row in rows:
        arrival, instance, tenant, outcome, first, ended = (column[row] for column in columns)
        found[row] = Affected(
            at_s=arrival / PS_PER_SECOND,
            instance=instance,
            tenant=tenant,
            outcome=outcome,
            ttft_ms=(first - arrival) / PS_PER_MS if first >= 0 else None,
            e2e_ms=(ended - arrival) / PS_PER_MS if outcome == "completed" else None,
            times={part: time / PS_PER_SECOND for part, time in run.split.of(row).items()},
            reason=reasons.get(row, ""),
        )
    return found


def _reasons(result: Result, rows: Sequence[int]) -> dict[int, str]:
    """Return the reason of the last routing decision on each of these requests."""
    decisions = result.decisions
    if decisions is None:
        return {}
    wanted = frozenset(rows)
    last = {request: place for place, (request, _) in enumerate(decisions.choices()) if request in wanted}
    return {request: decisions[place].reason for request, place in last.items()}


def curve(values_ps: Sequence[float]) -> Curve:
    """Return points of the cumulative distribution: sorted values at evenly spaced ranks, with additional points in the
    tail."""
    ordered = sorted(values_ps)
    count = len(ordered)
    if not count:
        return []
    steps = min(POINTS, count)
    ranks = {count * place // steps for place in range(steps)} | {count - 1}
    ranks |= {min(count - 1, int(share * count)) for share in TAIL}
    return [(brief(ordered[rank] / PS_PER_MS), brief((rank + 1) / count)) for rank in sorted(ranks)]


def calibration(result: Result) -> dict[tuple[int, int], int]:
    """Count the requests by two fractions of their prompts, in tenths: the fraction that the router believed to be
    cached, and the fraction that was cached."""
    cells: Counter[tuple[int, int]] = Counter()
    names = ("started_ps", "prompt_tokens", "predicted_tokens", "cached_tokens")
    for started, prompt, believed, cached in zip(*(result.requests.column(name) for name in names), strict=True):
        if started >= 0 and prompt > 0:
            cells[_tenth(believed, prompt), _tenth(cached, prompt)] += 1
    return dict(sorted(cells.items()))


def _tenth(part: int, whole: int) -> int:
    return min(CELLS - 1, CELLS * part // whole)


def _kv(result: Result, grid: Grid) -> dict[int, list[float | None]]:
    instances = result.instances()
    shares = {}
    for series in result.series:
        whole = instances.get(series.instance, {}).get("kv_blocks")
        if series.name == "kv_used" and whole:
            values = coarse(series, grid)
            shares[series.instance] = [None if value is None else brief(value / whole) for value in values]
    return shares


def _events(result: Result, grid: Grid) -> list[Event]:
    """Return one entry per scaling action and fault. Preemptions and thrashing are grouped by interval of the run."""
    events = []
    for scaled in result.scaling_events:
        kind = "scaled up" if scaled.after > scaled.before else "scaled down"
        text = f"{scaled.pool}: {scaled.before} to {scaled.after}" + (f", {scaled.reason}" if scaled.reason else "")
        events.append(Event(kind, scaled.at_ps / PS_PER_SECOND, abs(scaled.after - scaled.before), text))
    names, before = result.instance_ids(), dict[int, str]()
    for change in result.states:
        # An instance that stops without draining first has crashed.
        crashed = change.state == "stopped" and before.get(change.instance) in SERVING
        if crashed or change.state == "unreachable":
            kind = "crashed" if crashed else "unreachable"
            events.append(Event(kind, change.at_ps / PS_PER_SECOND, 1, names.get(change.instance, "")))
        before[change.instance] = change.state
    for kind, records in (("preempted", result.preemptions), ("thrashed", result.thrashes)):
        counts = Counter((record.at_ps - grid.start_ps) // grid.step_ps for record in records)
        events += [Event(kind, grid.seconds(part), count) for part, count in counts.items()]
    return events
