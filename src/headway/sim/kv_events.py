"""KV events: the instances report evictions to the router's prefix indexes, with a delay.

If an eviction happens inside a run of steps, its time is the start of the step that caused it. Before a policy reads an
index, all evictions that are at least `delay` old are applied to the index. Events of different instances are
independent, so only the order of events of the same instance matters.

At its scheduling changes (see `tiers`), an instance with stores below its GPU reports how content has moved between GPU
and stores. A store that several instances share reports its own changes.
"""

from bisect import bisect_left
from operator import itemgetter
from typing import TypeVar

from headway.policies.prefix_index import PrefixIndex
from headway.policies.shared_store import SharedStore
from headway.sim.instance import Instance
from headway.sim.kv_cache import Eviction
from headway.sim.tier import Change, Tier
from headway.sim.tiers import Move

Entry = TypeVar("Entry", bound=tuple[int, ...])


class KvEvents:
    def __init__(self, instances: list[Instance], indexes: list[PrefixIndex], block_tokens: int, delay: int) -> None:
        self.instances = instances
        self.indexes = indexes
        self.block_tokens = block_tokens  # block size of the engines
        self.delay = delay
        self.logs: list[list[Eviction]] = []
        self.moves: list[tuple[int, list[Move]]] = []  # (index of the instance, log) of each instance with stores
        users: dict[Tier, list[int]] = {}  # indices of the instances that use each shared store
        for instance in instances:
            log: list[Eviction] = []
            if instance.tiers is None:
                instance.cache.log = log
            else:
                self.moves.append((instance.view.index, instance.tiers.hear()))
                for tier in instance.tiers.tiers:
                    if tier.shared:
                        users.setdefault(tier, []).append(instance.view.index)
            self.logs.append(log)
        self.shared: list[tuple[list[Change], list[SharedStore]]] = []  # (log, copy in each index) per shared store
        for tier, owners in users.items():
            tier.log = []
            self.shared.append((tier.log, [index.share(owners, tier.name) for index in indexes]))

    def tell(self, now: int) -> None:
        """Apply every event that is at least `delay` old to the indexes. Exclude events of this instant, because they
        belong to steps that begin after all other events."""
        before = now - self.delay + 1 if self.delay else now
        for index, moves in self.moves:
            if moves and moves[0][0] < before:
                self.apply_moves(index, moves, before)
        for changes, beliefs in self.shared:
            if changes and changes[0][0] < before:
                self.apply_changes(changes, beliefs, before)
        for instance, log in zip(self.instances, self.logs, strict=True):
            if instance.tiers is None and instance.run.end >= 0:
                instance.blocks.settle_evictions(before)
            if log and log[0][0] < before:
                self.apply(instance.view.index, log, before)

    def forget(self, index: int) -> None:
        """Drop the pending events of an instance that has stopped."""
        self.logs[index].clear()
        for owner, moves in self.moves:
            if owner == index:
                moves.clear()

    def apply(self, index: int, log: list[Eviction], before: int) -> None:
        ends: dict[int, int] = {}  # key -> first block that is no longer cached
        for _, key, end in take_before(log, before):
            if end < ends.get(key, end + 1):
                ends[key] = end
        for belief in self.indexes:
            for key, end in ends.items():
                belief.remove(index, key, end * self.block_tokens // belief.block_tokens)

    def apply_moves(self, index: int, moves: list[Move], before: int) -> None:
        for _, key, block, source, target in take_before(moves, before):
            for belief in self.indexes:
                belief.move(index, key, block * self.block_tokens // belief.block_tokens, source, target)

    def apply_changes(self, changes: list[Change], beliefs: list[SharedStore], before: int) -> None:
        for _, key, start, end, came in take_before(changes, before):
            for belief, index in zip(beliefs, self.indexes, strict=True):
                size = index.block_tokens
                first = start * self.block_tokens // size
                if came:
                    belief.put(key, first, end * self.block_tokens // size)
                else:
                    belief.lose(key, first, -(-end * self.block_tokens // size))


def take_before(log: list[Entry], before: int) -> list[Entry]:
    """Remove and return the entries before a time. Each entry begins with its time; entries are in order of time."""
    count = bisect_left(log, before, key=itemgetter(0))
    entries = log[:count]
    del log[:count]
    return entries
