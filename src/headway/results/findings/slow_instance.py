"""Slow instance: an instance computes more slowly than its peers although it computes no more requests at once.

The run is divided into `SLICES` equal slices of at least `SLICE_PS`. Three kinds of work are compared: the prompt
tokens and the prompts that an instance computes, and the output tokens. For each slice, instance and kind, n is the
mean number of requests in the phase of this work (prefill or decode), and w the work; the work of a request is spread
evenly over its phase. Time after a preemption does not count, nor does the prefill of requests that load blocks from a
tier below the GPU. With n' and w', the means of the peers that were open, the slowness is n/w divided by n'/w', and
also divided by n/n' if n is larger: more requests at once take longer each, but do not make an instance compute less.
The lowest of the slownesses counts, because an instance that only has other work, such as longer or uncached prompts,
is not slow in every kind. An instance is slow in a slice if its slowness is at least `FACTOR`, with n at least `LEAST`.
A finding needs `SLICES_SLOW` slow slices in a row, all before the last arrival; gaps of one slice count as slow.

For the late requests that were at the instance while it was slow, the finding explains 1 − 1/slowness of the loss, or
the fraction that would not be late at the rate of the peers in this time, whichever is larger. Late requests that were
at a peer meanwhile got the work that the instance did not do: of them, the finding explains the fraction that would not
be late at the rate of the rest of the run. Severity: the fraction of the run in which the instance was slow, times
1 − 1/slowness.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from headway.results.findings.cluster_remedies import more_replicas
from headway.results.findings.hot_spot import serving
from headway.results.findings.observed import CAUSE, Observed, many, runs, seconds, span, worst
from headway.results.findings.policy_remedies import balance
from headway.results.loss import PARTS
from headway.results.records import Blame, Finding, Suggestion
from headway.results.sample import MISSED
from headway.results.time_grid import Grid
from headway.types import PS_PER_SECOND

KIND: Final = "slow_instance"
ROLE: Final = CAUSE
AREA: Final = "capacity"
ORDER: Final = 23
SLICES: Final = 200
SLICE_PS: Final = PS_PER_SECOND // 4
SLICES_SLOW: Final = 3
FACTOR: Final = 1.5
LEAST: Final = 0.5
MOST: Final = 100  # the highest slowness that is told apart
YIELDS_TO: Final = ("black_hole", "instance_failure")  # work that fails is not done
HIT: Final = tuple(part for part in PARTS if part not in ("router", "rejected", "failed"))


class Kind(NamedTuple):
    """One kind of work in each slice: the requests in its phase and the work done, here and as a mean over the peers
    that were open."""

    here: list[float]
    work: list[float]
    others: list[float]
    others_work: list[float]

    def slowness(self, at: int) -> float | None:
        """Return the slowness in a slice; None if there is nothing to compare."""
        n, w, peers, done = self.here[at], self.work[at], self.others[at], self.others_work[at]
        if n < LEAST or peers <= 0 or done <= 0:
            return None
        return n * done / max(w, done / MOST) / max(n, peers)


class Pace(NamedTuple):
    kinds: tuple[Kind, ...]

    def slowness(self, at: int) -> float:
        values = [value for kind in self.kinds if (value := kind.slowness(at)) is not None]
        return min(values, default=0.0)

    def running(self, slices: Sequence[int]) -> tuple[float, float]:
        """Return the mean number of requests in prefill and decode, here and at a peer."""
        phases = (self.kinds[0], self.kinds[2])
        return (
            sum(kind.here[at] for kind in phases for at in slices) / len(slices),
            sum(kind.others[at] for kind in phases for at in slices) / len(slices),
        )


def find(run: Observed) -> list[Finding]:
    if run.length_ps < SLICES_SLOW * SLICE_PS or not run.loss.late:
        return []
    width = max(SLICE_PS, -(-run.length_ps // SLICES))
    grid = Grid(run.started_ps, width, -(-run.length_ps // width))
    # After the last arrival, instances differ in the work that is left.
    bins = (run.requests.arrival_ps[len(run.requests) - 1] - run.started_ps) // width
    findings = []
    for peers in run.peers.values():
        for instance, pace in _paces(run, peers, grid).items():
            slow = [at for at in range(bins) if pace.slowness(at) >= FACTOR]
            places = [(slow[begin], slow[end - 1] + 1) for begin, end in runs(slow, 2)]
            places = [(begin, end) for begin, end in places if end - begin >= SLICES_SLOW]
            if places:
                findings.append(_finding(run, instance, peers, pace, places, grid))
    return worst(finding for finding in findings if finding.explains)


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from balance(run)
    yield from more_replicas(run, finding)


def others_of(run: Observed, instance: int, peers: Sequence[int]) -> list[int]:
    """Return the peers of an instance. The ranks of one engine are as slow as each other, so they are compared with
    those of other engines."""
    engines = {peer: run.name(peer).rpartition("-rank-")[0] or run.name(peer) for peer in peers}
    others = [peer for peer in peers if engines[peer] != engines[instance]]
    return others or [peer for peer in peers if peer != instance]


def _paces(run: Observed, peers: Sequence[int], grid: Grid) -> dict[int, Pace]:
    series = [_series(run, instance, grid) for instance in peers]
    open_shares = [[time / grid.step_ps for time in times] for times in serving(run, peers, grid)]
    paces = {}
    for place, instance in enumerate(peers):
        compared = others_of(run, instance, peers)
        others = [other for other, peer in enumerate(peers) if peer in compared]
        # An instance that was open for a part of the slice counts as that part of a peer.
        open_ = [max(1e-9, sum(open_shares[other][at] for other in others)) for at in range(grid.bins)]
        kinds = []
        for kind, (here, work) in enumerate(series[place]):
            means = [
                [sum(series[other][kind][which][at] for other in others) / open_[at] for at in range(grid.bins)]
                for which in (0, 1)
            ]
            kinds.append(Kind(here, work, means[0], means[1]))
        paces[instance] = Pace(tuple(kinds))
    return paces


def _series(run: Observed, instance: int, grid: Grid) -> list[tuple[list[float], list[float]]]:
    """Return for each kind of work the requests in its phase and the work done, in each slice."""
    requests, left = run.requests, run.waits.left_ps
    prefills, prompt_tokens, prompts, decodes, outputs = ([0.0] * (grid.bins + 1) for _ in range(5))
    stays, step = run.stays[instance], grid.step_ps
    for row, begin, end in zip(stays.rows, stays.begin_ps, stays.end_ps, strict=True):
        handed, first = requests.handed_ps[row], requests.first_token_ps[row]
        # A request that loads blocks may wait for room after the load, so the time of its prefill is not known.
        if (handed < 0 or handed > begin) and requests.started_ps[row] >= 0 and not requests.loaded_tokens[row]:
            since, until = left[row], first if handed < 0 <= first else end
            tokens = requests.prompt_tokens[row] - requests.cached_tokens[row]
            _spread(grid, since, until, (prefills, (until - since) / step), (prompt_tokens, tokens), (prompts, 1))
        if first >= 0 and requests.prefill_instance[row] != instance:
            since = max(first, requests.transferred_ps[row], begin)
            decoding = max(0, end - since - requests.preempted_ps[row])
            _spread(grid, since, end, (decodes, decoding / step), (outputs, requests.output_tokens[row]))
    pairs = ((prefills, prompt_tokens), (prefills, prompts), (decodes, outputs))
    return [(here[: grid.bins], work[: grid.bins]) for here, work in pairs]


def _spread(grid: Grid, begin: int, end: int, *works: tuple[list[float], float]) -> None:
    """Spread each amount of work evenly over a period, and add it to its slices."""
    if end <= begin:
        return
    step, bins, start = grid.step_ps, grid.bins, grid.start_ps
    first, last = min(bins, max(0, begin - start) // step), min(bins, max(0, end - start) // step)
    low = start + first * step
    for done, work in works:
        rate = work / (end - begin)
        if first == last:
            done[first] += rate * max(0, min(end, low + step) - max(begin, low))
            continue
        done[first] += rate * (low + step - max(begin, low))
        whole = rate * step
        for at in range(first + 1, last):
            done[at] += whole
        done[last] += rate * (min(end, start + last * step + step) - start - last * step)


def _finding(
    run: Observed, instance: int, peers: Sequence[int], pace: Pace, places: list[tuple[int, int]], grid: Grid
) -> Finding:
    slices = [at for begin, end in places for at in range(begin, end)]
    values = sorted(pace.slowness(at) for at in slices if pace.slowness(at) >= FACTOR)
    slowness = values[len(values) // 2]
    edges = [(grid.start_ps + begin * grid.step_ps, grid.start_ps + end * grid.step_ps) for begin, end in places]
    at, until = edges[0][0], min(edges[-1][1], run.ended_ps)
    stays = run.stays[instance]
    rows = {
        row
        for row, begin, end in zip(stays.rows, stays.begin_ps, stays.end_ps, strict=True)
        if any(begin < edge[1] and end > edge[0] for edge in edges)
    }
    lost = 1 - 1 / slowness
    here_late = sum(run.missed[row] == MISSED for row in rows) / max(1, len(rows))
    caused = max(lost, 1 - run.late_rate(edges, others_of(run, instance, peers)) / max(1e-9, here_late))
    claims = {row: caused * run.loss.of(row, HIT) for row in run.loss.late if row in rows}
    own = run.loss.claim(claims)
    excess = run.excess_late(edges, peers)
    claims |= {row: excess * run.loss.of(row, HIT) for row in run.late_during(edges, peers) if row not in rows}
    time = sum(edge[1] - edge[0] for edge in edges)
    name = run.name(instance)
    here, others = pace.running(slices)
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=until,
        severity=min(1.0, lost * time / max(1, run.length_ps)),
        count=len(rows),
        title=(
            f"{name} was {slowness:,.1f} times slower than its peers {span(at, until)}, although it computed "
            f"{here:,.1f} requests at once and they {others:,.1f}; {many(len(rows), 'request')} were there."
        ),
        requests=run.slowest(rows),
        instances=[instance],
        evidence={
            "slowness": slowness,
            "requests": len(rows),
            "mean_requests": here,
            "mean_requests_of_peers": others,
            "slow_s": seconds(time),
            "explains_here": own,
        },
        explains=run.loss.claim(claims),
        resource="prefill" if run.result.instances()[instance].get("role") == "prefill" else "decode",
        blames=[Blame("instance", name, 1.0)],
    )
