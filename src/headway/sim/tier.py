"""A store of KV content below the GPU with the link to it, and what it leaves behind: counts, and its use over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.policies.prefix_index import TIERS
from headway.results.recorder import TierStats
from headway.sim.kv_cache import Stretch
from headway.sim.link import Link
from headway.sim.recent_values import Ticks
from headway.sim.samples import Samples
from headway.sim.store import Store

if TYPE_CHECKING:
    from headway.sim.tiers import Tiers


Change = tuple[int, int, int, int, bool]  # when, key, first block, end block; whether it came, else it went


class Tier:
    """One store of one instance, or of several (`shared`), and the link to it."""

    def __init__(self, name: str, blocks: int, link: int, shared: bool, ranked: bool = False) -> None:
        self.name = name
        self.level = TIERS.index(name)
        self.store = Store(blocks, ranked)
        self.link = link
        self.shared = shared
        # blocks
        self.stored = 0  # that came down
        self.loaded = 0  # that went up
        self.thrashed = 0  # that went up within THRASH_PS after they had come down
        self.swapped = 0  # of requests that had to yield, at present
        self.lent = 0  # of which the GPU has the room already, since they move up at present
        self.noted = 0  # in use at present, as last noted
        self.peak = 0
        self.filled = 0  # blocks x ps
        self.since = 0  # when it was settled
        self.hits = 0  # that requests loaded when their turn first came
        self.samples: Samples | None = None  # of its use, from the beginning of the run on
        self.polled: Ticks | None = None  # what pollers have seen of it, where there are any
        self.users: list[Tiers] = []
        self.log: list[Change] | None = None  # of what it has, where somebody wants to know and it is shared

    def count_used(self) -> int:
        return max(0, self.store.used - self.lent) + self.swapped

    def note(self, now: int) -> None:
        """The store may have changed; one that is full stays so, whatever comes and goes."""
        used = self.store.used - self.lent
        used = used + self.swapped if used > 0 else self.swapped
        if used != self.noted:
            self.settle(now)
            self.noted = used
            if used > self.peak:
                self.peak = used

    def settle(self, now: int) -> None:
        """Before what is noted changes."""
        self.filled += self.noted * (now - self.since)
        if self.samples is not None:
            self.samples.until(now, self.noted)
        if self.polled is not None:
            self.polled.until(now, self.noted)
        self.since = now

    def tell(self, now: int, content: list[Stretch], came: bool) -> None:
        """Whoever wants to know."""
        assert self.log is not None
        self.log.extend((now, key, start, end, came) for key, start, end, _ in content)

    def stats(self, owner: str, link: Link, block_tokens: int, now: int) -> TierStats:
        """At the end of a run."""
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
