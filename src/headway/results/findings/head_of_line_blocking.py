"""Head-of-line blocking: a short prompt waited while its instance computed a much longer one.

The time for which a request is blocked is the part of its wait at the instance during which a prompt is computed there
(from its first step to its first token, or to its handover) that is at least `LONG_FACTOR` times as long as its own and
no shorter than `LONG_TOKENS`, the tokens found in the cache not counted and the limit rounded up to a power of two: see
`Waits.blocked_ps`, which gives the summary's `pathology.head_of_line_blocking`, too.

A request is told of where that was `LEAST_PS` or more and half of its wait or more; the run, where they are
`LEAST_SHARE` of the requests that waited at an instance. One finding a run. Severity: the time for which requests were
blocked, over the time from arrival to first token of all requests that got one.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from headway.results.findings.observed import Observed, busiest, duration, examples, listed, many, percent, seconds
from headway.results.records import Finding
from headway.types import PS_PER_SECOND

KIND: Final = "head_of_line_blocking"
LEAST_PS: Final = PS_PER_SECOND // 10
LEAST_SHARE: Final = 0.01


def find(seen: Observed) -> list[Finding]:
    requests, left = seen.requests, seen.waits.left_ps
    blocked = {row: time for row, time in seen.waits.blocked_ps().items() if row >= seen.warmup}
    told = {
        row: time
        for row, time in blocked.items()
        if time >= LEAST_PS and 2 * time >= left[row] - requests.enqueued_ps[row]
    }
    if not told:
        return []
    there = len(seen.waiting)
    if len(told) < LEAST_SHARE * there:
        return []
    where = Counter(map(seen.home, told))
    waited = sum(left[row] - requests.enqueued_ps[row] for row in seen.waiting)
    total, longest = sum(blocked.values()), max(told.values())
    pairs = zip(requests.first_token_ps[seen.warmup :], requests.arrival_ps[seen.warmup :], strict=True)
    until_first = sum(first - arrival for first, arrival in pairs if first >= 0)
    names = [seen.name(instance) for instance in busiest(where)]
    return [
        Finding(
            kind=KIND,
            at_ps=min(requests.enqueued_ps[row] for row in told),
            until_ps=max(left[row] for row in told),
            severity=min(1.0, total / until_first) if until_first else 1.0,
            count=len(told),
            title=(
                f"{len(told):,} of {many(there, 'request')} waited mostly for a prompt several times as long as their "
                f"own, at {listed(names)}, up to {duration(longest)} each; {percent(total / waited)} of all the time "
                "that requests waited at instances went that way."
            ),
            requests=examples((time, row) for row, time in told.items()),
            instances=busiest(where),
            evidence={
                "requests": there,
                "blocked": len(told),
                "blocked_s": seconds(total),
                "waited_s": seconds(waited),
                "share_of_wait": total / waited,
                "longest_s": seconds(longest),
            },
        )
    ]
