"""Scale oscillation: a pool grows and shrinks back and forth.

A change is a reversal if it reverses the change before it within `OSCILLATION_PS`, as in `scaling.oscillations`. The
changes of one pool form an episode as long as the gaps between them are at most `OSCILLATION_PS`; it lasts from the
change before the first reversal to the last reversal. A finding needs at least `LEAST` reversals. Severity: the
reversals divided by `MANY`, at most 1.

A gap begins when the pool shrinks and ends when the replicas serve that it adds next. It also covers the time that
these replicas took to start, once more, because they have to work off the backlog. Of the loss of the requests that
were late in gaps, the finding explains the fraction that would not be late at the rate of late requests at other times.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from headway.results.findings.cluster_remedies import autoscaler, more_replicas
from headway.results.findings.observed import CAUSE, Observed, duration, examples, many, runs, seconds, span, worst
from headway.results.recorder import ScaleRecord
from headway.results.records import SCALING, Finding, Suggestion, group_by
from headway.results.scaling import OSCILLATION_PS, turns_back

KIND: Final = "scale_oscillation"
ROLE: Final = CAUSE
AREA: Final = "scaling"
ORDER: Final = 5
LEAST: Final = 2
MANY: Final = 10
# Parameters of scaling policies: how long the load must be low before a replica is removed.
DELAYS: Final = ("scale_down_delay_s", "down_window_s", "sustained_down_s", "cooldown_down_s", "rest_s")


def find(run: Observed) -> list[Finding]:
    findings = []
    for pool, changes in group_by(run.result.scaling_events, lambda change: change.pool).items():
        for episode in _episodes(changes):
            findings.append(_finding(run, pool, episode))
    return worst(findings)


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    figure = "scaling.oscillations"
    path, scaling = autoscaler(run, finding.evidence["pool"])
    for key in DELAYS:
        delay = scaling.get(key)
        if isinstance(delay, int | float):
            value = max(2 * delay, round(4 * finding.evidence["mean_interval_s"]))
            text = f"Scaling: raise {key} from {delay:g} to {value:g}, so that replicas are not removed too early."
            yield Suggestion(SCALING, {f"{path}.{key}": value}, figure, text)
    yield from more_replicas(run, finding, figure=figure)


def _episodes(changes: Sequence[ScaleRecord]) -> Iterator[list[ScaleRecord]]:
    """Yield the changes of each episode that has enough reversals."""
    for begin, end in runs([change.at_ps for change in changes], OSCILLATION_PS):
        places = [place for place in range(begin + 1, end) if turns_back(changes[place - 1], changes[place])]
        if len(places) >= LEAST:
            yield list(changes[places[0] - 1 : places[-1] + 1])


def _explains(run: Observed, episode: Sequence[ScaleRecord]) -> float:
    gaps: list[tuple[int, int]] = []
    shrunk = -1
    for change in episode:
        if change.after < change.before:
            shrunk = change.at_ps if shrunk < 0 else shrunk
        elif shrunk >= 0:
            wait = max((delay if delay >= 0 else run.ended_ps for delay in change.delays_ps), default=0)
            gaps.append((shrunk, change.at_ps + 2 * wait))
            shrunk = -1
    everywhere = [-1, *run.instances]  # -1: requests that no instance received
    late = run.late_during(gaps, everywhere)
    return run.loss.claim(dict.fromkeys(late, run.excess_late(gaps, everywhere)))


def _finding(run: Observed, pool: str, episode: list[ScaleRecord]) -> Finding:
    at, until = episode[0].at_ps, episode[-1].at_ps
    turns = sum(turns_back(first, second) for first, second in pairwise(episode))
    ups = sum(change.after > change.before for change in episode)
    sizes = [size for change in episode for size in (change.before, change.after)]
    fewest, most = min(sizes), max(sizes)
    requests = run.requests
    arrivals, first = requests.arrival_ps, requests.first_token_ps
    rows = range(bisect_left(arrivals, at), bisect_right(arrivals, until))
    slow = [(first[row] - arrivals[row], row) for row in rows if first[row] >= 0]
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=until,
        severity=min(1.0, turns / MANY),
        count=turns,
        title=(
            f"Pool {pool} changed direction {many(turns, 'time')} {span(at, until)}, on average every "
            f"{duration((until - at) // turns)}: it scaled up {many(ups, 'time')} and down "
            f"{many(len(episode) - ups, 'time')}, between {fewest} and {most} replicas."
        ),
        requests=examples(slow),
        evidence={
            "pool": pool,
            "changes": len(episode),
            "turns": turns,
            "ups": ups,
            "downs": len(episode) - ups,
            "fewest": fewest,
            "most": most,
            "mean_interval_s": seconds(until - at) / turns,
        },
        explains=_explains(run, episode),
        resource="replicas",
    )
