"""The tiers in which the router believes an instance to have its blocks, and the stores that instances share.

The last blocks of a run move to slower tiers before its first blocks. Therefore two numbers per run describe the tiers:
the end of the blocks on the GPU, and the end of the blocks on the GPU or in CPU memory. If several instances share a
store, the blocks in the store can lengthen the match of each of these instances.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from headway.policies.shared_store import SharedStore

TIERS: Final = ("gpu", "cpu", "storage")  # from the fastest to the slowest
GPU: Final = 0
GONE: Final = 3  # pseudo-tier of blocks that are in no tier, such as evicted ones

Runs = tuple[tuple[int, int], ...]  # (key, end block) of each run of a prompt
Holders = dict[int, dict[int, int]]  # key of a run -> instance -> end of the blocks that it holds


class PrefixTiers:
    """The tiers of all instances. A run that is whole on the GPU is not listed."""

    def __init__(self, instances: int) -> None:
        # For each instance: key of a run -> (end of the blocks on the GPU, end of those on the GPU or in CPU memory).
        self.moved: list[OrderedDict[int, tuple[int, int]]] = [OrderedDict() for _ in range(instances)]
        self.shared: list[list[SharedStore]] = []  # shared stores of each instance; empty if there are none

    def shorten(self, matched: list[int], runs: Runs, level: int) -> None:
        """Shorten the match of each instance to its leading blocks in this tier or a faster one. `level` is the index
        of the tier in `TIERS`."""
        for instance, moved in enumerate(self.moved):
            if not moved or level > 1:
                continue
            start = 0
            for key, end in runs:
                if matched[instance] <= start:
                    break
                if key in moved and moved[key][level] < min(end, matched[instance]):
                    matched[instance] = max(start, moved[key][level])
                    break
                start = end

    def share(self, instances: Iterable[int], level: int) -> SharedStore:
        """Create and return a store from which all these instances can load blocks."""
        store = SharedStore(level)
        self.shared = self.shared or [[] for _ in self.moved]
        for instance in instances:
            self.shared[instance].append(store)
        return store

    def reach(self, runs: Runs, level: int, holders_of: Holders) -> list[int]:
        """Return how many leading blocks of a prompt each instance holds or can load from a shared store, in this tier
        or a faster one."""
        matched = [0] * len(self.moved)
        going, start = list(range(len(self.moved))), 0  # `going`: the instances that hold all blocks before `start`
        for key, end in runs:
            holders = holders_of.get(key, {})
            for instance in going:
                at, held = start, holders.get(instance)
                if held is not None:
                    if level < len(TIERS) - 1 and key in self.moved[instance]:
                        held = min(held, self.moved[instance][key][level])
                    at = max(at, held)
                for store in self.shared[instance]:
                    if store.level <= level:
                        at = store.reach(key, at)
                matched[instance] = min(at, end)
            going = [instance for instance in going if matched[instance] == end]
            if not going:
                break
            start = end
        return matched

    def ends_after(self, instance: int, key: int, held: int, block: int, source: int, target: int) -> list[int] | None:
        """Return the end of the blocks of a run on the GPU, on the GPU or in CPU memory, and in any tier, after a move
        as in `PrefixIndex.move`. If the move changes nothing, return None."""
        near, far = self.moved[instance].get(key, (held, held))
        ends = [min(near, held), min(far, held), held]
        if target == GPU:
            return [max(end, min(block, held)) for end in ends]
        first = block if source == GPU else max(block, ends[source - 1])
        if first >= ends[source]:
            return None
        for level in range(source, min(target, len(ends))):
            ends[level] = min(ends[level], first)
        return ends

    def bring_up(self, instance: int, runs: Runs, holders: Holders) -> None:
        """Record that the blocks of a prompt are on the instance's GPU, because the instance computes this prompt."""
        moved = self.moved[instance]
        for key, end in runs:
            if key in moved:
                near, far = moved[key]
                if end >= holders[key][instance]:
                    del moved[key]
                elif end > near:
                    moved[key] = (end, max(end, far))
