"""What the instances tell the router's prefix indexes: the content that they have evicted, some time later.

An eviction inside a run carries the time at which the step that caused it began. It is settled, and told if it is long
enough ago, before a policy looks; what one instance tells touches no other's part of an index, so the order within
each instance is all that counts.

An instance with stores below its GPU tells where content has moved, and when it has left the last of them, at its
scheduling changes, when the stores are settled. A store that instances share tells what comes and goes itself.
"""

from headway.policies.prefix_index import PrefixIndex
from headway.policies.shared_store import SharedStore
from headway.sim.instance import Instance
from headway.sim.kv_cache import Eviction
from headway.sim.tier import Change, Tier
from headway.sim.tiers import Move


class KvEvents:
    def __init__(self, instances: list[Instance], indexes: list[PrefixIndex], block_tokens: int, delay: int) -> None:
        self.instances = instances
        self.indexes = indexes
        self.block_tokens = block_tokens  # the engines'
        self.delay = delay
        self.logs: list[list[Eviction]] = []
        self.moves: list[tuple[int, list[Move]]] = []  # of the instances that have stores
        users: dict[Tier, list[int]] = {}  # of what is shared
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
        self.shared: list[tuple[list[Change], list[SharedStore]]] = []  # what each tells, and who hears it
        for tier, owners in users.items():
            tier.log = []
            self.shared.append((tier.log, [index.share(owners, tier.name) for index in indexes]))

    def tell(self, now: int) -> None:
        """The indexes hear of every eviction at least `delay` ago; of none at this instant, where steps begin last."""
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
        """An instance is gone, and nobody believes that it has anything; what it has not told yet concerns nobody."""
        self.logs[index].clear()
        for owner, moves in self.moves:
            if owner == index:
                moves.clear()

    def apply(self, index: int, log: list[Eviction], before: int) -> None:
        count = 0
        ends: dict[int, int] = {}  # of what is left of each run
        for at, key, end in log:
            if at >= before:
                break
            count += 1
            if end < ends.get(key, end + 1):
                ends[key] = end
        del log[:count]
        for belief in self.indexes:
            for key, end in ends.items():
                belief.remove(index, key, end * self.block_tokens // belief.block_tokens)

    def apply_moves(self, index: int, moves: list[Move], before: int) -> None:
        count = 0
        for at, key, block, source, target in moves:
            if at >= before:
                break
            count += 1
            for belief in self.indexes:
                belief.move(index, key, block * self.block_tokens // belief.block_tokens, source, target)
        del moves[:count]

    def apply_changes(self, changes: list[Change], beliefs: list[SharedStore], before: int) -> None:
        count = 0
        for at, key, start, end, came in changes:
            if at >= before:
                break
            count += 1
            for belief, index in zip(beliefs, self.indexes, strict=True):
                size = index.block_tokens
                first = start * self.block_tokens // size
                if came:
                    belief.put(key, first, end * self.block_tokens // size)
                else:
                    belief.lose(key, first, -(-end * self.block_tokens // size))
        del changes[:count]
