"""The stores below an instance's GPU, and what moves between them.

What happens there is decided only at scheduling changes (a request enters, leaves, yields or gives up, or its blocks
have arrived), never inside a run: what the GPU's cache has evicted, or stored, is noted and settled at the next change.

    lazy        what the GPU evicts moves down; what is loaded moves up again: the stores add to each other
    threshold   the same, but the GPU gives up its least recent content already above a level of use
    eager       what is computed is copied down at once; a load leaves the copy: the larger store counts
"""

from __future__ import annotations

from collections.abc import Iterable

from headway.sim.job import Job
from headway.sim.kv_cache import KvCache, Runs
from headway.sim.link import Links
from headway.sim.load import Load
from headway.sim.setup import EngineSetup
from headway.sim.store import Store, Stretch
from headway.types import PS_PER_SECOND

THRASH_PS = PS_PER_SECOND  # what is loaded so soon after it was stored away need not have gone


class Tier:
    """One store of one instance, or of several (`shared`), and the link to it."""

    __slots__ = (
        "filled",
        "link",
        "loaded",
        "name",
        "peak",
        "shared",
        "since",
        "store",
        "stored",
        "swapped",
        "thrashed",
    )

    def __init__(self, name: str, blocks: int, link: int, shared: bool) -> None:
        self.name = name
        self.store = Store(blocks)
        self.link = link
        self.shared = shared
        # blocks
        self.stored = 0  # that came down
        self.loaded = 0  # that went up
        self.thrashed = 0  # that went up within THRASH_PS after they had come down
        self.swapped = 0  # of requests that had to yield, at present
        self.peak = 0
        self.filled = 0  # blocks x ps
        self.since = 0

    def settle(self, now: int) -> None:
        """Before the store changes."""
        self.filled += (self.store.used + self.swapped) * (now - self.since)
        self.since = now


class Tiers:
    __slots__ = ("block_bytes", "cache", "eager", "instance", "level", "links", "swaps", "tiers")

    def __init__(self, instance: int, cache: KvCache, tiers: list[Tier], links: Links, engine: EngineSetup) -> None:
        self.instance = instance
        self.cache = cache
        self.tiers = tiers  # the fastest first
        self.links = links
        self.block_bytes = engine.block_bytes
        self.eager = engine.offload == "eager"
        self.swaps = engine.swaps
        self.level = cache.total  # blocks that the GPU keeps
        if engine.offload == "threshold":
            self.level = int(engine.offload_level * cache.total)
        if self.eager:
            cache.stored = []
        else:
            cache.spilt = []

    # --- up --------------------------------------------------------------------------------------------------

    def match(self, runs: Runs, start: int, limit: int) -> int:
        """Where the blocks end that lie in some store without a gap from `start` on, at most `limit`."""
        at = start
        for _, _, at in self.places(runs, start, limit):  # noqa: B007
            pass
        return at

    def places(self, runs: Runs, start: int, limit: int) -> Iterable[tuple[Tier, int, int]]:
        """Where the blocks from `start` on lie: tier, first and end block; each in the fastest that has it."""
        at = start
        while at < limit:
            for tier in self.tiers:
                end = tier.store.match(runs, at, limit)
                if end > at:
                    yield tier, at, end
                    at = end
                    break
            else:
                return

    def load(self, now: int, job: Job, start: int, end: int) -> None:
        """The blocks of a request begin to move up."""
        load = Load(self.instance, job, start, end)
        for tier, first, last in list(self.places(job.runs, start, end)):
            tier.loaded += last - first
            tier.thrashed += tier.store.younger(job.runs, first, last, now - THRASH_PS)
            if self.eager or tier.shared:  # it was used
                self.put([tier], now, stretches(job.runs, first, last))
            load.left += 1
            self.links.start(now, tier.link, (last - first) * self.block_bytes, load)

    def loaded(self, now: int, runs: Runs, start: int, end: int) -> None:
        """They have arrived: where stores add to each other, each block lies in one of them."""
        if self.eager:
            return
        for tier in self.tiers:
            if not tier.shared:
                tier.settle(now)
                for key, first, last in stretches(runs, start, end):
                    tier.store.discard(key, first, last)

    # --- who had to yield ----------------------------------------------------------------------------------------

    def swap_out(self, now: int, job: Job) -> bool:
        """The blocks of a request that has to yield come down as they are, if the first store can hold them."""
        tier = self.tiers[0]
        if not self.swaps or job.blocks > tier.store.blocks:
            return False
        tier.settle(now)
        tier.store.blocks -= job.blocks
        tier.swapped += job.blocks
        self.put(self.tiers[1:], now, tier.store.overflow())
        self.links.start(now, tier.link, job.blocks * self.block_bytes, None)
        return True

    def swap_in(self, now: int, job: Job) -> None:
        """They begin to move up again."""
        load = Load(self.instance, job, 0, job.swapped)
        load.left = 1
        self.links.start(now, self.tiers[0].link, job.swapped * self.block_bytes, load)

    def end_swap(self, now: int, job: Job) -> None:
        """They have arrived, or nobody wants them any more."""
        tier = self.tiers[0]
        tier.settle(now)
        tier.store.blocks += job.swapped
        tier.swapped -= job.swapped
        job.swapped = 0

    # --- down ------------------------------------------------------------------------------------------------

    def settle(self, now: int) -> None:
        """A scheduling change: what the GPU's cache has let go, or stored, since the last one comes down."""
        cache = self.cache
        if self.eager:
            assert cache.stored is not None
            if cache.stored:
                self.put(self.tiers, now, cache.stored)
                cache.stored.clear()
            return
        assert cache.spilt is not None
        over = min(cache.held + cache.idle - self.level, cache.idle)
        if over > 0:
            cache.evict(over)
        if cache.spilt:
            self.put(self.tiers, now, cache.spilt)
            cache.spilt.clear()

    def put(self, tiers: list[Tier], now: int, content: list[Stretch]) -> None:
        """Content comes into the first of the stores, and what that loses into the next."""
        for tier in tiers:
            if not content:
                break
            tier.settle(now)
            store, fresh = tier.store, 0
            for key, start, end in content:
                fresh += store.put(key, start, end, now)
            content = store.overflow()
            tier.peak = max(tier.peak, store.used)
            if fresh:
                tier.stored += fresh
                self.links.start(now, tier.link, fresh * self.block_bytes, None)


def stretches(runs: Runs, start: int, end: int) -> list[Stretch]:
    """The blocks from `start` to `end` by key, the last first, so that the head is the most recent."""
    found: list[Stretch] = []
    first = 0
    for key, last in runs:
        if last > start and first < end:
            found.append((key, max(first, start), min(last, end)))
        first = last
    return found[::-1]
