"""Scale oscillation: a pool grows and shrinks back and forth.

A change is a reversal if it reverses the change before it within `OSCILLATION_PS`, as in `scaling.oscillations`.
Consecutive reversals of one pool form an episode, which needs at least `LEAST` reversals. Severity: the reversals
divided by `MANY`, at most 1.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from headway.results.findings.observed import CAUSE, Observed, duration, examples, many, seconds, span, worst
from headway.results.findings.remedies import autoscaler, more_replicas
from headway.results.recorder import ScaleRecord
from headway.results.records import SCALING, Finding, Suggestion, group_by
from headway.results.scaling import turns_back
from headway.results.time_split import QUEUED

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
            if len(episode) > LEAST:
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


def _episodes(changes: Sequence[ScaleRecord]) -> list[list[ScaleRecord]]:
    """Return series of consecutive changes in which every change after the first is a reversal."""
    episodes = [[changes[0]]]
    for change in changes[1:]:
        if turns_back(episodes[-1][-1], change):
            episodes[-1].append(change)
        else:
            episodes.append([change])
    return episodes


def _finding(run: Observed, pool: str, episode: list[ScaleRecord]) -> Finding:
    at, until = episode[0].at_ps, episode[-1].at_ps
    turns = len(episode) - 1
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
        explains=run.loss.share(run.loss.within(at, until), ("router", *QUEUED)),
        resource="replicas",
    )
