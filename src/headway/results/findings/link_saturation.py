"""Link saturation: transfers of KV caches take long because they share the link out of their prefill instance.

A transfer is on the link from max(`transfer_ps`, `handed_ps`) until `transferred_ps` minus the latency of the link.
Transfers share the bandwidth equally: while n of them are on the link, each progresses at 1/n of the speed that it has
alone, and loses the fraction 1 − 1/n of its time to the others. The sum of this time is the delay of the transfer. The
link is crowded while n is at least `CROWD`. Crowded periods that are at most `GAP_PS` apart form an episode. In an
episode, the link must be crowded for at least `LEAST_PS` in total. The requests of the episode are those whose
transfers overlap it. Their delay must be at least `LEAST_SHARE` of their time from arrival to end. Severity: that
fraction.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from headway.config.units import duration_ps
from headway.results.findings.cluster_remedies import faster_link
from headway.results.findings.observed import (
    CAUSE,
    Observed,
    duration,
    examples,
    many,
    moment,
    percent,
    seconds,
    span,
    worst,
)
from headway.results.records import Blame, Finding, Suggestion
from headway.types import PS_PER_SECOND, Json

KIND: Final = "link_saturation"
ROLE: Final = CAUSE
AREA: Final = "transfers"
ORDER: Final = 14
CROWD: Final = 4
GAP_PS: Final = PS_PER_SECOND
LEAST_PS: Final = PS_PER_SECOND
LEAST_SHARE: Final = 0.05


class Transfer(NamedTuple):
    begin: int
    end: int
    row: int


class Episode(NamedTuple):
    begin: int
    end: int
    crowded_ps: int


class Traffic:
    """The number of transfers on one link over time: `counts[k]` from `times[k]` to `times[k + 1]`."""

    def __init__(self, transfers: Sequence[Transfer]) -> None:
        changes: dict[int, int] = {}
        for transfer in transfers:
            changes[transfer.begin] = changes.get(transfer.begin, 0) + 1
            changes[transfer.end] = changes.get(transfer.end, 0) - 1
        self.times = sorted(changes)
        self.counts = list(accumulate(changes[at] for at in self.times))
        lengths = [after - at for at, after in zip(self.times, self.times[1:], strict=False)]
        pairs = list(zip(self.counts, lengths, strict=False))
        # Totals up to each of `times`. `busy`: the time in which the link has transfers. `progress`: the same time, but
        # each part is divided by the number of transfers, which share the link equally. The increase of `progress`
        # during a transfer is the time that the transfer would take alone.
        self.progress = list(accumulate((length / count if count else 0.0 for count, length in pairs), initial=0.0))
        self.busy = list(accumulate((length if count else 0 for count, length in pairs), initial=0))

    def alone_ps(self, transfer: Transfer) -> float:
        """Return how long a transfer takes if it has the link for itself."""
        begin, end = (bisect_left(self.times, at) for at in (transfer.begin, transfer.end))
        return self.progress[end] - self.progress[begin]

    def busy_ps(self, begin: int, end: int) -> int:
        """Return how long the link is busy between two of `times`."""
        return self.busy[bisect_left(self.times, end)] - self.busy[bisect_left(self.times, begin)]

    def peak(self, begin: int, end: int) -> int:
        return max(self.counts[bisect_left(self.times, begin) : bisect_right(self.times, end)])

    def episodes(self) -> Iterator[Episode]:
        begin = end = -1
        crowded = 0
        for at, after, count in zip(self.times, self.times[1:], self.counts, strict=False):
            if count < CROWD:
                continue
            if begin >= 0 and at - end > GAP_PS:
                yield Episode(begin, end, crowded)
                begin, crowded = -1, 0
            begin = at if begin < 0 else begin
            end = after
            crowded += after - at
        if begin >= 0:
            yield Episode(begin, end, crowded)


def find(run: Observed) -> list[Finding]:
    findings = []
    for instance, transfers in sorted(_transfers(run).items()):
        traffic = Traffic(transfers)
        transfers.sort()
        longest = max(transfer.end - transfer.begin for transfer in transfers)
        for episode in traffic.episodes():
            if episode.crowded_ps >= LEAST_PS:
                # No transfer takes more than `longest`, so a transfer that began earlier does not overlap the episode.
                first = bisect_left(transfers, (episode.begin - longest,))
                rest = transfers[first : bisect_left(transfers, (episode.end,))]
                inside = [transfer for transfer in rest if transfer.end > episode.begin]
                finding = _finding(run, instance, traffic, episode, inside)
                if finding.severity >= LEAST_SHARE:
                    findings.append(finding)
    return worst(findings)


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from faster_link(run, finding)


def _transfers(run: Observed) -> dict[int, list[Transfer]]:
    """Return the transfers on the link out of each prefill instance."""
    requests = run.requests
    transfers: dict[int, list[Transfer]] = {}
    if not len(requests) or max(requests.transferred_ps) < 0:
        return transfers
    latencies = _latencies(run.scenario)
    pools = {index: instance.get("pool", "") for index, instance in run.result.instances().items()}
    names = ("handed_ps", "transfer_ps", "transferred_ps", "prefill_instance", "redirects")
    for row, (handed, begun, arrived, prefill, moved) in enumerate(requests.select(*names)):
        if arrived < 0 or moved:
            continue
        begin, end = max(handed, begun), arrived - latencies.get(pools.get(prefill, ""), 0)
        if end > begin:
            transfers.setdefault(prefill, []).append(Transfer(begin, end, row))
    return transfers


def _latencies(scenario: Json) -> dict[str, int]:
    """Return the latency of the links of each deployment by name; the name is "" if the cluster has no deployments."""
    cluster = scenario.get("cluster", {})
    deployments = cluster.get("deployments") or {"": cluster}
    links = {name: keys.get("transfer") or {} for name, keys in deployments.items()}
    return {name: duration_ps(keys["latency"], "latency") for name, keys in links.items() if "latency" in keys}


def _finding(run: Observed, instance: int, traffic: Traffic, episode: Episode, inside: list[Transfer]) -> Finding:
    alive = run.lifetime_ps(transfer.row for transfer in inside)
    alone = [traffic.alone_ps(transfer) for transfer in inside]
    times = [transfer.end - transfer.begin for transfer in inside]
    delay = sum(times) - sum(alone)
    busy = traffic.busy_ps(episode.begin, episode.end) / (episode.end - episode.begin)
    peak = traffic.peak(episode.begin, episode.end)
    mean, mean_alone = sum(times) // len(inside), round(sum(alone) / len(inside))
    stays = episode.end >= run.requests.arrival_ps[len(run.requests) - 1]
    when = f"since {moment(episode.begin)}" if stays else span(episode.begin, episode.end)
    return Finding(
        kind=KIND,
        at_ps=episode.begin,
        until_ps=episode.end,
        severity=min(1.0, delay / alive) if alive else 0.0,
        count=len(inside),
        title=(
            f"{many(len(inside), 'transfer')} shared the link out of {run.name(instance)} {when}, up to {peak:,} at "
            f"once: a transfer took {duration(mean)} on average and would take {duration(mean_alone)} alone; the link "
            f"was busy {percent(busy)} of that time, and sharing it is {percent(delay / alive if alive else 0.0)} of "
            "these requests' time."
        ),
        requests=examples((time - own, each.row) for time, own, each in zip(times, alone, inside, strict=True)),
        instances=[instance],
        evidence={
            "link": run.name(instance),
            "transfers": len(inside),
            "peak": peak,
            "busy": busy,
            "crowded_s": seconds(episode.crowded_ps),
            "episode_s": seconds(episode.end - episode.begin),
            "mean_transfer_s": seconds(sum(times)) / len(inside),
            "mean_alone_s": sum(alone) / len(inside) / PS_PER_SECOND,
            "delay_s": delay / PS_PER_SECOND,
            "requests_s": seconds(alive),
        },
        explains=run.loss.share((transfer.row for transfer in inside), ("transfer",)),
        resource="link",
        blames=[Blame("instance", run.name(instance), 1.0)],
    )
