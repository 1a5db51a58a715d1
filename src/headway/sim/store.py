"""A store of KV content below the GPU's cache: nobody computes there, so nobody holds anything. It keeps what was put
there last; beyond its capacity the oldest goes first, and of what came together the tail before the head. Where content
has a level (see `ranked_cache`), what has the lowest goes first, of equals the oldest.

Content is named as in the cache: by (key, block). Blocks of one key that came together are one *part*, which may have
gaps where some of them came again later or were taken out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from heapq import heapify, heappop, heappush

from headway.sim.kv_cache import Runs, Stretch, follow
from headway.types import InvariantError

SPARE = 64  # entries of no use that a heap may have, beside as many as there are of use


class Part:
    __slots__ = ("at", "key", "level", "ranges")

    def __init__(self, key: int, start: int, end: int, at: int, level: float) -> None:
        self.at = at  # when it came
        self.key = key
        self.level = level
        self.ranges = [(start, end)]  # in order


Span = tuple[int, int, Part]  # first block, end block


class Store:
    __slots__ = ("blocks", "came", "levels", "ranked", "recency", "spans", "used")

    def __init__(self, blocks: int, ranked: bool = False) -> None:
        self.blocks = blocks
        self.used = 0
        self.spans: dict[int, list[Span]] = {}  # the ranges of all parts of a key, in order
        self.recency: OrderedDict[Part, None] = OrderedDict()  # oldest first; a dict would look at all that have gone
        self.ranked = ranked  # whether levels count
        self.levels: list[tuple[float, int, Part]] = []  # heap of the parts then, also of some that are no more
        self.came = 0  # parts that ever did

    def match(self, runs: Runs, start: int, limit: int) -> int:
        """Where the blocks end that are here without a gap from `start` on, at most `limit`."""
        at = start
        for key, end in runs:
            if end <= at:
                continue
            at = self.covered(key, at)
            if at < end:
                break
            at = end
        return at if at < limit else limit

    def covered(self, key: int, at: int) -> int:
        """Where the blocks of a key end that are here without a gap from `at` on."""
        spans = self.spans.get(key)
        if spans is not None:
            for place in range(max(0, bisect_right(spans, at, key=_first) - 1), len(spans)):
                start, end, _ = spans[place]
                if start > at:
                    break
                at = max(at, end)
        return at

    def within(self, key: int, start: int, end: int) -> list[Span]:
        """What is here of these blocks, in order."""
        spans = self.spans.get(key)
        if spans is None:
            return []
        low, high = _touching(spans, start, end)
        return [(max(first, start), min(last, end), part) for first, last, part in spans[low:high]]

    def first_in(self, runs: Runs, start: int, end: int) -> int:
        """The first of the blocks from `start` to `end` that is here, or `end`."""
        first = 0
        for key, last in runs:
            if last > start:
                for left, _, _ in self.within(key, max(first, start), min(last, end)):
                    return left
            if last >= end:
                break
            first = last
        return end

    def younger(self, runs: Runs, start: int, end: int, at: int) -> int:
        """How many of the blocks from `start` to `end` came after `at`."""
        count = first = 0
        for key, last in runs:
            if last > start and first < end:
                for left, right, part in self.within(key, max(first, start), min(last, end)):
                    if part.at > at:
                        count += right - left
            first = last
        return count

    def parts_of(self, key: int, start: int, end: int) -> list[Stretch]:
        """What is here of these blocks, by level, in order."""
        return [(key, first, last, part.level) for first, last, part in self.within(key, start, end)]

    def put(self, key: int, start: int, end: int, at: int, level: float = 0.0) -> int:
        """The blocks become the most recent ones. How many of them were not here before."""
        spans = self.spans.get(key)
        fresh = end - start
        if spans is not None:
            first, last, part = spans[0]
            if first == start and last == end and len(part.ranges) == 1 and not self.ranked:  # it is here as it comes
                part.at = at
                part.level = level
                self.recency.move_to_end(part)
                return 0
            if end > first:
                fresh -= self.discard(key, start, end)
        part = Part(key, start, end, at, level)
        if not spans:
            self.spans[key] = [(start, end, part)]
        elif end <= spans[0][0]:
            spans.insert(0, (start, end, part))
        else:
            insort(spans, (start, end, part), key=_first)
        self.recency[part] = None
        if self.ranked:
            self.came += 1
            heappush(self.levels, (level, self.came, part))
        self.used += end - start
        return fresh

    def touch(self, key: int, start: int, end: int, level: float | None) -> None:
        """The blocks, all of which are here, become the most recent ones, but came when they came. Without a level they
        have been used once more."""
        for first, last, part in reversed(self.within(key, start, end)):  # the head is the most recent
            self.put(key, first, last, part.at, part.level + 1 if level is None else level)

    def discard(self, key: int, start: int, end: int) -> int:
        """Take the blocks out. How many of them were here."""
        spans = self.spans.get(key)
        if spans is None:
            return 0
        first, last, part = spans[-1]
        if end <= spans[0][0] or start >= last:
            return 0
        if first <= start and last <= end:
            self._cut(key, spans, start)
            return last - start
        low, high = _touching(spans, start, end)
        gone, left = 0, []
        for first, last, part in spans[low:high]:
            gone += min(last, end) - max(first, start)
            rest = [one for one in ((first, min(last, start)), (max(first, end), last)) if one[0] < one[1]]
            place = part.ranges.index((first, last))
            part.ranges[place : place + 1] = rest
            if not part.ranges:
                del self.recency[part]
            left += [(front, back, part) for front, back in rest]
        spans[low:high] = left
        if not spans:
            del self.spans[key]
        self.used -= gone
        return gone

    def clear(self) -> None:
        self.spans.clear()
        self.recency.clear()
        self.levels.clear()
        self.used = 0

    def _cut(self, key: int, spans: list[Span], start: int) -> None:
        """Take out what the last span of a key has from `start` on: what is evicted goes from the tail."""
        first, last, part = spans.pop()
        part.ranges.pop()  # the last of its part too
        if first < start:
            spans.append((first, start, part))
            part.ranges.append((first, start))
        elif not part.ranges:
            del self.recency[part]
            if not spans:
                del self.spans[key]
        self.used -= last - start

    def overflow(self) -> list[Stretch]:
        """Take out what goes beyond the capacity, in the order in which it goes."""
        gone: list[Stretch] = []
        while self.used > self.blocks:
            part = self._lowest() if self.ranked else next(iter(self.recency))
            start, end = part.ranges[-1]
            over = self.used - self.blocks
            if end - start > over:
                start = end - over
            self.discard(part.key, start, end)
            follow(gone, (part.key, start, end, part.level))
        return gone

    def _lowest(self) -> Part:
        levels = self.levels
        if len(levels) > 2 * len(self.recency) + SPARE:
            self.levels = levels = [entry for entry in levels if entry[2] in self.recency]
            heapify(levels)
        while levels[0][2] not in self.recency:
            heappop(levels)
        return levels[0][2]

    def check(self) -> None:
        """What the parts say is what is used, no block twice, and no more than there is room for."""
        used = 0
        for key, spans in self.spans.items():
            at = -1
            for start, end, part in spans:
                if start < at or end <= start or part not in self.recency or (start, end) not in part.ranges:
                    raise InvariantError(f"A store's blocks {key}:{start}-{end} are out of order.")
                at = end
                used += end - start
        if used != self.used or used > self.blocks:
            raise InvariantError(
                f"A store's blocks do not add up: {self.used} used of {self.blocks}, parts say {used}."
            )


def _first(span: Span) -> int:
    return span[0]


def _touching(spans: list[Span], start: int, end: int) -> tuple[int, int]:
    """The places of those that have any of the blocks from `start` to `end`."""
    low = bisect_right(spans, start, key=_first)
    if low and spans[low - 1][1] > start:
        low -= 1
    return low, bisect_left(spans, end, low, key=_first)
