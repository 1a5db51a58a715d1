"""What the router believes each instance has cached: hierarchical block hashes with an LRU bound per instance.

The belief is per block, the book-keeping per run. Blocks of one touch are neighbours in recency, the head more recent
than the tail, so a stretch of a run touched at one time is one *piece*, and a touch costs O(1) amortised a run:

    touched whole         [0 ........................ 12)      one piece
    then its front only   [0 .... 4) [4 ............. 12)      the front becomes recent, the back keeps its place
    then whole again      [0 ........................ 12)      merged

A block's parent is touched whenever the block is, and after it; so what an instance is believed to hold is always
closed under prefixes, and one number, where a run's held blocks end, says which of them are held. Where instances tell
what they have evicted, a run may be gone whose continuation is still held; then a match goes as far as the runs join.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from headway.types import Path

# A piece's first block, by the run's key for the hindmost piece of a run, else by (key, the piece's end).
Pieces = OrderedDict[int | tuple[int, int], int]


class PrefixIndex:
    """One index for all instances: each holds the `capacity` blocks that were routed to it last.

    It is exactly the per-block LRU in which a prompt's blocks are touched last to first and the oldest are evicted
    beyond the capacity. Looking does not touch.
    """

    __slots__ = ("_fronts", "_holders", "_holes", "_none", "_pieces", "_sizes", "block_tokens", "capacity", "instances")

    def __init__(self, instances: int, capacity: int, block_tokens: int) -> None:
        self.instances = instances
        self.capacity = capacity
        self.block_tokens = block_tokens
        self._none = [0] * instances
        self._holders: dict[int, dict[int, int]] = {}  # key -> instance -> end of the run's held blocks
        self._pieces: list[Pieces] = [OrderedDict() for _ in range(instances)]  # least recently used first
        # key -> the ends of the pieces that go by (key, end), front last
        self._fronts: list[dict[int, list[int]]] = [{} for _ in range(instances)]
        self._sizes = [0] * instances
        self._holes = False  # whether anything was removed

    def size(self, instance: int) -> int:
        """How many blocks the instance is believed to hold."""
        return self._sizes[instance]

    def utilization(self, instance: int) -> float:
        """The same as a share of the capacity."""
        return self._sizes[instance] / self.capacity

    def eviction_order(self, instance: int) -> Iterator[tuple[int, int, int]]:
        """What the instance is believed to hold, as (key, first block, end block) stretches of runs, the next to go
        first; each goes from its end on."""
        for name, first in self._pieces[instance].items():
            if isinstance(name, tuple):
                key, end = name
                yield key, first, min(end, self._holders[key][instance])  # less after a removal
            else:
                yield name, first, self._holders[name][instance]

    def matches(self, path: Path) -> list[int]:
        """Leading blocks of the prompt that each instance is believed to hold, by instance index, in one walk."""
        if self._holes:
            return self._joined(path)
        found = self._none[:]
        holders_of = self._holders.get
        for key, end in path.blocks(self.block_tokens):
            holders = holders_of(key)
            if holders is None:
                break
            # Who holds a block of this run holds all before it, so the deepest run that names an instance is right.
            for instance, held in holders.items():
                found[instance] = held if held < end else end
        return found

    def _joined(self, path: Path) -> list[int]:
        """As `matches`, where a run may be held without those before it."""
        found = self._none[:]
        at = 0
        for key, end in path.blocks(self.block_tokens):
            holders = self._holders.get(key)
            if holders is None:
                break
            for instance, held in holders.items():
                if found[instance] == at:
                    found[instance] = held if held < end else end
            at = end
        return found

    def remove(self, instance: int, key: int, end: int) -> None:
        """An instance has evicted the blocks of a run from `end` on."""
        holders = self._holders.get(key)
        held = None if holders is None else holders.get(instance)
        if holders is None or held is None or held <= end:
            return
        self._holes = True
        pieces, fronts = self._pieces[instance], self._fronts[instance]
        ends = fronts.get(key, [])
        left = held  # where what is left ends
        if key in pieces and pieces[key] >= end:
            left = pieces.pop(key)
        if key not in pieces:
            # The hindmost piece may go by its old end as well as by the run's key.
            while ends and pieces[(key, ends[0])] >= end:
                left = pieces.pop((key, ends.pop(0)))
            if not ends:
                fronts.pop(key, None)
        if key in pieces or ends:
            left = holders[instance] = end
        else:
            del holders[instance]
            if not holders:
                del self._holders[key]
        self._sizes[instance] -= held - left

    def touch(self, instance: int, path: Path) -> None:
        """The prompt's full blocks become the instance's most recently used; its oldest go beyond the capacity."""
        runs = path.blocks(self.block_tokens)
        table = self._holders
        pieces = self._pieces[instance]
        fronts = self._fronts[instance]
        size = self._sizes[instance]
        at = len(runs)
        while at:
            at -= 1
            key, end = runs[at]
            holders = table.get(key)
            if holders is None:
                table[key] = {instance: end}
            else:
                held = holders.get(instance)
                if held is not None:
                    if held > end or (fronts and key in fronts):
                        self._touch_pieces(instance, key, runs[at - 1][1] if at else 0, end)
                    else:
                        pieces.move_to_end(key)
                    if held < end:
                        holders[instance] = end
                        size += end - held
                    continue
                holders[instance] = end
            start = runs[at - 1][1] if at else 0
            pieces[key] = start
            size += end - start
        if size > self.capacity:
            self._evict(instance, size - self.capacity)
            size = self.capacity
        self._sizes[instance] = size

    def _touch_pieces(self, instance: int, key: int, start: int, end: int) -> None:
        """Touch blocks `start` to `end` of a run that is in several pieces, or will be."""
        pieces = self._pieces[instance]
        fronts = self._fronts[instance]
        ends = fronts.pop(key, [])
        while ends and ends[-1] <= end:
            del pieces[(key, ends.pop())]
        if end < self._holders[key][instance]:
            behind = (key, ends[-1]) if ends else key
            pieces[behind] = end
            ends.append(end)
            fronts[key] = ends
            pieces[(key, end)] = start
        else:
            for old in ends:  # only after a removal
                del pieces[(key, old)]
            pieces[key] = start
            pieces.move_to_end(key)

    def _evict(self, instance: int, excess: int) -> None:
        """Drop the least recently used blocks: of the oldest piece, which is always the hindmost of its run."""
        table = self._holders
        pieces = self._pieces[instance]
        fronts = self._fronts[instance]
        while excess:
            key, start = pieces.popitem(last=False)
            if isinstance(key, tuple):
                # All behind it went before; the piece is its run's hindmost now and goes by the run's own key.
                key = key[0]
                ends = fronts[key]
                del ends[0]
                if not ends:
                    del fronts[key]
            holders = table[key]
            blocks = holders[instance] - start
            if blocks > excess:
                holders[instance] -= excess
                pieces[key] = start
                pieces.move_to_end(key, last=False)
                return
            excess -= blocks
            if fronts and key in fronts:
                holders[instance] = start
            else:
                del holders[instance]
                if not holders:
                    del table[key]
