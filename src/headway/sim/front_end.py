"""The front end of an engine with data-parallel ranks: it shows the router one engine, and chooses the rank of each
request by vLLM's rule.

Each rank counts its waiting and running requests after each of its steps. A coordinator publishes the counts of all
ranks to the API servers of the engine every 100 ms. A server sends a request to the rank with the lowest sum
4 · waiting + running. Between two publications, it adds its own requests to the waiting ones of the rank: each counts
as many times as there are servers, because the others are assumed to send as many. A publication replaces these counts,
so a server forgets the requests that the rank has not yet counted.

The simulator schedules no event for a publication. A rank records its counts before its first change after one.
"""

from __future__ import annotations

from typing import Final

from headway.hashing import stable
from headway.sim.instance import Instance
from headway.sim.polling import History
from headway.sim.setup import ClusterSetup
from headway.types import PS_PER_SECOND, Request
from headway.views.instance import REPORTED, InstanceView

INTERVAL_PS: Final = PS_PER_SECOND // 10
WAITING_WEIGHT: Final = 4

Counts = tuple[int, int]  # waiting and running requests


class RankCounts(History):
    """The counts of a rank at the last publication. It takes the place of the rank's `history`. If signals are polled,
    it also calls the history that it replaced."""

    __slots__ = ("before", "counts", "last", "polled", "polled_tick")

    def __init__(self, rank: Instance) -> None:
        self.polled = rank.history
        self.polled_tick = rank.tick
        self.before: Counts = 0, 0  # at the last step boundary before the current run
        self.counts: Counts = 0, 0  # at the publication `last`
        self.last = -1
        rank.history, rank.tick, rank.rank_counts, rank.plain = self, min(0, rank.tick), self, False

    def record(self, instance: Instance, to: int) -> None:
        if self.polled is not None and to >= self.polled_tick:
            self.polled.record(instance, to)
            self.polled_tick = instance.tick
        last = to // INTERVAL_PS * INTERVAL_PS
        if last > self.last:
            self.counts, self.last = self.count(instance, last), last
        instance.tick = min(self.last + INTERVAL_PS, self.polled_tick)

    def published(self, instance: Instance, at: int) -> Counts:
        """Return the counts at the last publication, which was at `at`."""
        return self.counts if self.last == at else self.count(instance, at)

    def note_boundary(self, instance: Instance) -> None:
        """Note the counts before the rank forms its next step."""
        self.before = count_after_step(instance, instance.run.length)

    def count(self, instance: Instance, at: int) -> Counts:
        run = instance.run
        if run.end < 0:
            return count_after_step(instance, run.length)
        ended = run.count_ended(at) if at > run.start else 0
        return count_after_step(instance, ended) if ended else self.before


def count_after_step(instance: Instance, steps: int) -> Counts:
    """Return the counts after the first `steps` steps of a rank's current or last run. The rank learns of a request
    when it begins a step, so requests that came during the last of these steps do not count."""
    began = instance.run.boundary(steps - 1) if steps else -1
    waiting = 0
    for ticket in instance.queue.waiting:
        waiting += ticket.enqueued_ps <= began
    if instance.ahead is not None:
        for entry in instance.ahead.unseen:
            waiting += entry.arrived_ps <= began
    return waiting, len(instance.batch.running)


class FrontEnd:
    def __init__(self, view: InstanceView, ranks: list[Instance], servers: int) -> None:
        self.view = view  # the engine as the router sees it
        self.ranks = ranks
        self.counts = [RankCounts(rank) for rank in ranks]
        self.published_ps = -1
        self.servers: list[list[int]] = [[0] * len(ranks) for _ in range(servers)]  # scores by server and rank

    def choose(self, now: int, request: Request) -> Instance:
        """Return the rank that a request goes to."""
        tick = now // INTERVAL_PS * INTERVAL_PS
        if tick > self.published_ps:
            self.published_ps = tick
            scores = []
            for rank, counts in zip(self.ranks, self.counts, strict=True):
                waiting, running = counts.published(rank, tick)
                scores.append(WAITING_WEIGHT * waiting + running)
            self.servers = [scores[:] for _ in self.servers]
        count, servers = len(self.ranks), len(self.servers)
        # Any of the servers may accept a request. A hash chooses it, so that no random stream is used.
        server = stable(self.view.index, request.id) % servers if servers > 1 else 0
        scores = self.servers[server]
        start = count * server // servers  # on a tie, each server begins with another rank
        best = min(range(count), key=lambda rank: (scores[rank], (rank - start) % count))
        scores[best] += WAITING_WEIGHT * servers
        return self.ranks[best]


def front_ends(setup: ClusterSetup, instances: list[Instance]) -> dict[int, FrontEnd]:
    """Return the front ends of the engines that have one, by the index of the engine's first rank."""
    fronts: dict[int, FrontEnd] = {}
    for engine in setup.engines:
        if engine.target is not None and engine.servers:
            first = engine.view.index
            fronts[first] = FrontEnd(engine.target, instances[first : first + engine.ranks], engine.servers)
    return fronts


class EngineView:
    """Shows the ranks of an engine as one engine: sums of counts, blocks, watts and rates, and means of shares."""

    def __init__(self, view: InstanceView, ranks: list[InstanceView], unwanted: list[str]) -> None:
        self.view, self.ranks = view, ranks
        self.names = [name for name in REPORTED if name not in unwanted]
        view.hide(*unwanted)

    def show(self) -> None:
        """Write the reported signals of the ranks to the view of the engine."""
        view = self.view
        view.observed_at = self.ranks[0].observed_at
        for name in self.names:
            values = [getattr(rank, name) for rank in self.ranks]
            if name == "adapters":
                setattr(view, name, tuple(sorted({adapter for loaded in values for adapter in loaded})))
            elif name == "tier_used":
                setattr(view, name, {tier: sum(used[tier] for used in values) for tier in values[0]})
            else:
                total = values[0]
                for value in values[1:]:
                    total += value
                setattr(view, name, total / len(values) if name in MEANS else total)


MEANS: Final = ("busy", "hit_rate")


def engine_view(ranks: list[InstanceView], name: str) -> InstanceView:
    """Return the view of an engine from those of its ranks."""
    first, count = ranks[0], len(ranks)
    return InstanceView(
        first.index,
        name,
        model=first.model,
        pool=first.pool,
        state=first.state,
        kv_blocks=first.kv_blocks * count,
        max_batch_size=first.max_batch_size * count,
        max_batch_tokens=first.max_batch_tokens * count,
        max_queue=first.max_queue,
        capacity=first.capacity,
        usd_per_hour=first.usd_per_hour * count,
        adapter_slots=first.adapter_slots,
        serves=first.serves,
        tier_blocks={tier: blocks * count for tier, blocks in first.tier_blocks.items()},
    )
