"""Preemption storm: an instance took blocks from its requests again and again within a short time.

There is a storm at an instance while `MANY` or more preemptions fell into the last `WINDOW_PS`; it lasts from the first
of them to the last. Severity: the share of the requests that were at the instance meanwhile which had to yield.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from headway.results.findings.observed import Observed, examples, many, seconds, span, worst
from headway.results.records import Finding, Preemption, group_by
from headway.types import PS_PER_SECOND

KIND: Final = "preemption_storm"
AREA: Final = "memory"
ADVICE: Final = (
    "Memory: requests are let into batches whose KV cache cannot hold them; route by kv-utilization or admit fewer."
)
ORDER: Final = 7
WINDOW_PS: Final = 10 * PS_PER_SECOND
MANY: Final = 10


def find(run: Observed) -> list[Finding]:
    findings = []
    for instance, preemptions in sorted(group_by(run.result.preemptions, lambda each: each.instance).items()):
        stays = run.stays.get(instance)
        came, went = (sorted(stays.begin_ps), sorted(stays.end_ps)) if stays else ([], [])
        for begin, end in _storms([preemption.at_ps for preemption in preemptions]):
            there = bisect_right(came, preemptions[end - 1].at_ps) - bisect_left(went, preemptions[begin].at_ps)
            findings.append(_finding(run, instance, preemptions[begin:end], there))
    return worst(findings)


def _storms(times: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Slices of ascending times: unions of windows with enough of them."""
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
    """`there` are the requests that the instance had meanwhile, as far as that is known."""
    at, until = storm[0].at_ps, storm[-1].at_ps
    yielded = Counter(preemption.request for preemption in storm)
    there = max(there, len(yielded))
    most = max(yielded.values())
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=until,
        severity=len(yielded) / there,
        count=len(storm),
        title=(
            f"{run.name(instance)} preempted {many(len(storm), 'time')} {span(at, until)}: {len(yielded):,} of the "
            f"{many(there, 'request')} that it had, one of them {many(most, 'time')}."
        ),
        requests=examples((count, row) for row, count in yielded.items()),
        instances=[instance],
        evidence={
            "preemptions": len(storm),
            "requests": len(yielded),
            "requests_there": there,
            "most_of_one_request": most,
            "episode_s": seconds(until - at),
        },
    )
