"""Uneven load: late requests were at instances with far more requests than other instances that could take them.

The run is divided into `SLICES` equal slices of at least one second. For each slice and instance, the mean number of
requests at the instance is compared with m, the mean over the less loaded half of its open peers. The instance is
overloaded in the slice if it has at least `FACTOR` · m requests, and at least `EXCESS` more. Unlike for `hot_spot`, any
number of instances may be overloaded at the same time, for example all the slow ones of a cluster of unequal instances.

A late request counts with the loss at its instance, for the mean of 1 − m/n over the slices from its dispatch to its
end, or to the last arrival; n is the number of requests at the instance, and slices without overload count as 0. There
is one finding if it explains at least `LEAST` of the loss. Severity: the loss that it explains, as a fraction of the
counted requests.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from headway.results.findings.cluster_remedies import fresher_signals
from headway.results.findings.hot_spot import serving, sum_by_slice
from headway.results.findings.observed import CAUSE, Observed, busiest, examples, many, percent
from headway.results.findings.policy_remedies import balance
from headway.results.records import Blame, Finding, Suggestion
from headway.results.time_grid import Grid
from headway.results.time_split import QUEUED
from headway.types import PS_PER_SECOND

KIND: Final = "uneven_load"
ROLE: Final = CAUSE
AREA: Final = "routing"
ORDER: Final = 29
# Kinds that say why instances have unequal loads.
YIELDS_TO: Final = (
    "hot_spot", "herding", "hot_prefix", "slow_instance", "shadow_divergence", "slow_start", "scale_oscillation",
    "black_hole", "instance_failure", "cold_cache", "runaway_session", "noisy_neighbour", "head_of_line_blocking",
    "adapter_thrashing", "tenant_burst", "cache_thrashing", "preemption_storm",
)  # fmt: skip
SLICES: Final = 200
FACTOR: Final = 2
EXCESS: Final = 8
LEAST: Final = 0.25
FEWEST: Final = 5
BLAMED: Final = 3
PARTS: Final = (*QUEUED, "preemption", "prefill", "decode")


def find(run: Observed) -> list[Finding]:
    if len(run.loss.late) < FEWEST or not run.peers or run.length_ps < PS_PER_SECOND:
        return []
    width = max(PS_PER_SECOND, -(-run.length_ps // SLICES))
    grid = Grid(run.started_ps, width, -(-run.length_ps // width))
    excess = {instance: rate for peers in run.peers.values() for instance, rate in _excess(run, peers, grid).items()}
    claims: dict[int, float] = {}
    where: dict[int, float] = {}
    for row in run.loss.late:
        instance = run.requests.instance[row]
        if instance in excess and (claim := run.loss.of(row, PARTS) * _mean(run, row, grid, excess[instance])) > 0:
            claims[row] = claim
            where[instance] = where.get(instance, 0.0) + claim
    explains = run.loss.claim(claims)
    if explains < LEAST or len(claims) < FEWEST:
        return []
    return [_finding(run, claims, where, explains)]


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from balance(run)
    yield from fresher_signals(run)


def _excess(run: Observed, peers: Sequence[int], grid: Grid) -> dict[int, list[float]]:
    """Return for each instance the value of 1 − m/n in each slice; 0 if the instance is not overloaded."""
    stays = [run.stays[instance] for instance in peers]
    loads = [sum_by_slice(grid, zip(stay.begin_ps, stay.end_ps, strict=True)) for stay in stays]
    open_ps = serving(run, peers, grid)
    result = {instance: [0.0] * grid.bins for instance in peers}
    for place in range(grid.bins):
        here = sorted(
            (load[place] / time[place], instance)
            for instance, load, time in zip(peers, loads, open_ps, strict=True)
            if 2 * time[place] >= grid.step_ps
        )
        for rank, (mine, instance) in enumerate(here):
            others = [load for other, (load, _) in enumerate(here) if other != rank]
            lower = others[: (len(others) + 1) // 2]
            mean = sum(lower) / len(lower) if lower else mine
            if mine >= max(FACTOR * mean, mean + EXCESS):
                result[instance][place] = 1 - mean / mine
    return result


def _mean(run: Observed, row: int, grid: Grid, rates: Sequence[float]) -> float:
    """Return the mean of the rates from a request's dispatch to its end, or to the last arrival if that is earlier:
    after it, the router chooses no more."""
    begin, end = run.requests.routed_ps[row], run.requests.finished_ps[row]
    last_arrival = run.requests.arrival_ps[len(run.requests) - 1]
    until = max(begin, min(end if end >= 0 else run.ended_ps, last_arrival))
    span = ((at - grid.start_ps) // grid.step_ps for at in (begin, until))
    first, last = (min(grid.bins - 1, max(0, place)) for place in span)
    return sum(rates[first : last + 1]) / (last + 1 - first)


def _finding(run: Observed, claims: dict[int, float], where: dict[int, float], explains: float) -> Finding:
    total = sum(where.values())
    at, until = run.loss.main_period(claims)
    count = run.loss.count(len(claims))
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=until,
        severity=explains * run.loss.late_share,
        count=count,
        title=(
            f"{many(count, 'late request')} were at {run.names(where)} while other instances had less than half as "
            f"many requests; this explains {percent(explains)} of the loss."
        ),
        requests=examples((claim, row) for row, claim in claims.items()),
        instances=busiest(where),
        evidence={"late": count, "instances": {run.name(each): where[each] / total for each in busiest(where)}},
        explains=explains,
        resource="choice",
        blames=[Blame("instance", run.name(each), where[each] / total) for each in busiest(where)[:BLAMED]],
    )
