"""Hot spot: one instance has far more requests than its peers for a while.

The run is divided into `SLICES` equal slices of at least one second. An instance is hot in a slice if, on average over
the slice, it has at least `FACTOR` times as many requests as the mean of its peers, and at least `EXCESS` more. Its
peers are the other open instances of the same model and role. A finding needs `SLICES_HOT` hot slices in a row. The
excess is the time that requests spent at the hot instance while it was hot, minus the mean of this time over its peers.
Severity: the excess divided by the time that requests spent at all instances of this model and role in the run.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from headway.results.findings.cluster_remedies import fresher_signals, more_replicas
from headway.results.findings.observed import CAUSE, Observed, many, runs, seconds, span, worst
from headway.results.findings.policy_remedies import EXACT, balance
from headway.results.findings.run_settings import name_of
from headway.results.records import ROUTING, Blame, Finding, Suggestion
from headway.results.time_grid import Grid, SpanSums
from headway.results.time_split import QUEUED
from headway.types import PS_PER_SECOND, SERVING

KIND: Final = "hot_spot"
ROLE: Final = CAUSE
AREA: Final = "routing"
ORDER: Final = 9
# Kinds that say why an instance has more requests than its peers.
YIELDS_TO: Final = (
    "slow_instance",
    "hot_prefix",
    "herding",
    "shadow_divergence",
    "slow_start",
    "scale_oscillation",
    "black_hole",
    "runaway_session",
)
SLICES: Final = 200
SLICE_PS: Final = PS_PER_SECOND
SLICES_HOT: Final = 3
FACTOR: Final = 2
EXCESS: Final = 8


class Spot(NamedTuple):
    """An instance that is hot in all slices from `begin` up to, but not including, `end`."""

    instance: int
    begin: int
    end: int
    there_ps: int  # total time that requests spent at the instance in these slices
    peers_ps: int  # total time that requests spent at a peer in these slices, as a mean over the peers


def find(run: Observed) -> list[Finding]:
    if run.length_ps < SLICES_HOT * SLICE_PS:
        return []
    width = max(SLICE_PS, -(-run.length_ps // SLICES))
    grid = Grid(run.started_ps, width, -(-run.length_ps // width))
    findings = []
    for peers in run.peers.values():
        stays = [run.stays[instance] for instance in peers]
        loads = [sum_by_slice(grid, zip(stay.begin_ps, stay.end_ps, strict=True)) for stay in stays]
        open_ps = serving(run, peers, grid)
        total = sum(map(sum, loads))
        for spot in _hot(peers, loads, open_ps, grid):
            findings.append(_finding(run, spot, grid, total))
    return worst(findings)


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from balance(run)
    yield from fresher_signals(run)
    if name_of(run, ROUTING) in EXACT:  # with another policy, new instances would not get these requests
        yield from more_replicas(run, finding)


def sum_by_slice(grid: Grid, spans: Iterable[tuple[int, int]]) -> list[int]:
    """Return, for each slice, how long each span overlaps it, summed over all spans."""
    sums = SpanSums(grid)
    for begin, end in spans:
        sums.add(begin, end)
    return sums.totals()


def serving(run: Observed, peers: Sequence[int], grid: Grid) -> list[list[int]]:
    """Return for each instance the time in each slice during which it was open to requests."""
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
        # Mean load of the peers in each slice. Without an open peer it is the instance's own load, so that the instance
        # is not hot.
        means = [
            (total - mine) * grid.step_ps // (open_ - here) if open_ > here else mine
            for total, mine, open_, here in zip(everything, own, open_ps, there, strict=True)
        ]
        pairs = enumerate(zip(own, means, strict=True))
        hot = [at for at, (mine, mean) in pairs if mine >= max(FACTOR * mean, mean + EXCESS * grid.step_ps)]
        for first, last in runs(hot, 1):
            begin, end = hot[first], hot[last - 1] + 1
            if end - begin >= SLICES_HOT:
                yield Spot(instance, begin, end, sum(own[begin:end]), sum(means[begin:end]))


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
            f"{run.name(spot.instance)} had {mine:,.1f} requests on average {span(at, until)} while its peers had "
            f"{others:,.1f} each; {many(len(there), 'request')} were there in total."
        ),
        requests=run.slowest(there),
        instances=[spot.instance],
        evidence={
            "requests": len(there),
            "mean_requests": mine,
            "mean_requests_of_peers": others,
            "episode_s": seconds(until - at),
        },
        explains=run.loss.share(there, (*QUEUED, "preemption", "prefill", "decode")) * (1 - others / mine),
        resource="choice",
        blames=[Blame("instance", run.name(spot.instance), 1.0)],
    )
