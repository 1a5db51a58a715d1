"""Retry storm: clients send failed requests again, and these attempts are so much work that more requests fail.

A retry is a further attempt of the same turn of a session. If requests have no session, a retry is a request that
arrives exactly when the clients' `retry` setting sends a failed request of the same tenant and length again.

Retries explain the whole loss of a late request that is a retry, because without retries it would not exist. Another
late request is compared with the requests that arrived from `NEAR_PS` before it until its end; the work of a request is
its computed prompt tokens and its output tokens. If at least `SHARE` of the work is due to retries, and the rest per
second is at most `SERVED` times the median of requests that met their targets without retries around them, then retries
explain its whole loss: the first attempts alone would have been served. Otherwise they explain the fraction of the work
that is due to them.

There is a finding if at least `LEAST` retries are at least `SHARE` of the requests that arrived from the first retry to
the last. Severity: the fraction of retries among all counted requests.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from statistics import median
from typing import Final

from headway.config.units import duration_ps
from headway.results.findings.cluster_remedies import more_replicas
from headway.results.findings.observed import CAUSE, Observed, many, percent, seconds, span
from headway.results.findings.policy_remedies import reject_late
from headway.results.recorder import FAILED, REJECTED, TIMED_OUT
from headway.results.records import Blame, Finding, Suggestion
from headway.results.sample import MET
from headway.types import PS_PER_SECOND

KIND: Final = "retry_storm"
ROLE: Final = CAUSE
AREA: Final = "admission"
ORDER: Final = 26
LEAST: Final = 10
SHARE: Final = 0.1
SERVED: Final = 1.25
LOST: Final = (REJECTED, TIMED_OUT, FAILED)
NEAR_PS: Final = 5 * PS_PER_SECOND


def find(run: Observed) -> list[Finding]:
    retries = _retries(run)
    if len(retries) < LEAST or not run.loss.late:
        return []
    requests = run.requests
    arrivals = requests.arrival_ps
    at, until = arrivals[retries[0]], arrivals[retries[-1]]
    inside = bisect_left(arrivals, until + 1) - bisect_left(arrivals, at)
    if len(retries) < SHARE * inside:
        return []
    again = frozenset(retries)
    work = [
        max(1, prompt - cached + output)
        for prompt, cached, output in requests.select("prompt_tokens", "cached_tokens", "output_tokens")
    ]
    total = [0, *accumulate(work)]
    repeated = [0, *accumulate(amount if row in again else 0 for row, amount in enumerate(work))]
    usual = [fresh for row in range(run.warmup, len(requests)) if run.missed[row] == MET
             for fresh, share in [_around(run, row, total, repeated)] if not share]  # fmt: skip
    served = SERVED * median(usual) if usual else 0.0
    claims = {}
    for row in run.loss.late:
        fresh, share = _around(run, row, total, repeated)
        claims[row] = 1.0 if row in again or (share >= SHARE and fresh <= served) else share
    tenants = Counter(run.tenants[requests.tenant[row]] for row in retries)
    explains = run.loss.claim(claims)
    return [
        Finding(
            kind=KIND,
            at_ps=at,
            until_ps=until,
            severity=min(1.0, len(retries) / max(1, len(requests) - run.warmup)),
            count=len(retries),
            title=(
                f"{many(len(retries), 'request')} ({percent(len(retries) / inside)} of those that arrived "
                f"{span(at, until)}) were further attempts after a failure; they and the requests that they delayed "
                f"are {percent(explains)} of the loss."
            ),
            requests=[row for row in retries if row in claims][:20],
            evidence={
                "retries": len(retries),
                "share": len(retries) / inside,
                "share_of_work": (repeated[-1] / total[-1]),
                "storm_s": seconds(until - at),
            },
            explains=explains,
            resource="choice",
            blames=[Blame("tenant", name, count / len(retries)) for name, count in tenants.most_common(3)]
            if len(run.tenants) > 1
            else [],
        )
    ]


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from reject_late(run)
    yield from more_replicas(run, finding)


def _around(run: Observed, row: int, total: Sequence[int], repeated: Sequence[int]) -> tuple[float, float]:
    """Return the work of first attempts per second, and the fraction of work that is due to retries, from `NEAR_PS`
    before a request until its end. `total` and `repeated` are the sums of all work and of retries before each row."""
    requests = run.requests
    arrivals, end = requests.arrival_ps, requests.finished_ps[row]
    since, until = max(run.started_ps, arrivals[row] - NEAR_PS), end if end >= 0 else run.ended_ps
    begin, stop = bisect_left(arrivals, since), bisect_left(arrivals, until + 1)
    work, again = total[stop] - total[begin], repeated[stop] - repeated[begin]
    return (work - again) / seconds(max(1, until - since)), again / max(1, work)


def _retries(run: Observed) -> list[int]:
    """Return the counted requests that repeat an earlier attempt."""
    requests, table = run.requests, run.result.requests
    policies, sessions = _policies(run), table.column("session")
    if not policies and not any(sessions):
        return []
    # (time, tenant, prompt tokens) of expected retries -> the numbers of their attempts
    due: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    seen: set[tuple[int, str, int]] = set()
    again = []
    columns = requests.select("arrival_ps", "tenant", "prompt_tokens", "turn", "outcome", "finished_ps")
    for row, (arrival, tenant, tokens, turn, outcome, end) in enumerate(columns):
        expected = due.get((arrival, tenant, tokens))
        attempt = expected.pop() if expected else 0
        same = (tenant, sessions[row], turn)
        if (attempt or (sessions[row] and same in seen)) and row >= run.warmup:
            again.append(row)
        seen.add(same)
        most, backoff = policies.get(run.tenants[tenant], (0, 0))
        if outcome in LOST and end >= 0 and attempt < most:
            due[end + (backoff << attempt), tenant, tokens].append(attempt + 1)
    return again


def _policies(run: Observed) -> dict[str, tuple[int, int]]:
    """Return how often the clients of each tenant retry, and their first pause."""
    workload = run.scenario.get("workload") or {}
    tenants = workload.get("tenants") or {name: {} for name in run.tenants.values()}
    policies = {}
    for name, own in tenants.items():
        retry = own.get("retry", workload.get("retry"))
        if retry and retry["max"]:
            policies[name] = (retry["max"], duration_ps(retry["backoff"], "retry.backoff"))
    return policies
