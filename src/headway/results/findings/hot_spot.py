"""Hot spot: one instance had far more requests than its peers for a while.

Time is cut into `SLICES` equal slices, or fewer of a second where that is longer. An instance is hot in a slice if it
has `FACTOR` times as many requests as its peers and `EXCESS` more, in the mean over time; its peers are the other open
instances of the same model and role. `SLICES_HOT` slices in a row or more are reported. Severity: the time that
requests spent there in excess of the peers' mean, over the time that they spent at all those instances in the whole
run.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from headway.results.findings.observed import Observed, many, seconds, span, worst
from headway.results.records import Finding
from headway.results.time_grid import Grid, SpanSums
from headway.types import PS_PER_SECOND, SERVING

KIND: Final = "hot_spot"
AREA: Final = "routing"
ADVICE: Final = "Routing: let load count for more against affinity, so that no instance takes most requests."
ORDER: Final = 9
SLICES: Final = 200
SLICE_PS: Final = PS_PER_SECOND
SLICES_HOT: Final = 3
FACTOR: Final = 2
EXCESS: Final = 8


class Spot(NamedTuple):
    """An instance that is hot from one slice to another."""

    instance: int
    begin: int
    end: int
    there_ps: int  # summed over its requests
    peers_ps: int  # the mean of its peers


def find(run: Observed) -> list[Finding]:
    if run.length_ps < SLICES_HOT * SLICE_PS:
        return []
    width = max(SLICE_PS, -(-run.length_ps // SLICES))
    grid = Grid(run.started_ps, width, -(-run.length_ps // width))
    findings = []
    for peers in run.peers.values():
        loads = [sum_by_slice(grid, _spans(run, instance)) for instance in peers]
        serving = _serving(run, peers, grid)
        total = sum(map(sum, loads))
        for spot in _hot(peers, loads, serving, grid):
            findings.append(_finding(run, spot, grid, total))
    return worst(findings)


def _spans(run: Observed, instance: int) -> Iterable[tuple[int, int]]:
    stays = run.stays.get(instance)
    return () if stays is None else zip(stays.begin_ps, stays.end_ps, strict=True)


def sum_by_slice(grid: Grid, spans: Iterable[tuple[int, int]]) -> list[int]:
    """Of each slice, the time of the spans that lies in it."""
    sums = SpanSums(grid)
    for begin, end in spans:
        sums.add(begin, end)
    return sums.totals()


def _serving(run: Observed, peers: Sequence[int], grid: Grid) -> list[list[int]]:
    """Of each instance the time in each slice in which requests could go to it."""
    if not run.result.states:
        always = sum_by_slice(grid, [(grid.start_ps, run.ended_ps)])
        return [always] * len(peers)
    spans: dict[int, list[tuple[int, int]]] = {instance: [] for instance in peers}
    since: dict[int, int] = {}
    for change in run.result.states:
        if change.instance not in spans:
            continue
        if change.state in SERVING:
            since.setdefault(change.instance, max(change.at_ps, grid.start_ps))
        elif change.instance in since:
            spans[change.instance].append((since.pop(change.instance), change.at_ps))
    for instance, begin in since.items():
        spans[instance].append((begin, run.ended_ps))
    return [sum_by_slice(grid, spans[instance]) for instance in peers]


def _hot(peers: Sequence[int], loads: list[list[int]], serving: list[list[int]], grid: Grid) -> Iterator[Spot]:
    everything = [sum(at) for at in zip(*loads, strict=True)]
    open_ps = [sum(at) for at in zip(*serving, strict=True)]
    for instance, own, there in zip(peers, loads, serving, strict=True):
        begin, mine, others = -1, 0, 0
        for place in range(grid.bins + 1):
            hot = False
            if place < grid.bins:
                rest_open = open_ps[place] - there[place]
                mean = (everything[place] - own[place]) * grid.step_ps // rest_open if rest_open > 0 else 0
                excess = own[place] - mean
                hot = rest_open > 0 and own[place] >= FACTOR * mean and excess >= EXCESS * grid.step_ps
            if hot:
                if begin < 0:
                    begin, mine, others = place, 0, 0
                mine, others = mine + own[place], others + mean
            elif begin >= 0:
                if place - begin >= SLICES_HOT:
                    yield Spot(instance, begin, place, mine, others)
                begin = -1


def _finding(run: Observed, spot: Spot, grid: Grid, total: int) -> Finding:
    at = grid.start_ps + spot.begin * grid.step_ps
    until = min(grid.start_ps + spot.end * grid.step_ps, run.ended_ps)
    time = (spot.end - spot.begin) * grid.step_ps
    mine, others = spot.there_ps / time, spot.peers_ps / time
    stays = run.stays[spot.instance]
    rows = zip(stays.rows, stays.begin_ps, stays.end_ps, strict=True)
    there = [row for row, begin, end in rows if begin < until and end > at]
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=until,
        severity=min(1.0, (spot.there_ps - spot.peers_ps) / total),
        count=len(there),
        title=(
            f"{run.name(spot.instance)} had {mine:,.1f} requests {span(at, until)} where its peers had {others:,.1f} "
            f"each, in the mean over time: {many(len(there), 'request')} in all."
        ),
        requests=run.slowest(there),
        instances=[spot.instance],
        evidence={
            "requests": len(there),
            "mean_requests": mine,
            "mean_requests_of_peers": others,
            "episode_s": seconds(until - at),
        },
    )
