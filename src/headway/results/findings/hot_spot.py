"""Hot spot: one instance had far more requests than its peers for a while.

Time is cut into `SLICES` equal slices, or fewer of a second where that is longer. In a slice an instance is hot that
has `FACTOR` times as many requests as its peers and `EXCESS` more, in the mean over time: those sent there and not
ended. Its peers are the other instances of the same model that play the same part, as many as requests can go to.
`SLICES_HOT` slices in a row or more are told.

Severity: the time that requests spent there in excess of the peers' mean, over the time that they spent at all those
instances in the whole run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from headway.results.findings.observed import Observed, examples, many, seconds, span, worst
from headway.results.records import Finding
from headway.types import PS_PER_SECOND, SERVING

KIND: Final = "hot_spot"
SLICES: Final = 200
SLICE_PS: Final = PS_PER_SECOND
SLICES_HOT: Final = 3
FACTOR: Final = 2
EXCESS: Final = 8


class Grid(NamedTuple):
    begin: int
    width: int
    slices: int

    def totals(self, spans: Iterator[tuple[int, int]]) -> list[int]:
        """Of each slice, the time of the spans that lies in it."""
        begin, width, count = self
        whole, found = [0] * (count + 1), [0] * (count + 1)
        for since, until in spans:
            first, into = divmod(since - begin, width)
            last, out = divmod(until - begin, width)
            # From the beginning of the first slice to that of the last, less what was not yet, and more what was still.
            whole[first] += 1
            whole[last] -= 1
            found[first] -= into
            found[last] += out
        running = 0
        for place in range(count):
            running += whole[place]
            found[place] += running * width
        return found[:count]


class Spot(NamedTuple):
    """An instance that is hot from one slice to another."""

    instance: int
    begin: int
    end: int
    there_ps: int  # summed over its requests
    peers_ps: int  # the mean of its peers


def find(seen: Observed) -> list[Finding]:
    if seen.length_ps < SLICES_HOT * SLICE_PS:
        return []
    width = max(SLICE_PS, -(-seen.length_ps // SLICES))
    grid = Grid(seen.started_ps, width, -(-seen.length_ps // width))
    found = []
    for peers in _groups(seen):
        loads = [grid.totals(_spans(seen, instance)) for instance in peers]
        serving = _serving(seen, peers, grid)
        total = sum(map(sum, loads))
        for spot in _hot(peers, loads, serving, grid):
            found.append(_finding(seen, spot, grid, total))
    return worst(found)


def _groups(seen: Observed) -> list[list[int]]:
    """Instances that are each other's peers, where there are several."""
    found: dict[tuple[str, str], list[int]] = {}
    for instance, key in seen.peers.items():
        found.setdefault(key, []).append(instance)
    return [one for one in found.values() if len(one) > 1]


def _spans(seen: Observed, instance: int) -> Iterator[tuple[int, int]]:
    stays = seen.stays.get(instance)
    return iter(()) if stays is None else zip(stays.begin_ps, stays.end_ps, strict=True)


def _serving(seen: Observed, peers: Sequence[int], grid: Grid) -> list[list[int]]:
    """Of each instance the time in each slice in which requests could go to it."""
    if not seen.result.states:
        always = grid.totals(iter([(grid.begin, seen.ended_ps)]))
        return [always] * len(peers)
    spans: dict[int, list[tuple[int, int]]] = {instance: [] for instance in peers}
    since: dict[int, int] = {}
    for change in seen.result.states:
        if change.instance not in spans:
            continue
        if change.state in SERVING:
            since.setdefault(change.instance, max(change.at_ps, grid.begin))
        elif change.instance in since:
            spans[change.instance].append((since.pop(change.instance), change.at_ps))
    for instance, begin in since.items():
        spans[instance].append((begin, seen.ended_ps))
    return [grid.totals(iter(spans[instance])) for instance in peers]


def _hot(peers: Sequence[int], loads: list[list[int]], serving: list[list[int]], grid: Grid) -> Iterator[Spot]:
    everything = [sum(at) for at in zip(*loads, strict=True)]
    open_ps = [sum(at) for at in zip(*serving, strict=True)]
    for instance, own, there in zip(peers, loads, serving, strict=True):
        begin, mine, others = -1, 0, 0
        for place in range(grid.slices + 1):
            hot = False
            if place < grid.slices:
                rest_open = open_ps[place] - there[place]
                mean = (everything[place] - own[place]) * grid.width // rest_open if rest_open > 0 else 0
                excess = own[place] - mean
                hot = rest_open > 0 and own[place] >= FACTOR * mean and excess >= EXCESS * grid.width
            if hot:
                if begin < 0:
                    begin, mine, others = place, 0, 0
                mine, others = mine + own[place], others + mean
            elif begin >= 0:
                if place - begin >= SLICES_HOT:
                    yield Spot(instance, begin, place, mine, others)
                begin = -1


def _finding(seen: Observed, spot: Spot, grid: Grid, total: int) -> Finding:
    at = grid.begin + spot.begin * grid.width
    until = min(grid.begin + spot.end * grid.width, seen.ended_ps)
    time = (spot.end - spot.begin) * grid.width
    mine, others = spot.there_ps / time, spot.peers_ps / time
    stays = seen.stays[spot.instance]
    rows = zip(stays.rows, stays.begin_ps, stays.end_ps, strict=True)
    there = [row for row, begin, end in rows if begin < until and end > at]
    left, enqueued = seen.waits.left_ps, seen.requests.enqueued_ps
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=until,
        severity=min(1.0, (spot.there_ps - spot.peers_ps) / total),
        count=len(there),
        title=(
            f"{seen.name(spot.instance)} had {mine:,.1f} requests {span(at, until)} where its peers had {others:,.1f} "
            f"each, in the mean over time: {many(len(there), 'request')} in all."
        ),
        requests=examples((left[row] - enqueued[row], row) for row in there),
        instances=[spot.instance],
        evidence={
            "requests": len(there),
            "mean_requests": mine,
            "mean_requests_of_peers": others,
            "episode_s": seconds(until - at),
        },
    )
