"""A tier: a store of KV content below the GPU, the link to it, and its statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.policies.prefix_tiers import TIERS
from headway.results.recorder import TierStats
from headway.sim.kv_cache import Stretch
from headway.sim.link import Link
from headway.sim.recent_values import Ticks
from headway.sim.samples import Samples
from headway.sim.store import Store

if TYPE_CHECKING:
    from headway.sim.tiers import Tiers

Change = tuple[int, int, int, int, bool]  # (time, key, first block, end block, True if put or False if evicted)


class Tier:
    def __init__(self, name: str, blocks: int, link: int, shared: bool, ranked: bool = False) -> None:
        self.name = name
        self.level = TIERS.index(name)
        self.store = Store(blocks, ranked)
        self.link = link
        self.shared = shared  # whether several instances use the store
        # The next seven fields are numbers of blocks.
        self.stored = 0  # blocks moved down to the store
        self.loaded = 0  # blocks moved up from the store
        self.thrashed = 0  # blocks moved up within THRASH_PS after they had moved down
        self.swapped = 0  # current blocks of swapped-out requests
        self.lent = 0  # blocks that are moving up: the GPU has allocated blocks for them, but the store still has them
        self.noted = 0  # blocks in use at the last call of `note`
        self.peak = 0  # maximum of `noted`
        self.filled = 0  # integral of the used blocks over time, in blocks x ps
        self.since = 0  # time of the last update of `filled`
        self.hits = 0  # number of blocks that requests loaded when their turn came for the first time
        self.samples: Samples | None = None  # samples of the number of used blocks over the run
        self.polled: Ticks | None = None  # number of used blocks at each tick; set if signals are polled
        self.users: list[Tiers] = []
        self.log: list[Change] | None = None  # changes of the content; set if the store is shared and reports them

    def count_used(self) -> int:
        return max(0, self.store.used - self.lent) + self.swapped

    def note(self, now: int) -> None:
        """Record the use of the store if it has changed."""
        used = self.store.used - self.lent
        used = used + self.swapped if used > 0 else self.swapped
        if used != self.noted:
            self.settle(now)
            self.noted = used
            if used > self.peak:
                self.peak = used

    def settle(self, now: int) -> None:
        """Update the statistics of the use up to now."""
        self.filled += self.noted * (now - self.since)
        if self.samples is not None:
            self.samples.until(now, self.noted)
        if self.polled is not None:
            self.polled.until(now, self.noted)
        self.since = now

    def tell(self, now: int, content: list[Stretch], came: bool) -> None:
        assert self.log is not None
        self.log.extend((now, key, start, end, came) for key, start, end, _ in content)

    def stats(self, owner: str, link: Link, block_tokens: int, now: int) -> TierStats:
        link.settle(now)
        self.settle(now)
        assert self.samples is not None
        return TierStats(
            owner=owner,
            name=self.name,
            blocks=self.store.blocks - self.lent + self.swapped,
            hit_tokens=self.hits * block_tokens,
            stored_blocks=self.stored,
            loaded_blocks=self.loaded,
            thrashed_blocks=self.thrashed,
            peak_blocks=self.peak,
            block_ps=self.filled,
            moved_bytes=link.moved_bytes,
            link_busy_ps=link.busy_ps,
            interval_ps=self.samples.interval_ps,
            samples=self.samples.values,
        )
