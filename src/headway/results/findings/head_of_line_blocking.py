"""Head-of-line blocking: a short prompt waits while its instance computes a much longer one.

The blocked time of a request is the time that `Waits.blocked_ps` returns. The figure `pathology.head_of_line_blocking`
of the summary uses the same definition. A request is blocked if its blocked time is at least `LEAST_PS` and at least
half of its wait. A run has one finding if at least `LEAST_SHARE` of the requests that waited at an instance are
blocked. Severity: the blocked time, divided by the time from arrival to first token of all requests that got a first
token.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from headway.results.findings.cluster_remedies import more_replicas
from headway.results.findings.observed import CAUSE, Observed, busiest, duration, examples, many, percent, seconds
from headway.results.findings.policy_remedies import balance, reject_late, use
from headway.results.records import SCHEDULER, Finding, Suggestion
from headway.results.waits import LONG_FACTOR
from headway.types import PS_PER_SECOND

KIND: Final = "head_of_line_blocking"
ROLE: Final = CAUSE
AREA: Final = "scheduling"
ORDER: Final = 10
YIELDS_TO: Final = ("runaway_session", "noisy_neighbour")  # they name who sends the long prompts
LEAST_PS: Final = PS_PER_SECOND // 10
LEAST_SHARE: Final = 0.01


def find(run: Observed) -> list[Finding]:
    requests, left = run.requests, run.waits.left_ps
    waited = sum(left[row] - requests.enqueued_ps[row] for row in run.waiting)
    # The summary knows how much of this time is blocked, but only as a float.
    share = run.summary.get("pathology", {}).get("head_of_line_blocking", 1.0) or 0.0
    if 1.001 * share * waited < LEAST_PS * max(1.0, LEAST_SHARE * len(run.waiting)):
        return []
    blocked = {row: time for row, time in run.waits.blocked_ps().items() if row >= run.warmup}
    mostly = {
        row: time
        for row, time in blocked.items()
        if time >= LEAST_PS and 2 * time >= left[row] - requests.enqueued_ps[row]
    }
    there = len(run.waiting) if mostly else 0
    if not mostly or len(mostly) < LEAST_SHARE * there:
        return []
    where = Counter(map(run.home, mostly))
    total, longest = sum(blocked.values()), max(mostly.values())
    pairs = requests.select("first_token_ps", "arrival_ps", start=run.warmup)
    until_first = sum(first - arrival for first, arrival in pairs if first >= 0)
    return [
        Finding(
            kind=KIND,
            at_ps=min(requests.enqueued_ps[row] for row in mostly),
            until_ps=max(left[row] for row in mostly),
            severity=min(1.0, total / until_first) if until_first else 1.0,
            count=len(mostly),
            title=(
                f"{len(mostly):,} of {many(there, 'request')} spent most of their wait at {run.names(where)} behind a "
                f"prompt at least {LONG_FACTOR} times as long as theirs, up to {duration(longest)} each; such blocking "
                f"is {percent(total / waited)} of all waiting time at instances."
            ),
            requests=examples((time, row) for row, time in mostly.items()),
            instances=busiest(where),
            evidence={
                "requests": there,
                "blocked": len(mostly),
                "blocked_s": seconds(total),
                "waited_s": seconds(waited),
                "share_of_wait": total / waited,
                "longest_s": seconds(longest),
            },
            explains=run.queue_loss(blocked),
            resource="prefill",
        )
    ]


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from use(run, SCHEDULER, "shortest-prefill", ", which starts short prompts before long ones")
    yield from balance(run)
    yield from more_replicas(run, finding, "prefill")
    yield from reject_late(run)
