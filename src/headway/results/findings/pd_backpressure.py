"""P/D backpressure: prefill instances compute prompts faster than decode instances accept them.

The pile at a decode instance consists of the requests that wait for their KV cache to move there. A request is in the
pile from `handed_ps`, when its prompt is computed, until `transfer_ps`, when its transfer begins. If `max_incoming` is
set, the request stays in the pile until `transferred_ps`, when its transfer ends. The pile is high if it has at least
`PILE` requests, or at least `max_incoming` requests if that is set. Periods of a high pile that are at most `GAP_PS`
apart form an episode. In an episode, the pile must be high for at least `LEAST_PS` in total. Severity: the fraction of
the time from arrival to end that the requests of the episode spent in the pile.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, NamedTuple

from headway.results.findings.cluster_remedies import more_incoming, more_replicas
from headway.results.findings.observed import CAUSE, Observed, duration, examples, many, seconds, span, worst
from headway.results.findings.policy_remedies import balance
from headway.results.records import Blame, Finding, Suggestion
from headway.types import PS_PER_SECOND, Json

KIND: Final = "pd_backpressure"
ROLE: Final = CAUSE
AREA: Final = "transfers"
ORDER: Final = 6
PILE: Final = 8
GAP_PS: Final = PS_PER_SECOND
LEAST_PS: Final = PS_PER_SECOND


class Wait(NamedTuple):
    begin: int
    end: int
    row: int


class Episode(NamedTuple):
    begin: int
    end: int
    high_ps: int  # total time within the episode in which the pile is high
    peak: int


def find(run: Observed) -> list[Finding]:
    limits = _limits(run.scenario)
    pools = {index: instance.get("pool", "") for index, instance in run.result.instances().items()}
    findings = []
    for instance, waits in sorted(_waits(run, limits, pools).items()):
        limit = limits.get(pools[instance]) or PILE
        waits.sort()
        longest = max(wait.end - wait.begin for wait in waits)
        for episode in _episodes(waits, limit):
            if episode.high_ps >= LEAST_PS:
                # No wait takes more than `longest`, so a wait that began earlier does not overlap the episode.
                first = bisect_left(waits, (episode.begin - longest,))
                rest = waits[first : bisect_left(waits, (episode.end,))]
                inside = [wait for wait in rest if wait.end > episode.begin]
                findings.append(_finding(run, instance, limit, episode, inside))
    return worst(findings)


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from more_incoming(run, finding)
    yield from more_replicas(run, finding, "decode")
    yield from balance(run)


def _limits(scenario: Json) -> dict[str, int | None]:
    """Return the `max_incoming` of each deployment by name; the name is "" if the cluster has no deployments."""
    cluster = scenario.get("cluster", {})
    deployments = cluster.get("deployments") or {"": cluster}
    return {name: (keys.get("transfer") or {}).get("max_incoming") for name, keys in deployments.items()}


def _waits(run: Observed, limits: dict[str, int | None], pools: dict[int, str]) -> dict[int, list[Wait]]:
    requests = run.requests
    waits: dict[int, list[Wait]] = {}
    if not len(requests) or max(requests.handed_ps) < 0:
        return waits
    names = ("handed_ps", "transfer_ps", "transferred_ps", "finished_ps", "instance", "redirects")
    for row, (handed, begun, arrived, finished, instance, moved) in enumerate(requests.select(*names)):
        if handed < 0 or instance not in pools or moved:
            continue
        end = arrived if limits.get(pools[instance]) else begun
        if end < 0:  # the transfer never began, or it never ended although `max_incoming` is set
            end = finished if finished >= 0 else run.ended_ps
        if end > handed:
            waits.setdefault(instance, []).append(Wait(handed, end, row))
    return waits


def _episodes(waits: list[Wait], limit: int) -> Iterator[Episode]:
    changes = sorted([(wait.end, -1) for wait in waits] + [(wait.begin, 1) for wait in waits])
    pile = peak = high_ps = 0
    begin = end = since = -1
    for at, change in changes:
        pile += change
        if change > 0 and pile == limit:
            if begin >= 0 and at - end > GAP_PS:
                yield Episode(begin, end, high_ps, peak)
                begin = -1
            if begin < 0:
                begin, high_ps, peak = at, 0, 0
            since = at
        elif change < 0 and pile == limit - 1:
            high_ps += at - since
            end = at
        if pile >= limit:
            peak = max(peak, pile)
    if begin >= 0:
        yield Episode(begin, end, high_ps, peak)


def _finding(run: Observed, instance: int, limit: int, episode: Episode, inside: list[Wait]) -> Finding:
    alive = run.lifetime_ps(wait.row for wait in inside)
    waits = [wait.end - wait.begin for wait in inside]
    waited, longest = sum(waits), max(waits)
    return Finding(
        kind=KIND,
        at_ps=episode.begin,
        until_ps=episode.end,
        severity=min(1.0, waited / alive) if alive else 0.0,
        count=len(inside),
        title=(
            f"{many(len(inside), 'request')} with a computed prompt waited for {run.name(instance)} "
            f"{span(episode.begin, episode.end)}: {limit} or more at once for {duration(episode.high_ps)}, "
            f"{episode.peak:,} at the peak; the longest waited {duration(longest)} for its KV cache."
        ),
        requests=examples((wait.end - wait.begin, wait.row) for wait in inside),
        instances=[instance],
        evidence={
            "requests": len(inside),
            "limit": limit,
            "peak": episode.peak,
            "high_s": seconds(episode.high_ps),
            "mean_wait_s": seconds(waited) / len(inside),
            "longest_wait_s": seconds(longest),
        },
        explains=run.loss.share((wait.row for wait in inside), ("transfer_wait", "queue.handover")),
        resource="handover",
        blames=[Blame("instance", run.name(instance), 1.0)],
    )
