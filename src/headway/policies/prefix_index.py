"""The blocks that the router believes to be cached on each instance: hierarchical block hashes, with an LRU limit for
each instance.

The index behaves as if it recorded single blocks, but it stores runs. A *run* is a sequence of consecutive blocks with
one key. To *touch* blocks means to make them the most recently used. Blocks that are touched together are adjacent in
the LRU order, and the blocks at the start of a prompt are more recent than those at its end. Therefore the blocks of a
run that were last touched together are stored as one *piece*, and a touch costs O(1) amortised per run:

    touched whole         [0 ........................ 12)      one piece
    then its front only   [0 .... 4) [4 ............. 12)      the front becomes recent, the back keeps its position
    then whole again      [0 ........................ 12)      merged

A prompt touches its blocks from last to first. So an instance that holds a block also holds all blocks before it, and
the index needs only one number per run and instance: the end of the blocks that the instance holds. An instance that
reports evictions may lose a run and keep the runs after it. This is a *hole*, and a match ends at the hole.

`prefix_tiers` has the tiers in which an instance holds its blocks, and the stores that instances share.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from headway.config.wording import suggest
from headway.errors import HeadwayError
from headway.policies.last_accesses import LastAccesses
from headway.policies.prefix_tiers import GPU, TIERS, PrefixTiers
from headway.policies.shared_store import SharedStore
from headway.types import Path

MANY: Final = 8  # if a prompt has more runs than this, the search starts at the end of the prompt

# Maps the name of a piece to its first block.
# The name of the last piece of a run is the run's key; the name of any other piece is (key, end of the piece).
Pieces = OrderedDict[int | tuple[int, int], int]


class PrefixIndex:
    """One index for all instances. It assumes that an instance holds the blocks that were last routed to it, up to its
    capacity.

    It gives the same answers as an LRU cache of single blocks in which each prompt makes its blocks the most recently
    used, from its last block to its first. Reading the index does not change the LRU order.
    """

    def __init__(self, instances: int, capacity: int | Sequence[int], block_tokens: int, bounded: bool = True) -> None:
        """`capacity` is the number of blocks of each instance, or one number for all instances. Unless `bounded`
        is set, reported blocks may exceed the capacity."""
        self.instances = instances
        self.capacities = [capacity] * instances if isinstance(capacity, int) else list(capacity)
        self.block_tokens = block_tokens
        self.bounded = bounded
        self._none = [0] * instances
        self._holders: dict[int, dict[int, int]] = {}  # key of a run -> instance -> end of the blocks that it holds
        self._pieces: list[Pieces] = [OrderedDict() for _ in range(instances)]  # least recently used first
        # For each instance: key of a run -> ends of all pieces named (key, end), in descending order.
        self._fronts: list[dict[int, list[int]]] = [{} for _ in range(instances)]
        self._sizes = [0] * instances
        self._holes = False  # whether an instance may hold a run without holding all runs before it
        self.tiers = PrefixTiers(instances)
        self._moved = self.tiers.moved
        self.accesses: LastAccesses | None = None  # None: no policy asks for the times of accesses

    def size(self, instance: int) -> int:
        """Return the number of blocks that the instance is believed to hold."""
        return self._sizes[instance]

    def utilization(self, instance: int) -> float:
        """Return the fraction of the capacity that the instance is believed to use."""
        return self._sizes[instance] / self.capacities[instance]

    def resize(self, instance: int, capacity: int) -> None:
        """Change the capacity of an instance, and evict its oldest blocks beyond the new capacity."""
        self.capacities[instance] = capacity
        self.evict(instance, max(0, self._sizes[instance] - capacity))

    def eviction_order(self, instance: int) -> Iterator[tuple[int, int, int]]:
        """Iterate over the pieces in order of eviction, as (key, first block, end block). Within a piece, the last
        block is evicted first."""
        for name, first in self._pieces[instance].items():
            if isinstance(name, tuple):
                key, end = name
                yield key, first, min(end, self._holders[key][instance])  # a removal may have shortened the piece
            else:
                yield name, first, self._holders[name][instance]

    def keep_accesses(self) -> None:
        """Record from now on when blocks are accessed, for `last_accesses`."""
        if self.accesses is None:
            self.accesses = LastAccesses(self.instances, self.block_tokens)

    def last_accesses(self, path: Path) -> list[int | None]:
        """Return, by instance index, when the router last sent a prompt with the last block of this prompt that it
        believes cached there, in picoseconds. If there is no such block or time, return None for the instance."""
        accesses = self.accesses
        if accesses is None:
            raise HeadwayError("last_accesses: pass accesses=True to `context.prefix_index`.")
        matches = enumerate(self.matches(path))
        return [accesses.last(instance, path, blocks) if blocks else None for instance, blocks in matches]

    def matches(self, path: Path) -> list[int]:
        """Return how many leading blocks of the prompt each instance is believed to hold, by instance index."""
        if self._holes:
            return self._matches_with_holes(path)
        runs = path.blocks(self.block_tokens)
        if len(runs) > MANY:
            return self._deepest(runs)
        matched = self._none[:]
        holders_of = self._holders.get
        for key, end in runs:
            holders = holders_of(key)
            if holders is None:
                break
            # An instance that holds a block of this run holds all blocks before it, so the last run decides.
            for instance, held in holders.items():
                matched[instance] = held if held < end else end
        return matched

    def _deepest(self, runs: tuple[tuple[int, int], ...]) -> list[int]:
        """Return the same as `matches`, but faster for a prompt of many runs. The search starts at the end of the
        prompt, and skips a run if every instance that holds it is already matched."""
        table, low = self._holders, self._held_by_any(runs)
        matched = self._none[:]
        if not low:
            return matched
        known, most = 0, len(table[runs[0][0]])  # every instance that holds any run also holds the first run
        while known < most:
            low -= 1
            key, end = runs[low]
            holders = table[key]
            if len(holders) > known:
                known = len(holders)
                for instance, held in holders.items():
                    if not matched[instance]:
                        matched[instance] = held if held < end else end
        return matched

    def _held_by_any(self, runs: tuple[tuple[int, int], ...]) -> int:
        """Return how many runs, counted from the start of the prompt, at least one instance holds. An instance that
        holds a run also holds all runs before it, so bisection works."""
        table = self._holders
        return bisect_left(runs, True, key=lambda run: run[0] not in table)

    def _matches_with_holes(self, path: Path) -> list[int]:
        """Return the same as `matches`, for an index in which an instance may hold a run without the runs before it."""
        if self.tiers.shared:
            return self.tiers.reach(path.blocks(self.block_tokens), len(TIERS) - 1, self._holders)
        matched = self._none[:]
        at = 0
        for key, end in path.blocks(self.block_tokens):
            holders = self._holders.get(key)
            if holders is None:
                break
            for instance, held in holders.items():
                if matched[instance] == at:
                    matched[instance] = held if held < end else end
            at = end
        return matched

    def matches_within(self, path: Path, tier: str) -> list[int]:
        """Return the same as `matches`, but count only blocks believed to be in this tier (gpu, cpu, storage) or a
        faster one."""
        if tier not in TIERS:
            raise HeadwayError(f"matches_within: there is no tier {tier!r}.{suggest(tier, TIERS)}")
        level = TIERS.index(tier)
        runs = path.blocks(self.block_tokens)
        if self.tiers.shared:
            return self.tiers.reach(runs, level, self._holders)
        matched = self.matches(path)
        self.tiers.shorten(matched, runs, level)
        return matched

    def share(self, instances: Iterable[int], tier: str) -> SharedStore:
        """Create and return a store in this tier, from which all these instances can load blocks. The caller must
        record which blocks the store contains."""
        self._holes = True
        return self.tiers.share(instances, TIERS.index(tier))

    def move(self, instance: int, key: int, block: int, source: int, target: int) -> None:
        """Record that an instance has moved blocks of a run between tiers. If `target` is slower than `source`, the
        blocks from `block` on have moved from `source` to `target`; the target GONE means that they were evicted. If
        `target` is the GPU, the blocks before `block` are now on the GPU."""
        holders = self._holders.get(key)
        held = None if holders is None else holders.get(instance)
        if held is None:
            return
        ends = self.tiers.ends_after(instance, key, held, block, source, target)
        if ends is None:
            return
        if ends[2] < held:
            self.remove(instance, key, ends[2])
        if ends[0] < ends[2] and self.holds(instance, key):
            self._moved[instance][key] = (ends[0], ends[1])
        else:
            self._moved[instance].pop(key, None)

    def place(self, instance: int, key: int, start: int, level: int) -> None:
        """Record in which tier an instance has a whole run. `start` is the run's first block, and `level` is the tier's
        index in `TIERS`."""
        held = self._holders.get(key, {}).get(instance)
        if held is None or level == GPU:
            self._moved[instance].pop(key, None)
        else:
            self._moved[instance][key] = (start, start if level > 1 else held)

    def forget_slow(self, instance: int, blocks: int) -> None:
        """Drop at least `blocks` blocks that `place` has put into slower tiers, if there are as many. Those that were
        put there first go first."""
        moved, least = self._moved[instance], self._sizes[instance] - blocks
        while moved and self._sizes[instance] > least:
            key, (start, _) = moved.popitem(last=False)
            self.remove(instance, key, start)

    def remove(self, instance: int, key: int, end: int, *, hole: bool = True) -> None:
        """Record that an instance has evicted the blocks of a run from `end` on. Pass `hole=False` if the instance
        holds no blocks after the evicted ones."""
        holders = self._holders.get(key)
        held = None if holders is None else holders.get(instance)
        if holders is None or held is None or held <= end:
            return
        self._holes |= hole
        pieces, fronts = self._pieces[instance], self._fronts[instance]
        ends = fronts.get(key, [])
        left = held  # new end of the blocks that the instance holds
        if key in pieces and pieces[key] >= end:
            left = pieces.pop(key)
        if key not in pieces:
            # The name of the last piece may still be (key, old end) instead of the run's key.
            while ends and pieces[(key, ends[0])] >= end:
                left = pieces.pop((key, ends.pop(0)))
            if not ends:
                fronts.pop(key, None)
        if key in pieces or ends:
            left = holders[instance] = end
        else:
            del holders[instance]
            self._moved[instance].pop(key, None)
            if not holders:
                del self._holders[key]
        self._sizes[instance] -= held - left

    def holds(self, instance: int, key: int) -> bool:
        """Return whether the instance is believed to hold blocks of this run."""
        holders = self._holders.get(key)
        return holders is not None and instance in holders

    def store(self, instance: int, key: int, start: int, end: int) -> bool:
        """Record that an instance reports the blocks `start` to `end` of a run. The index must already contain all
        blocks before `start`. The new blocks become the first to be evicted, so that the blocks before them stay
        longer. If the capacity is too small for the new blocks, return False."""
        if self.holds(instance, key):
            return True
        size = self._sizes[instance] + end - start
        if self.bounded and size > self.capacities[instance]:
            return False
        self._holders.setdefault(key, {})[instance] = end
        pieces = self._pieces[instance]
        pieces[key] = start
        pieces.move_to_end(key, last=False)
        self._sizes[instance] = size
        return True

    def extend(self, instance: int, key: int, start: int, end: int) -> None:
        """Record that an instance reports the blocks `start` to `end` of a run, where `start` is the run's first block.
        These blocks become the most recently used. The instance may lack the runs before this one."""
        self._holes = True
        holders = self._holders.setdefault(key, {})
        held = holders.get(instance)
        if held is None:
            holders[instance] = end
            self._pieces[instance][key] = start
            self._sizes[instance] += end - start
        elif held < end:
            if key in self._fronts[instance]:
                self._touch_pieces(instance, key, start, end)
            else:
                self._pieces[instance].move_to_end(key)
            holders[instance] = end
            self._sizes[instance] += end - held
        if self.bounded:
            self.evict(instance, max(0, self._sizes[instance] - self.capacities[instance]))

    def evict(self, instance: int, blocks: int) -> None:
        """Drop the `blocks` least recently used blocks of an instance."""
        blocks = min(blocks, self._sizes[instance])
        self._evict(instance, blocks)
        self._sizes[instance] -= blocks

    def clear(self, instance: int) -> None:
        """Drop all blocks of an instance."""
        holders = self._holders
        for piece in self._pieces[instance]:
            key = piece[0] if isinstance(piece, tuple) else piece
            if key in holders and holders[key].pop(instance, None) is not None and not holders[key]:
                del holders[key]
        self._pieces[instance].clear()
        self._fronts[instance].clear()
        self._moved[instance].clear()
        self._sizes[instance] = 0
        if self.accesses is not None:
            self.accesses.clear(instance)

    def touch(self, instance: int, path: Path) -> None:
        """Make the full blocks of the prompt the instance's most recently used blocks. Evict the oldest blocks beyond
        the capacity."""
        runs = path.blocks(self.block_tokens)
        table = self._holders
        pieces = self._pieces[instance]
        fronts = self._fronts[instance]
        size = self._sizes[instance]
        at = len(runs)
        if at > MANY and not self._holes and runs[-1][0] not in table:
            at = self._held_by_any(runs)
            size += self._begin(instance, runs, at)
        if at > MANY and not fronts:  # a repeated prompt, which the instance holds as it is
            at = self._refresh(instance, runs[at - 1 :: -1])
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
        capacity = self.capacities[instance]
        if size > capacity:
            self._evict(instance, size - capacity)
            size = capacity
        self._sizes[instance] = size
        if self._moved[instance]:
            self.tiers.bring_up(instance, runs, self._holders)

    def _refresh(self, instance: int, runs: tuple[tuple[int, int], ...]) -> int:
        """Make runs the most recently used, until the first run that the instance does not hold with exactly this end.
        `runs` has the last run first. Return the number of runs that are left."""
        table, refresh = self._holders, self._pieces[instance].move_to_end
        done = 0
        try:
            for key, end in runs:
                if table[key].get(instance) != end:
                    break
                refresh(key)
                done += 1
        except KeyError:  # a hole: no instance holds this run
            pass
        return len(runs) - done

    def _begin(self, instance: int, runs: tuple[tuple[int, int], ...], at: int) -> int:
        """Add the runs from `at` on, which no instance holds yet, and return the number of their blocks."""
        new = runs[at:]
        first = runs[at - 1][1] if at else 0
        self._holders.update([(key, {instance: end}) for key, end in new])
        starts = [first, *[end for _, end in new[:-1]]]
        self._pieces[instance].update([(run[0], start) for run, start in zip(new, starts, strict=True)][::-1])
        return new[-1][1] - first

    def _touch_pieces(self, instance: int, key: int, start: int, end: int) -> None:
        """Make blocks `start` to `end` of a run the most recently used. The run has several pieces, or this call splits
        it into pieces."""
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
            for old in ends:  # after a removal, the last piece may still have the name (key, old end)
                del pieces[(key, old)]
            pieces[key] = start
            pieces.move_to_end(key)

    def _evict(self, instance: int, excess: int) -> None:
        """Drop the `excess` least recently used blocks. These blocks are at the end of the oldest piece, which is
        always the last piece of its run."""
        table = self._holders
        pieces = self._pieces[instance]
        fronts = self._fronts[instance]
        while excess:
            key, start = pieces.popitem(last=False)
            if isinstance(key, tuple):
                # All later pieces of the run are evicted, so this one is the last and its name becomes the run's key.
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
                self._moved[instance].pop(key, None)
                if not holders:
                    del table[key]


def largest_block(indexes: Iterable[PrefixIndex]) -> int:
    """Return the number of tokens in the largest block of these indexes; 0 if there is no index."""
    return max((index.block_tokens for index in indexes), default=0)
