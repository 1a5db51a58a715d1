"""Preemption storm: an instance preempts its requests many times within a short time.

A storm is a union of overlapping windows of `WINDOW_PS`, each with at least `MANY` preemptions. Severity: the fraction
of the requests at the instance during the storm that were preempted.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from headway.results.findings.cluster_remedies import larger_cache, more_replicas, scaled
from headway.results.findings.observed import CAUSE, Observed, examples, many, seconds, span, worst
from headway.results.findings.policy_remedies import balance, limit_rate
from headway.results.records import Blame, Finding, Preemption, Suggestion, group_by
from headway.types import PS_PER_SECOND

KIND: Final = "preemption_storm"
ROLE: Final = CAUSE
AREA: Final = "memory"
ORDER: Final = 7
# Kinds that say why one instance gets more requests than its cache can hold.
YIELDS_TO: Final = ("slow_instance", "hot_prefix", "shadow_divergence")
WINDOW_PS: Final = 10 * PS_PER_SECOND
MANY: Final = 10


def find(run: Observed) -> list[Finding]:
    findings = []
    for instance, preemptions in sorted(group_by(run.result.preemptions, lambda each: each.instance).items()):
        begins, ends = sorted(run.stays[instance].begin_ps), sorted(run.stays[instance].end_ps)
        for begin, end in _storms([preemption.at_ps for preemption in preemptions]):
            there = bisect_right(begins, preemptions[end - 1].at_ps) - bisect_left(ends, preemptions[begin].at_ps)
            findings.append(_finding(run, instance, preemptions[begin:end], there))
    return worst(findings)


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from larger_cache(run, finding)
    reason = ", so that fewer requests share the KV cache"
    yield from scaled(run, finding, "max_batch_size", 0.5, reason, figure="rates.preemptions_per_request")
    yield from more_replicas(run, finding)
    yield from balance(run)
    yield from limit_rate(run)


def _storms(times: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the start and end index of each storm in `times`, which are in ascending order."""
    begin = end = -1
    for last in range(MANY - 1, len(times)):
        first = last - MANY + 1
        if times[last] - times[first] > WINDOW_PS:
            continue
        if begin >= 0 and first >= end:
            yield begin, end
            begin = -1
        begin = first if begin < 0 else begin
        end = last + 1
    if begin >= 0:
        yield begin, end


def _finding(run: Observed, instance: int, storm: list[Preemption], there: int) -> Finding:
    """Describe a storm. `there` is the number of requests that are known to have been at the instance during the
    storm."""
    at, until = storm[0].at_ps, storm[-1].at_ps
    preempted = Counter(preemption.request for preemption in storm)
    there = max(there, len(preempted))
    most = max(preempted.values())
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=until,
        severity=len(preempted) / there,
        count=len(storm),
        title=(
            f"{run.name(instance)} preempted requests {many(len(storm), 'time')} {span(at, until)}: "
            f"{len(preempted):,} of its {many(there, 'request')}, one of them {many(most, 'time')}."
        ),
        requests=examples((count, row) for row, count in preempted.items()),
        instances=[instance],
        evidence={
            "preemptions": len(storm),
            "requests": len(preempted),
            "requests_there": there,
            "most_of_one_request": most,
            "episode_s": seconds(until - at),
        },
        explains=run.loss.share(preempted, ("preemption",))
        + run.loss.share((row for row in run.loss.within(at, until) if run.home(row) == instance), ("queue.kv",)),
        resource="kv",
        blames=[Blame("instance", run.name(instance), 1.0)],
    )
