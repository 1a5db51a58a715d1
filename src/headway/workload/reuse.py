"""Reuse: the hits of prompts in LRU caches. Prompts are runs of consecutive block ids, in order of arrival.

A prompt hits its leading blocks that are in the cache. Then the prompt uses all its blocks, in the order first-to-last
or tail-first, and the cache evicts the least recently used blocks above its capacity. Only the order of the prompts
matters, not time or output tokens.

All uses of blocks are counted: the n-th use has the number n, and each block keeps the number of its last use. An LRU
cache of c blocks holds the c blocks that were used last. So the cache holds exactly the blocks whose number is at or
above a threshold, the `floor` of the cache. A floor never falls. One record of the numbers serves caches of all sizes.

The cost is per run, not per block, because a prompt uses the blocks of a run one after another, so that their numbers
are consecutive. The numbers are therefore stored as stretches. A stretch is a range of block ids with a `shift`: the
number of each block in the range is its id plus the shift. With tail-first, numbers would fall as ids rise, so all ids
are negated.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

from msgspec import Struct

Order = Literal["first-to-last", "tail-first"]  # the order in which a prompt uses its blocks
Run = tuple[int, int]  # (first block id, number of consecutive ids)
# Stretches of block ids as (first ids, end ids, shifts), in order of id. The last use of a block has number id + shift.
Stretches = tuple[list[int], list[int], list[int]]

ORDERS: Final[tuple[Order, ...]] = ("first-to-last", "tail-first")
BUCKET_BITS: Final = 14  # one list of stretches covers 2^BUCKET_BITS ids, so that no list grows long
SPARSE: Final = 4  # if the log has more entries per stretch than this, it is rebuilt
SHORT: Final = 1024  # a log with up to this many entries is never rebuilt
NO_STRETCHES: Final[Stretches] = ([], [], [])


class Hits(Struct):
    """The number of block hits for each capacity. `tokens` (hit tokens) and `requests` (requests with a hit) are known
    only for the largest capacity."""

    blocks: list[int]
    referenced: int = 0
    distinct: int = 0  # number of different blocks that a cache has ever held, summed over the caches
    tokens: int = 0
    requests: int = 0


class Caches:
    """Caches that receive the same prompts. Their `capacities` are ascending; None means unlimited and is the last."""

    def __init__(self, capacities: Sequence[int | None], order: Order = "first-to-last") -> None:
        self._tail_first = order == "tail-first"  # if true, this class works with negated ids
        self._limits = [capacity for capacity in capacities if capacity is not None]
        # For each cache: the number of a use. The cache has the blocks whose last use has this number or a higher one.
        self._floors = [0] * len(capacities)
        self._live = [0] * len(self._limits)  # number of blocks in each cache
        self._buckets: dict[int, Stretches] = {}
        self._stretches = 0
        self._now = 0
        # The log lists runs in the order of their uses. It serves to find the next blocks to evict.
        self._times: list[int] = []
        self._firsts: list[int] = []
        self._counts: list[int] = []

    def offer(self, runs: Sequence[Run], hits: list[int]) -> int:
        """Look up a prompt in each cache, add the number of hit blocks of each cache to `hits`, and mark the prompt's
        blocks as most recently used. Return the number of hit blocks in the largest cache."""
        walked = self._count_hits(runs, hits)
        if self._tail_first:
            for first, count in reversed(runs):
                self._touch(1 - first - count, count)
        else:
            for first, count in runs:
                self._touch(first, count)
        for which, limit in enumerate(self._limits):
            if self._live[which] > limit:
                self._evict(which, self._live[which] - limit)
        if len(self._times) > SPARSE * self._stretches + SHORT:
            self._compact()
        return walked

    def distinct(self) -> int:
        """Return the number of different blocks offered so far."""
        return sum(sum(ends) - sum(starts) for starts, ends, _ in self._buckets.values())

    def _count_hits(self, runs: Sequence[Run], hits: list[int]) -> int:
        floors = self._floors
        smallest = 0  # index of the smallest cache that still has hits; larger caches hold the same blocks and more
        walked = 0
        for length, oldest in self._walk_mirrored(runs) if self._tail_first else self._walk(runs):
            while floors[smallest] > oldest:
                # With tail-first, the head of a stretch was used last, so only its tail may be evicted.
                left = max(length - (floors[smallest] - oldest), 0) if self._tail_first else 0
                hits[smallest] += walked + left
                smallest += 1
                if smallest == len(floors):
                    return walked + left
            walked += length
        for which in range(smallest, len(floors)):
            hits[which] += walked
        return walked

    def _walk(self, runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
        """Split a prompt into runs of blocks whose last uses directly follow each other. Yield the number of blocks of
        each run, and the number of the first block's last use. Stop at the first block that was never used."""
        for at, count in runs:
            end = at + count
            while at < end:
                bucket = at >> BUCKET_BITS
                starts, ends, shifts = self._buckets.get(bucket, NO_STRETCHES)
                until = min(end, (bucket + 1) << BUCKET_BITS)
                place = bisect_right(ends, at)
                while at < until:
                    if place == len(starts) or starts[place] > at:
                        return
                    past = min(ends[place], until)
                    yield past - at, at + shifts[place]
                    at = past
                    place += 1

    def _walk_mirrored(self, runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
        """Do the same as `_walk`, but for the order tail-first, where ids are negated and therefore descend."""
        for first, count in runs:
            at = 1 - first  # the next negated id, plus 1
            end = at - count
            while at > end:
                bucket = (at - 1) >> BUCKET_BITS
                starts, ends, shifts = self._buckets.get(bucket, NO_STRETCHES)
                until = max(end, bucket << BUCKET_BITS)
                place = bisect_left(starts, at) - 1
                while at > until:
                    if place < 0 or ends[place] < at:
                        return
                    down = max(starts[place], until)
                    yield at - down, down + shifts[place]
                    at = down
                    place -= 1

    def _touch(self, first: int, count: int) -> None:
        now, live, buckets = self._now, self._live, self._buckets
        if live:
            self._times.append(now)
            self._firsts.append(first)
            self._counts.append(count)
            for which in range(len(live)):
                live[which] += count
        self._now = now + count
        shift = now - first
        end = first + count
        while first < end:
            bucket = first >> BUCKET_BITS
            until = min(end, (bucket + 1) << BUCKET_BITS)
            stretches = buckets.get(bucket)
            if stretches is None:
                buckets[bucket] = ([first], [until], [shift])
                self._stretches += 1
            else:
                self._overlay(stretches, first, until, shift)
            first = until

    def _overlay(self, stretches: Stretches, first: int, end: int, shift: int) -> None:
        """Add a stretch, because its blocks were just used. Cut these blocks out of the stretches that held them."""
        starts, ends, shifts = stretches
        low = bisect_right(ends, first)
        high = bisect_left(starts, end, low)
        if self._live:
            for place in range(low, high):
                self._forget(max(starts[place], first) + shifts[place], min(ends[place], end) + shifts[place])
        self._stretches -= len(starts)
        new_starts, new_ends, new_shifts = [first], [end], [shift]
        if low < high and starts[low] < first:
            new_starts.insert(0, starts[low])
            new_ends.insert(0, first)
            new_shifts.insert(0, shifts[low])
        if low < high and ends[high - 1] > end:
            new_starts.append(end)
            new_ends.append(ends[high - 1])
            new_shifts.append(shifts[high - 1])
        starts[low:high], ends[low:high], shifts[low:high] = new_starts, new_ends, new_shifts
        self._stretches += len(starts)

    def _forget(self, since: int, until: int) -> None:
        """Subtract the blocks that were used again from the number of blocks in each cache, because they would be
        counted twice. These are the blocks whose last use had a number from `since` up to `until`."""
        live, floors = self._live, self._floors
        for which in range(len(live)):
            floor = floors[which]
            if until > floor:
                live[which] -= until - (since if since > floor else floor)

    def _evict(self, which: int, excess: int) -> None:
        """Evict `excess` blocks from a cache by raising its floor."""
        times, firsts, counts, floors = self._times, self._firsts, self._counts, self._floors
        self._live[which] -= excess
        entry = max(bisect_right(times, floors[which]) - 1, 0)
        while True:
            time, first = times[entry], firsts[entry]
            shift = time - first
            at = max(first, floors[which] - shift)
            end = first + counts[entry]
            while at < end:
                starts, ends, shifts = self._buckets[at >> BUCKET_BITS]
                until = min(end, ((at >> BUCKET_BITS) + 1) << BUCKET_BITS)
                for place in range(bisect_right(ends, at), bisect_left(starts, until)):
                    if shifts[place] != shift:  # these blocks were used again later
                        continue
                    since = max(starts[place], at)
                    size = min(ends[place], until) - since
                    if size >= excess:
                        floors[which] = since + excess + shift
                        return
                    excess -= size
                at = until
            floors[which] = end + shift
            entry += 1

    def _compact(self) -> None:
        """Rebuild the log from the current stretches, because the log grows whenever blocks are used."""
        lowest = min(self._floors[: len(self._limits)])
        runs = [
            (max(start + shift, lowest), max(start, lowest - shift), end)
            for starts, ends, shifts in self._buckets.values()
            for start, end, shift in zip(starts, ends, shifts, strict=True)
            if end + shift > lowest
        ]
        runs.sort()
        self._times = [time for time, _, _ in runs]
        self._firsts = [first for _, first, _ in runs]
        self._counts = [end - first for _, first, end in runs]


def hits(
    prompts: Iterable[tuple[Sequence[Run], int]],
    caches: Iterable[int],
    capacities: Sequence[int | None],
    block_tokens: int,
    order: Order = "first-to-last",
) -> Hits:
    """Return the hits of prompts for each capacity. `prompts` yields the runs and the number of tokens of each prompt,
    and `caches` yields the number of the cache that receives the prompt.

    A partly filled block counts as one block, but only the tokens in it count as tokens.
    """
    ranked = sorted(range(len(capacities)), key=lambda at: (capacities[at] is None, capacities[at] or 0))
    ascending = [capacities[at] for at in ranked]
    stacks: dict[int, Caches] = {}
    blocks_hit = [0] * len(ranked)
    total = Hits([])
    for (runs, tokens), place in zip(prompts, caches, strict=False):  # `caches` may be infinite
        stack = stacks.get(place)
        if stack is None:
            stack = stacks[place] = Caches(ascending, order)
        blocks = stack.offer(runs, blocks_hit)
        if blocks:
            total.requests += 1
            total.tokens += min(blocks * block_tokens, tokens)
        for _, count in runs:
            total.referenced += count
    total.distinct = sum(stack.distinct() for stack in stacks.values())
    total.blocks = [0] * len(ranked)
    for rank, at in enumerate(ranked):
        total.blocks[at] = blocks_hit[rank]
    return total
