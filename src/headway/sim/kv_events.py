"""KV events: the instances report what they evict, and possibly what they store, to the router's prefix indexes, with a
delay.

The time of an eviction inside a run is the start of the step that caused it. The time of a store is the end of the step
that computed the blocks; generated blocks are stored when their request ends or is preempted. Before a policy reads an
index, all events that are at least `delay` old are applied to the index. Events of different instances are independent,
so only the order of events of the same instance matters.

At its scheduling changes (see `tiers`), an instance with stores below its GPU reports how content has moved between GPU
and stores. A store that several instances share reports its own changes.
"""

from bisect import bisect_left
from operator import itemgetter
from typing import Any

from headway.policies.prefix_index import PrefixIndex
from headway.policies.prefix_tiers import GONE, GPU
from headway.policies.shared_store import SharedStore
from headway.sim.instance import Instance
from headway.sim.kv_cache import Stored
from headway.sim.tier import Change, Tier

Log = list[Any]  # `Eviction`, `Move` or `Stored` entries of an instance


class KvEvents:
    def __init__(
        self,
        instances: list[Instance],
        indexes: list[PrefixIndex],
        block_tokens: int,
        delay: int,
        stores: bool,
        targets: list[int],
    ) -> None:
        """With `stores`, the instances also report what they store. `targets` has, for each instance, the place of its
        content in the indexes."""
        self.instances = instances
        self.indexes = indexes
        self.block_tokens = block_tokens  # block size of the engines
        self.delay = delay
        self.stores = stores
        self.targets = targets
        self.logs: list[Log] = []
        users: dict[Tier, list[int]] = {}  # indices of the instances that use each shared store
        for instance in instances:
            if instance.tiers is None:
                log: Log = []
                instance.cache.log = log
            else:
                log = instance.tiers.hear()
                for tier in instance.tiers.tiers:
                    if tier.shared:
                        users.setdefault(tier, []).append(targets[instance.view.index])
            if stores:
                instance.cache.stores = log
            self.logs.append(log)
        self.shared: list[tuple[list[Change], list[SharedStore]]] = []  # (log, copy in each index) per shared store
        for tier, owners in users.items():
            tier.log = []
            self.shared.append((tier.log, [index.share(owners, tier.name) for index in indexes]))

    def tell(self, now: int) -> None:
        """Apply every event that is at least `delay` old to the indexes. Exclude evictions by steps that begin at
        this instant, because steps begin after all other events."""
        before = now - self.delay + 1 if self.delay else now
        for changes, beliefs in self.shared:
            if changes and changes[0][0] < before:
                self.apply_changes(changes, beliefs, before)
        for target, instance, log in zip(self.targets, self.instances, self.logs, strict=True):
            if instance.run.end >= 0:
                if self.stores:
                    instance.blocks.settle_stores(now)
                if instance.tiers is None:
                    instance.blocks.settle_evictions(before)
            if not log:
                continue
            if self.stores:
                # Sort by time, because a run logs all its evictions before its `Stored` events.
                log.sort(key=itemgetter(0, 1))
                self.apply_stores(target, log, now - self.delay + 1)
            elif log[0][0] < before:
                (self.apply if instance.tiers is None else self.apply_moves)(target, log, before)

    def forget(self, index: int) -> None:
        """Drop the pending events of an instance that has stopped."""
        self.logs[index].clear()

    def apply(self, index: int, log: Log, before: int) -> None:
        ends: dict[int, int] = {}  # key -> first block that is no longer cached
        for _, _, key, end in take_before(log, before):
            if end < ends.get(key, end + 1):
                ends[key] = end
        for belief in self.indexes:
            for key, end in ends.items():
                belief.remove(index, key, end * self.block_tokens // belief.block_tokens)

    def apply_moves(self, index: int, log: Log, before: int) -> None:
        for _, _, key, block, source, target in take_before(log, before):
            for belief in self.indexes:
                belief.move(index, key, block * self.block_tokens // belief.block_tokens, source, target)

    def apply_stores(self, index: int, log: Log, before: int) -> None:
        """Apply evictions, moves and stored blocks in order."""
        for entry in take_before(log, before):
            for belief in self.indexes:
                if isinstance(entry, Stored):
                    self.apply_stored(index, entry, belief)
                    continue
                block = entry[3] * self.block_tokens // belief.block_tokens
                if len(entry) == 4:
                    belief.remove(index, entry[2], block)
                else:
                    belief.move(index, entry[2], block, entry[4], entry[5])

    def apply_stored(self, index: int, stored: Stored, belief: PrefixIndex) -> None:
        key, path, size = stored.key, stored.path, belief.block_tokens
        place = path.keys.index(key) if key in path.keys else len(path.keys)
        start = path.ends[place - 1] if place else 0  # first token of the run
        if size % self.block_tokens:
            # The engine's first block of the run may begin with the last tokens of earlier runs. An index with smaller
            # blocks has these tokens in blocks of the earlier runs, so extend the earlier runs too.
            shared = start // self.block_tokens * self.block_tokens
            for earlier in range(place - 1, -1, -1):
                if path.ends[earlier] <= shared:
                    break
                first = path.ends[earlier - 1] if earlier else 0
                if path.ends[earlier] // size > first // size:
                    belief.extend(index, path.keys[earlier], first // size, path.ends[earlier] // size)
        end = stored.end * self.block_tokens // size
        if end > start // size:
            belief.extend(index, key, start // size, end)
            belief.move(index, key, end, GONE, GPU)

    def apply_changes(self, changes: list[Change], beliefs: list[SharedStore], before: int) -> None:
        for _, key, start, end, came in take_before(changes, before):
            for belief, index in zip(beliefs, self.indexes, strict=True):
                size = index.block_tokens
                first = start * self.block_tokens // size
                if came:
                    belief.put(key, first, end * self.block_tokens // size)
                else:
                    belief.lose(key, first, -(-end * self.block_tokens // size))


def take_before(log: list[Any], before: int) -> list[Any]:
    """Remove and return the entries before a time. Each entry begins with its time; entries are in order of time."""
    count = bisect_left(log, before, key=itemgetter(0))
    entries = log[:count]
    del log[:count]
    return entries
