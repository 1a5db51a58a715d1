"""Instance failure: an instance stops serving without a decision of the autoscaler, and requests are late for it.

An instance fails if it stops serving, or cannot be reached, although no scaling event drains it. Two groups of late
requests explain this finding:

* requests that the instance lost, so that they failed or were retried;
* requests that arrived while the instance was down, or afterwards within the same time: they count for the fraction
  1 − p/q, where q is the fraction of late requests among them, and p the fraction at other times. If fewer than
  `ENOUGH` requests arrived at other times, they count for the fraction of the instances that are down.

Only requests for the same group of instances count (the same model and role), and requests that reached no instance.
There is one finding if it explains at least `LEAST` of the loss. Severity: the loss that it explains, as a fraction of
the counted requests.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from headway.results.findings.cluster_remedies import more_replicas, more_retries
from headway.results.findings.observed import CAUSE, Observed, busiest, examples, many, moment, percent
from headway.results.findings.policy_remedies import balance, reject_late
from headway.results.records import Blame, Finding, Suggestion
from headway.results.sample import MISSED, UNCOUNTED
from headway.types import SERVING

KIND: Final = "instance_failure"
ROLE: Final = CAUSE
AREA: Final = "capacity"
ORDER: Final = 20
YIELDS_TO: Final = ("black_hole",)
ENOUGH: Final = 20
LEAST: Final = 0.1
FEWEST: Final = 5


class Outage(NamedTuple):
    instance: int
    begin: int
    end: int  # when the instance served again, or the end of the run


def find(run: Observed) -> list[Finding]:
    outages = find_outages(run)
    if not outages or len(run.loss.late) < FEWEST:
        return []
    claims: dict[int, float] = {}
    blame: dict[int, float] = {}
    for peers in _groups(run):
        own = [outage for outage in outages if outage.instance in peers]
        if own:
            _claim(run, peers, own, claims, blame)
    explains = run.loss.claim(claims)
    if explains < LEAST or len(claims) < FEWEST:
        return []
    return [_finding(run, outages, claims, blame, explains)]


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from more_replicas(run, finding)
    yield from more_retries(run)
    yield from balance(run)
    yield from reject_late(run)


def find_outages(run: Observed) -> list[Outage]:
    """Return the times at which instances were down, in order of their begin."""
    planned = {
        instance for event in run.result.scaling_events if event.after < event.before for instance in event.instances
    }
    down: dict[int, int] = {}
    serving: set[int] = set()
    outages = []
    for change in run.result.states:
        instance = change.instance
        if change.state in SERVING:
            if instance in down:
                outages.append(Outage(instance, down.pop(instance), change.at_ps))
            serving.add(instance)
        elif instance in serving:
            serving.discard(instance)
            if change.state != "draining" and instance not in planned:
                down[instance] = change.at_ps
    outages += [Outage(instance, begin, run.ended_ps) for instance, begin in down.items()]
    return sorted(outages, key=lambda outage: (outage.begin, outage.instance))


def _groups(run: Observed) -> list[list[int]]:
    groups: dict[tuple[str, str], list[int]] = {}
    for index, instance in run.result.instances().items():
        groups.setdefault((instance.get("model", ""), instance.get("role", "")), []).append(index)
    return list(groups.values())


def _claim(
    run: Observed, peers: Sequence[int], outages: Sequence[Outage], claims: dict[int, float], blame: dict[int, float]
) -> None:
    """Add what outages of one group of instances explain."""
    requests = run.requests
    inside: dict[int, list[Outage]] = {}
    counts = {True: [0, 0], False: [0, 0]}  # during outages, at other times: late requests, all requests
    for row, flag in enumerate(run.missed):
        if flag == UNCOUNTED or not ({requests.instance[row], requests.prefill_instance[row]} & {-1, *peers}):
            continue
        during = [each for each in outages if each.begin <= requests.arrival_ps[row] < 2 * each.end - each.begin]
        if during:
            inside[row] = during
        counts[bool(during)][0] += flag == MISSED
        counts[bool(during)][1] += 1
    (late, all_), (late_else, all_else) = counts[True], counts[False]
    rate = late / all_ if all_ else 0.0
    usual = late_else / all_else if all_else else 0.0
    for row in run.loss.late:
        lost = requests.retries[row] > 0 or run.loss.of(row, ("failed",)) > 0
        if row not in inside and not lost:
            continue
        near = inside.get(row) or list(outages)
        if lost:
            fraction = 1.0
        elif all_else < ENOUGH:
            fraction = len({each.instance for each in near}) / len(peers)
        else:
            fraction = max(0.0, 1 - usual / rate) if rate else 0.0
        if fraction > 0:
            claims[row] = fraction
            for each in near:
                blame[each.instance] = blame.get(each.instance, 0.0) + fraction / len(near)


def _finding(
    run: Observed, outages: Sequence[Outage], claims: dict[int, float], blame: dict[int, float], explains: float
) -> Finding:
    first, total = outages[0], sum(blame.values())
    names = busiest(blame)
    lost = sum(1 for row in claims if run.requests.retries[row] or run.loss.of(row, ("failed",)) > 0)
    count = run.loss.count(len(claims))
    stays = first.end >= run.ended_ps
    when = f"at {moment(first.begin)}" + ("" if stays else f" for {moment(first.end - first.begin)}")
    more = "" if len(outages) == 1 else f", the first of {many(len(outages), 'failure')}"
    return Finding(
        kind=KIND,
        at_ps=first.begin,
        until_ps=max(outage.end for outage in outages),
        severity=explains * run.loss.late_share,
        count=count,
        title=(
            f"{run.name(first.instance)} failed {when}{more}: {many(count, 'request')} were late because requests were "
            f"lost or other instances had too much to do; this explains {percent(explains)} of the loss."
        ),
        requests=examples((claim, row) for row, claim in claims.items()),
        instances=names,
        evidence={
            "failures": len(outages),
            "down_s": sum(outage.end - outage.begin for outage in outages) / 1e12,
            "lost": lost,
            "late": count,
        },
        explains=explains,
        resource="replicas",
        blames=[Blame("instance", run.name(instance), blame[instance] / total) for instance in names[:3]],
    )
