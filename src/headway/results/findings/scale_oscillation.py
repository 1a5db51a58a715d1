"""Scale oscillation: a pool was made larger and smaller again, back and forth.

A change of a pool's size turns back where the one before went the other way no more than `OSCILLATION_PS` (5 minutes)
earlier; the summary counts these as `scaling.oscillations`. Changes of one pool in a row each of which turns back are
an episode, and one in which `LEAST` or more do is told: up, down, up. Severity: how many, over `MANY`, at most 1.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from headway.results.findings.observed import Observed, duration, examples, many, seconds, span, worst
from headway.results.recorder import ScaleRecord
from headway.results.records import Finding
from headway.results.scaling import turns_back

KIND: Final = "scale_oscillation"
LEAST: Final = 2
MANY: Final = 10


def find(seen: Observed) -> list[Finding]:
    by_pool: dict[str, list[ScaleRecord]] = {}
    for one in seen.result.scaling_events:
        by_pool.setdefault(one.pool, []).append(one)
    found = []
    for pool, done in by_pool.items():
        for episode in _episodes(done):
            if len(episode) > LEAST:
                found.append(_finding(seen, pool, episode))
    return worst(found)


def _episodes(done: Sequence[ScaleRecord]) -> list[list[ScaleRecord]]:
    """Changes in a row, each of which but the first turns back."""
    found = [[done[0]]]
    for one in done[1:]:
        if turns_back(found[-1][-1], one):
            found[-1].append(one)
        else:
            found.append([one])
    return found


def _finding(seen: Observed, pool: str, episode: list[ScaleRecord]) -> Finding:
    at, until = episode[0].at_ps, episode[-1].at_ps
    turns = len(episode) - 1
    ups = sum(one.after > one.before for one in episode)
    fewest = min(min(one.before, one.after) for one in episode)
    most = max(max(one.before, one.after) for one in episode)
    requests = seen.requests
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
            f"{duration((until - at) // turns)}: {ups} up and {len(episode) - ups} down, between {fewest} and {most} "
            "replicas."
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
    )
