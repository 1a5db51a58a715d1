"""Starvation: a request waits far longer than most requests while later arrivals start before it.

A request starves if its wait from arrival to first step is at least `FACTOR` times the median and at least `LEAST_PS`,
and if it lost at least `PLACES` places. The lost places are the number of requests that started at its instance before
it, minus the number that arrived there before it. If the client of a request gave up, its wait until that time counts.
There is one finding per class. Severity: the fraction of the class that starved, but at least `SLIGHTEST`.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from statistics import median_low
from typing import Final

from headway.results.findings.cluster_remedies import more_replicas
from headway.results.findings.observed import CAUSE, Observed, busiest, duration, examples, many, seconds, worst
from headway.results.findings.policy_remedies import use
from headway.results.findings.run_settings import default, policy, tenants_of
from headway.results.records import FLOW, PRIORITY, SCHEDULER, Finding, Suggestion
from headway.results.time_split import QUEUED
from headway.results.waits import Queue
from headway.types import PS_PER_SECOND

KIND: Final = "starvation"
ROLE: Final = CAUSE
AREA: Final = "fairness"
ORDER: Final = 11
FACTOR: Final = 10
LEAST_PS: Final = 5 * PS_PER_SECOND
PLACES: Final = 10
SLIGHTEST: Final = 0.1


def find(run: Observed) -> list[Finding]:
    requests, warmup = run.requests, run.warmup
    pairs = requests.select("started_ps", "arrival_ps", start=warmup)
    waits = [began - arrival for began, arrival in pairs if began >= 0]
    if not waits or max(run.waits.left_ps) - run.started_ps < LEAST_PS:
        return []
    usual = median_low(waits)
    by_class: dict[int, dict[int, int]] = {}
    for queue in run.waits.queues:
        for row, lost in _find_starved(run, queue, max(LEAST_PS, FACTOR * usual)):
            by_class.setdefault(requests.slo_class[row], {})[row] = lost
    if not by_class:
        return []
    there = Counter(requests.slo_class[row] for row in run.waiting)
    return worst(_finding(run, code, places, there[code], usual) for code, places in by_class.items())


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    figure = "latency.queue_wait.max"
    scheduler, priority = policy(run, SCHEDULER), policy(run, PRIORITY)
    aging = scheduler.get("aging")
    if isinstance(aging, int | float):
        value = 10 * aging or default(SCHEDULER, scheduler["name"], "aging")
        text = f"Scheduler: raise aging from {aging:g} to {value:g}, so that waiting raises the priority."
        yield Suggestion(SCHEDULER, {"policies.scheduler.aging": value}, figure, text)
    if priority["name"] == "by-class":
        yield from use(run, PRIORITY, "aging", ", so that waiting raises the priority", figure)
    if scheduler["name"] != "fcfs":
        yield from use(run, SCHEDULER, "fcfs", ", which lets no request pass another one", figure)
    flow = policy(run, FLOW)
    if flow["name"] == "bands" and flow.get("fairness") == "strict" and len(tenants_of(run)) > 1:
        text = "Flow: let the tenants of a band take turns (fairness round-robin)."
        yield Suggestion(FLOW, {"policies.flow.fairness": "round-robin"}, figure, text)
    yield from more_replicas(run, finding, figure=figure)


def _find_starved(run: Observed, queue: Queue, limit: int) -> Iterator[tuple[int, int]]:
    """Yield the requests of one instance that waited at least `limit` and lost at least `PLACES` places, with the
    number of places that each lost."""
    requests, left = run.requests, run.waits.left_ps
    slow = [row for row in queue.rows if left[row] - requests.arrival_ps[row] >= limit and row >= run.warmup]
    if not slow:
        return
    begun = [left[row] for row in queue.order if requests.started_ps[row] >= 0]
    for row in slow:
        lost = bisect_left(begun, left[row]) - bisect_left(queue.rows, row)
        if lost >= PLACES:
            yield row, lost


def _finding(run: Observed, code: int, places: dict[int, int], there: int, usual: int) -> Finding:
    requests, left = run.requests, run.waits.left_ps
    waited = {row: left[row] - requests.arrival_ps[row] for row in places}
    first = max(waited, key=lambda row: (waited[row], -row))
    name = run.classes[code]
    where = Counter(map(run.home, places))
    tenants = Counter(requests.tenant[row] for row in places)
    return Finding(
        kind=KIND,
        at_ps=min(requests.arrival_ps[row] for row in places),
        until_ps=max(left[row] for row in places),
        severity=max(SLIGHTEST, len(places) / there),
        count=len(places),
        title=(
            f"{len(places):,} of {many(there, f'{name} request')} starved: each waited at least "
            f"{duration(min(waited.values()))}, while the median wait was {duration(usual)}, and lost at least "
            f"{PLACES} places; the longest waited {duration(waited[first])} and lost {places[first]:,} places."
        ),
        requests=examples((time, row) for row, time in waited.items()),
        instances=busiest(where),
        evidence={
            "slo_class": name,
            "requests": there,
            "starved": len(places),
            "median_wait_s": seconds(usual),
            "shortest_wait_s": seconds(min(waited.values())),
            "longest_wait_s": seconds(waited[first]),
            "longest_lost_places": places[first],
            **run.most_hit(tenants, "starved"),
        },
        explains=run.loss.share(places, ("router", *QUEUED)),
        resource="choice",
    )
