"""Noisy neighbour: the steady load of one tenant makes requests of other tenants late.

A late request of another tenant blames the tenant for the tenant's share in what the request waited for: prefill, batch
slots, KV blocks, or decode (see `results.occupancy`). Requests of the tenant's bursts do not count, because
`tenant_burst` blames them. There is one finding for each tenant that occupies at least `LEAST_SHARE` of what the late
requests of other tenants waited for, on average, and at least `LEAST_LOAD` of the instances in the whole period in
which these requests are late. Its share must also be at least `EXCESS` times the share that it would have if all
tenants had the same.

If the share is at least `MOST_SHARE` and `FAR` times an equal share, and other tenants are late at least half as often
as the tenant, the tenant's own late requests count in the same way: its load causes them too.

If one session has most of the tenant's share, the
finding `runaway_session` names the session instead. Severity: the loss that the finding explains, as a fraction of the
counted requests.
"""

from collections.abc import Iterator
from typing import Final

from headway.results.findings import runaway_session, tenant_burst
from headway.results.findings.bottleneck import main_resource
from headway.results.findings.cluster_remedies import more_replicas
from headway.results.findings.observed import CAUSE, Observed, examples, many, percent, worst
from headway.results.findings.policy_remedies import fair_queue, limit_tenant, reject_late
from headway.results.occupancy import DECODE, KV, PREFILL, SLOTS, Occupancy
from headway.results.records import Blame, Finding, Suggestion
from headway.results.sample import MISSED, UNCOUNTED

KIND: Final = "noisy_neighbour"
ROLE: Final = CAUSE
AREA: Final = "fairness"
ORDER: Final = 16
LEAST_SHARE: Final = 0.4
EXCESS: Final = 1.2
MOST_SHARE: Final = 0.5
FAR: Final = 1.6
LEAST_LOAD: Final = 0.4
FEWEST: Final = 5
SLOWED: Final = 0.25  # if decode has at least this share of the loss, turns in the queue hardly help
OWN_SESSION: Final = 0.8  # a session with this fraction of a tenant's share is named in place of the tenant


def find(run: Observed) -> list[Finding]:
    requests = run.requests
    if len(run.tenants) < 2 or len(run.loss.late) < FEWEST:
        return []
    bursting = {row for burst in tenant_burst.bursts(run).values() for row in burst.rows}
    group_of = [-1 if row in bursting else tenant for row, tenant in enumerate(requests.tenant)]
    occupancy = Occupancy(requests, group_of, run.tenants, run.waits.left_ps, run.ended_ps)
    sessions = runaway_session.tenants(run)
    findings = []
    for tenant in run.tenants:
        others = [row for row in run.loss.late if requests.tenant[row] != tenant]
        if len(others) < FEWEST or sessions.get(tenant, 0.0) >= OWN_SESSION:
            continue
        blame = {row: occupancy.blame(row, run.loss.shares(row), tenant) for row in others}
        share, equal = sum(blame.values()) / len(others), 1 / len(run.tenants)
        if share < max(LEAST_SHARE, EXCESS * equal) or _load(run, occupancy, tenant, blame) < LEAST_LOAD:
            continue
        if share >= max(MOST_SHARE, FAR * equal) and _harms(run, tenant):
            own = (row for row in run.loss.late if requests.tenant[row] == tenant)
            blame.update({row: occupancy.blame(row, run.loss.shares(row), tenant) for row in own})
        findings.append(_finding(run, tenant, blame, share))
    return worst(findings)


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    # The scheduler shares prompt tokens fairly, but neither the batch nor the time of a step.
    prompts = finding.resource == "prefill" and run.loss.by_part.get("decode", 0.0) < SLOWED
    yield from (fair_queue(run) if prompts else limit_tenant(run, finding.evidence["tenant"]))
    yield from (limit_tenant(run, finding.evidence["tenant"]) if prompts else fair_queue(run))
    yield from more_replicas(run, finding)
    yield from reject_late(run)


def _harms(run: Observed, tenant: int) -> bool:
    """Return whether the requests of other tenants are late at least half as often as those of the tenant."""
    counts = {True: [0, 0], False: [0, 0]}  # of the tenant, of others: late requests, all requests
    for row, flag in enumerate(run.missed):
        if flag != UNCOUNTED:
            group = counts[run.requests.tenant[row] == tenant]
            group[0] += flag == MISSED
            group[1] += 1
    (late, all_), (others_late, others) = counts[True], counts[False]
    return 2 * others_late * all_ >= late * others


def _load(run: Observed, occupancy: Occupancy, tenant: int, blame: dict[int, float]) -> float:
    """Return the tenant's share of what other tenants lack, over the period in which they are late."""
    at, until = run.loss.main_period(blame)
    kind = {"slots": SLOTS, "kv": KV, "decode": DECODE}.get(main_resource(run, blame), PREFILL)
    where = {run.home(row) if kind == PREFILL else run.requests.instance[row] for row in blame}
    shares = [occupancy.share(kind, instance, tenant, at, until) for instance in where if instance >= 0]
    return sum(shares) / len(shares) if shares else 0.0


def _finding(run: Observed, tenant: int, blame: dict[int, float], share: float) -> Finding:
    name, requests = run.tenants[tenant], run.requests
    explains = run.loss.claim(blame)
    at, until = run.loss.main_period(blame)
    sent = sum(1 for row in range(run.warmup, len(requests)) if requests.tenant[row] == tenant)
    counted = len(requests) - run.warmup
    others = sum(1 for row in blame if requests.tenant[row] != tenant)
    count = run.loss.count(others)
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=until,
        severity=explains * run.loss.late_share,
        count=count,
        title=(
            f"Tenant {name} sent {percent(sent / counted)} of the requests, but {many(count, 'late request')} of other "
            f"tenants spent {percent(share)} of their lost time waiting for it; this explains {percent(explains)} of "
            "the loss."
        ),
        requests=examples((fraction, row) for row, fraction in blame.items()),
        evidence={"tenant": name, "share_of_wait": share, "share_of_requests": sent / counted, "late": count},
        explains=explains,
        resource=main_resource(run, blame),
        blames=[Blame("tenant", name, share)],
    )
