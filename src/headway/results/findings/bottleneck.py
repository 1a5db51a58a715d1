"""Bottleneck: the resource that late requests waited for, or that slowed them down.

Each part of a late request's time belongs to a resource (`RESOURCE_OF`). A resource explains the fraction of the loss
(see `results.loss`) that lies in its parts. Time at the router belongs to `replicas` while an instance starts, and to
`router` otherwise. The wait for KV blocks is divided over what the requests did that held the blocks (see
`results.holders`): if they loaded blocks from a tier, it belongs to `store`. There is one finding for each resource
that explains at least `LEAST` of the loss, if at least `FEWEST` late requests lost time there. An instance is to blame
if it has at least `UNEVEN` times its part of the loss, compared with the same loss on all instances. Severity: the
explained loss, as a fraction of the counted requests.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from headway.results.findings.observed import LIMIT, Observed, busiest, examples, many, moment, percent, span, worst
from headway.results.findings.relief import relieve
from headway.results.records import Blame, Finding, Suggestion
from headway.results.time_split import QUEUED
from headway.results.waits import Spans
from headway.types import STARTING

KIND: Final = "bottleneck"
ROLE: Final = LIMIT
AREA: Final = "capacity"
ORDER: Final = 15
LEAST: Final = 0.1
FEWEST: Final = 5
UNEVEN: Final = 2
RESOURCE_OF: Final = {
    **dict.fromkeys(QUEUED, "prefill"),
    "queue.slots": "slots",
    "queue.kv": "kv",
    "queue.adapter": "adapters",
    "queue.handover": "handover",
    "load": "store",
    "prefill": "prefill",
    "preemption": "kv",
    "transfer_wait": "handover",
    "transfer": "link",
    "decode": "decode",
    "router": "router",
}
# For each resource: what the late requests did while they lost time.
LOST_BY: Final = {
    "kv": "waiting for free KV blocks, or preempted for them",
    "slots": "waiting for a place in a full batch",
    "prefill": "waiting for prompts of others, or in slow prefill",
    "decode": "decoding more slowly than usual or than their target",
    "link": "in KV transfers that took longer than usual",
    "store": "loading KV blocks from tiers below the GPU",
    "adapters": "waiting for an adapter slot",
    "replicas": "waiting at the router while instances started",
    "router": "waiting at the router",
    "handover": "waiting, with their prompt computed, for a decode instance",
}


def find(run: Observed) -> list[Finding]:
    losses: dict[str, dict[int, float]] = {}
    starting = _starting(run)
    for row in run.loss.late:
        for part, share in run.loss_behind(row).items():
            resource = RESOURCE_OF.get(part) if share > 0 else None
            if resource == "router" and _waited_for_start(run, row, starting):
                resource = "replicas"
            if resource is not None:
                rows = losses.setdefault(resource, {})
                rows[row] = rows.get(row, 0.0) + share
    found = [(resource, rows) for resource, rows in losses.items() if len(rows) >= FEWEST]
    return worst(
        _finding(run, resource, rows) for resource, rows in found if sum(rows.values()) >= LEAST * len(run.loss.late)
    )


def main_resource(run: Observed, weights: Mapping[int, float]) -> str:
    """Return the resource for which these late requests lost most time, weighted by request."""
    totals: defaultdict[str, float] = defaultdict(float)
    for row, weight in weights.items():
        for part, share in run.loss.shares(row).items():
            totals[RESOURCE_OF.get(part, "")] += weight * share
    return max(totals, key=totals.__getitem__, default="")


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from relieve(run, finding, finding.resource)


def _starting(run: Observed) -> Spans:
    """Return the times at which instances started."""
    since: dict[int, int] = {}
    periods = []
    for change in run.result.states:
        if change.state in STARTING:
            since.setdefault(change.instance, change.at_ps)
        elif change.instance in since:
            periods.append((since.pop(change.instance), change.at_ps))
    spans = Spans()
    for begin, end in sorted([*periods, *((begin, run.ended_ps) for begin in since.values())]):
        spans.add(begin, end)
    return spans


def _waited_for_start(run: Observed, row: int, starting: Spans) -> bool:
    begin, routed = run.requests.arrival_ps[row], run.requests.routed_ps[row]
    return starting.until(routed if routed >= 0 else run.requests.finished_ps[row]) > starting.until(begin)


def _finding(run: Observed, resource: str, rows: Mapping[int, float]) -> Finding:
    explains = sum(rows.values()) / len(run.loss.late)
    where: defaultdict[int, float] = defaultdict(float)
    for row, share in rows.items():
        if (instance := _instance(run, row, resource)) >= 0:
            where[instance] += share
    count = run.loss.count(len(rows))
    at, until = run.loss.main_period(rows)
    stays = until >= run.requests.arrival_ps[len(run.requests) - 1]
    when = f"since {moment(at)}" if stays else span(at, until)
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=run.ended_ps if stays else until,
        severity=explains * run.loss.late_share,
        count=count,
        title=(
            f"{many(count, 'late request')} lost time {LOST_BY[resource]}, most of them {when}: this explains "
            f"{percent(explains)} of the loss" + (f", most at {run.names(where)}." if len(where) else ".")
        ),
        requests=examples((share, row) for row, share in rows.items()),
        instances=busiest(where),
        evidence={
            "requests": count,
            "late": run.loss.late_count,
            "parts": {
                part: share
                for part, share in run.loss.by_part.items()
                if RESOURCE_OF.get(part) == ("router" if resource == "replicas" else resource)
            },
        },
        explains=explains,
        resource=resource,
        blames=_blames(run, where),
    )


def _instance(run: Observed, row: int, resource: str) -> int:
    """Return the instance at which a request lost time for this resource; -1 if it was at the router."""
    if resource in ("router", "replicas"):
        return -1
    if resource in ("decode", "handover") or run.requests.prefill_instance[row] < 0:
        return run.requests.instance[row]
    return run.requests.prefill_instance[row]


def _blames(run: Observed, where: Mapping[int, float]) -> list[Blame]:
    total, count = sum(where.values()), len(run.instances)
    if not total or count < 2:
        return []
    return [
        Blame("instance", run.name(instance), where[instance] / total)
        for instance in busiest(where)
        if where[instance] * count >= UNEVEN * total
    ]
