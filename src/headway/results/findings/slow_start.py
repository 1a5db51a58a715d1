"""Slow start: requests are late while the replicas that the autoscaler added are not yet serving.

A start lasts from the autoscaler's decision until the replica serves requests. Starts that overlap form an episode. An
episode also covers the same length of time after its end, at most until the last arrival, in which the replicas work
off the backlog. An episode counts if the longest start took at least `LEAST_PS`.

Of the loss of the requests that were late in episodes, the finding explains the fraction that would not be late at the
rate of late requests outside of all episodes. Severity: the explained part of all counted requests.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from headway.results.findings.cluster_remedies import autoscaler, earlier_scaling, more_replicas
from headway.results.findings.observed import CAUSE, Observed, duration, many, percent, seconds, span, worst
from headway.results.findings.run_settings import aim
from headway.results.records import SCALING, Blame, Finding, Suggestion, group_by
from headway.types import PS_PER_SECOND

KIND: Final = "slow_start"
ROLE: Final = CAUSE
AREA: Final = "scaling"
ORDER: Final = 25
YIELDS_TO: Final = ("scale_oscillation",)  # the replicas had been removed shortly before
LEAST_PS: Final = PS_PER_SECOND
FEWEST: Final = 5


class Episode(NamedTuple):
    begin_ps: int
    end_ps: int  # when the last replica of the episode served requests
    longest_ps: int
    replicas: int


def find(run: Observed) -> list[Finding]:
    findings = []
    for pool, changes in sorted(group_by(run.result.scaling_events, lambda change: change.pool).items()):
        starts = sorted(
            (change.at_ps, change.at_ps + delay if delay >= 0 else run.ended_ps)
            for change in changes
            if change.after > change.before
            for delay in change.delays_ps
        )
        episodes = [each for each in _episodes(starts) if each.longest_ps >= LEAST_PS]
        finding = _finding(run, pool, episodes) if episodes else None
        if finding:
            findings.append(finding)
    return worst(findings)


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from more_replicas(run, finding)
    path, scaling = autoscaler(run, finding.evidence["pool"])
    target = scaling.get("target")
    if isinstance(target, int | float):
        text = (
            f"Scaling: lower target from {target:g} to {target / 2:g}, so that replicas start before they are needed."
        )
        yield Suggestion(SCALING, {f"{path}.target": target / 2}, aim(run), text)
    yield from earlier_scaling(run)


def _episodes(starts: list[tuple[int, int]]) -> Iterator[Episode]:
    known: Episode | None = None
    for begin, end in starts:
        if known and begin <= known.end_ps:
            longest = max(known.longest_ps, end - begin)
            known = Episode(known.begin_ps, max(known.end_ps, end), longest, known.replicas + 1)
        else:
            if known:
                yield known
            known = Episode(begin, end, end - begin, 1)
    if known:
        yield known


def _finding(run: Observed, pool: str, episodes: list[Episode]) -> Finding | None:
    last = run.requests.arrival_ps[len(run.requests) - 1]
    periods = [(each.begin_ps, max(each.end_ps, min(2 * each.end_ps - each.begin_ps, last + 1))) for each in episodes]
    everywhere = [-1, *run.instances]  # -1: requests that no instance received
    late = run.late_during(periods, everywhere)
    if len(late) < FEWEST:
        return None
    excess = run.excess_late(periods, everywhere)
    explains = run.loss.claim(dict.fromkeys(late, excess))
    worst_one = max(
        episodes, key=lambda each: sum(each.begin_ps <= run.requests.arrival_ps[row] < each.end_ps for row in late)
    )
    count = run.loss.count(len(late))
    replicas = sum(each.replicas for each in episodes)
    longest = max(each.longest_ps for each in episodes)
    return Finding(
        kind=KIND,
        at_ps=periods[0][0],
        until_ps=min(periods[-1][1], run.ended_ps),
        severity=explains * run.loss.late_share,
        count=count,
        title=(
            f"{many(count, 'late request')} arrived or waited while {many(replicas, 'replica')} of pool {pool} "
            f"started, which took up to {duration(longest)} each; most of them "
            f"{span(worst_one.begin_ps, worst_one.end_ps)}. This explains {percent(explains)} of the loss."
        ),
        requests=run.slowest(row for row in late if run.requests.enqueued_ps[row] >= 0),
        evidence={
            "pool": pool,
            "replicas": replicas,
            "longest_s": seconds(longest),
            "late": count,
            "excess": excess,
        },
        explains=explains,
        resource="replicas",
        blames=[Blame("pool", pool, 1.0)] if pool and pool != "default" else [],
    )
