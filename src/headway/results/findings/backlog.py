"""Saturation: says whether the cluster kept up with the arrivals. A run is stable, backlogged or overloaded.

The backlog b(t) counts requests that wait for their first token or, in a disaggregated cluster, for their KV cache. The
backlog is sampled at `SAMPLES` equally spaced times from the first arrival to the last. The mean backlog is q₂ over
the second quarter of these times, and q₄ over the fourth. Let A be the number of requests. A run is *stable* if b
stays below max(`LEAST`, `WALK`·√A), because chance alone (a random walk) can make the backlog that large. Otherwise
the run is *overloaded* if q₄ is at least half of the peak of b and at least `GROWTH` times q₂. In all other cases
the run is *backlogged*: the backlog recovered or does not grow. Severity of an overloaded run: one half plus the
fraction of requests that wait at the last arrival. Severity of a backlogged run: the peak divided by A, at most one
half.
"""

from bisect import bisect_right
from collections.abc import Iterator
from math import isqrt
from typing import Final, NamedTuple

from headway.config.wording import join_words
from headway.results.findings.cluster_remedies import more_replicas
from headway.results.findings.observed import SYMPTOM, Observed, Run, examples, many, moment, seconds
from headway.results.findings.policy_remedies import reject_late, use
from headway.results.findings.run_settings import classes_of
from headway.results.records import ADMISSION, Finding, Suggestion
from headway.results.table import Columns
from headway.results.time_split import QUEUED

KIND: Final = "saturation"
ROLE: Final = SYMPTOM
AREA: Final = "capacity"
SHEDDABLE: Final = ("batch", "best-effort")
ORDER: Final = 12
SAMPLES: Final = 100
QUARTER: Final = SAMPLES // 4
LEAST: Final = 10
WALK: Final = 2
GROWTH: Final = 1.25


class Backlog(NamedTuple):
    word: str
    samples: list[int]
    times: list[int]
    limit: int


def saturation(result: Run) -> str:
    """Return "stable", "backlogged" or "overloaded"."""
    return backlog(Columns(result.requests)).word


def backlog(requests: Columns) -> Backlog:
    count = len(requests)
    if not count:
        return Backlog("stable", [], [], LEAST)
    limit = max(LEAST, isqrt(WALK**2 * count - 1) + 1)  # WALK times the square root of `count`, rounded up
    arrivals = requests.arrival_ps
    left = sorted(at for at in _wait_ends(requests) if at >= 0)
    begin, length = arrivals[0], arrivals[count - 1] - arrivals[0]
    times = [begin + length * (place + 1) // SAMPLES for place in range(SAMPLES)]
    samples = [bisect_right(arrivals, at) - bisect_right(left, at) for at in times]
    second, fourth = sum(samples[QUARTER : 2 * QUARTER]), sum(samples[-QUARTER:])
    peak = max(samples)
    if peak < limit:
        word = "stable"
    elif 2 * fourth >= peak * QUARTER and fourth >= GROWTH * second:
        word = "overloaded"
    else:
        word = "backlogged"
    return Backlog(word, samples, times, limit)


def find(run: Observed) -> list[Finding]:
    requests = run.requests
    word, samples, times, limit = backlog(requests)
    if word == "stable":
        return []
    count, peak, last = len(requests), max(samples), samples[-1]
    highest = times[samples.index(peak)]
    above = [at for at, waiting in zip(times, samples, strict=True) if waiting >= limit]
    quarters = [sum(samples[at : at + QUARTER]) / QUARTER for at in range(0, SAMPLES, QUARTER)]
    means = [f"{mean:,.0f}" for mean in quarters]
    until = run.ended_ps if word == "overloaded" else above[-1]
    rows = zip(_wait_ends(requests), requests.arrival_ps, strict=True)
    waits = (((at if at >= 0 else run.ended_ps) - arrival, row) for row, (at, arrival) in enumerate(rows))
    return [
        Finding(
            kind=KIND,
            at_ps=above[0],
            until_ps=until,
            severity=min(1.0, 0.5 + last / count) if word == "overloaded" else min(0.5, peak / count),
            count=peak,
            title=(
                f"The cluster is {word}: the backlog peaked at {many(peak, 'request')} of {count:,} at "
                f"{moment(highest)} and was {last:,} at the last arrival at {moment(times[-1])}; its means over the "
                f"quarters of that time were {join_words(means)}."
            ),
            requests=examples(waits),
            evidence={
                "word": word,
                "requests": count,
                "limit": limit,
                "highest": peak,
                "highest_at_s": seconds(highest),
                "at_last_arrival": last,
                "mean_by_quarter": quarters,
            },
            explains=run.loss.share(run.loss.within(above[0], until), ("router", *QUEUED, "transfer_wait")),
        )
    ]


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from more_replicas(run, finding)
    yield from reject_late(run)
    if set(classes_of(run)) & set(SHEDDABLE):
        yield from use(run, ADMISSION, "saturation", ", which rejects batch requests while the cluster is full")


def _wait_ends(requests: Columns) -> Iterator[int]:
    """Yield, for each request, the time at which its wait ended: the time when it got its first token or its KV cache,
    or when it ended without them. The time is -1 if the request still waits."""
    for first, handed, arrived, end in requests.select("first_token_ps", "handed_ps", "transferred_ps", "finished_ps"):
        if handed >= 0:
            yield max(first, arrived) if arrived >= 0 else end
        else:
            yield first if first >= 0 else end
