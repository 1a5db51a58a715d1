"""Black hole: an instance fails its requests, is therefore empty, and so the router sends it even more.

An instance is a black hole if it failed at least `LEAST` requests, and a fraction of its requests that is at least
`TIMES` times that of its peers, and if it failed again after it had failed before. While it was open, it also got at
least `SHARE` of the requests per second that its peers got. The finding explains the loss of the requests that failed
there. Severity: the fraction of the counted requests that failed there.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from headway.results.findings.cluster_remedies import more_retries
from headway.results.findings.instance_failure import find_outages
from headway.results.findings.observed import CAUSE, Observed, many, percent, worst
from headway.results.findings.policy_remedies import use
from headway.results.findings.run_settings import name_of
from headway.results.recorder import FAILED
from headway.results.records import ROUTING, Blame, Finding, Suggestion
from headway.types import SERVING

KIND: Final = "black_hole"
ROLE: Final = CAUSE
AREA: Final = "routing"
ORDER: Final = 27
LEAST: Final = 10
TIMES: Final = 3
SHARE: Final = 0.9
AGAIN: Final = 2


def find(run: Observed) -> list[Finding]:
    requests = run.requests
    failed: dict[int, list[int]] = {}
    sent: dict[int, int] = {}
    for row in range(run.warmup, len(requests)):
        home = run.home(row)
        sent[home] = sent.get(home, 0) + 1
        if requests.outcome[row] == FAILED:
            failed.setdefault(home, []).append(row)
    if not failed:
        return []
    outages = Counter(outage.instance for outage in find_outages(run))
    findings = []
    for peers in run.peers.values():
        for instance in peers:
            rows = failed.get(instance, [])
            others = [other for other in peers if other != instance]
            rest, of = (
                sum(counts) for counts in zip(*((len(failed.get(o, [])), sent.get(o, 0)) for o in others), strict=True)
            )
            if len(rows) < LEAST or outages[instance] < AGAIN:
                continue
            rate, usual = len(rows) / sent[instance], rest / max(1, of)
            open_ps = {other: max(1, _open_ps(run, other)) for other in peers}
            pull = sent[instance] / open_ps[instance]
            peer_pull = of / sum(open_ps[other] for other in others)
            if rate >= TIMES * usual and pull >= SHARE * peer_pull:
                findings.append(_finding(run, instance, rows, rate, usual, pull / max(1e-30, peer_pull)))
    return worst(findings)


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from more_retries(run)
    if name_of(run, ROUTING) != "round-robin":
        yield from use(run, ROUTING, "round-robin", ", which does not prefer an instance because it is empty")


def _open_ps(run: Observed, instance: int) -> int:
    """Return how long an instance was open to requests, up to the last arrival."""
    last = run.requests.arrival_ps[len(run.requests) - 1]
    total, since = 0, -1
    for change in run.result.states:
        if change.instance == instance:
            at = min(change.at_ps, last)
            if since >= 0:
                total += at - since
            since = at if change.state in SERVING else -1
    return total + (last - since if since >= 0 else 0)


def _finding(run: Observed, instance: int, rows: list[int], rate: float, usual: float, pull: float) -> Finding:
    name = run.name(instance)
    explains = run.loss.claim(dict.fromkeys(rows, 1.0))
    return Finding(
        kind=KIND,
        at_ps=run.requests.arrival_ps[rows[0]],
        until_ps=max(run.requests.finished_ps[row] for row in rows),
        severity=len(rows) / max(1, len(run.requests) - run.warmup),
        count=len(rows),
        title=(
            f"{name} failed {many(len(rows), 'request')} ({percent(rate)} of those it got; its peers "
            f"{percent(usual)}), and while it was open it got {pull:,.1f} times as many requests per second as a peer."
        ),
        requests=rows[:20],
        instances=[instance],
        evidence={"failed": len(rows), "failure_rate": rate, "failure_rate_of_peers": usual, "pull": pull},
        explains=explains,
        resource="choice",
        blames=[Blame("instance", name, 1.0)],
    )
