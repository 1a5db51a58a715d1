"""A store of KV content below the GPU, for example in CPU memory. No request holds its blocks. If the store is full, it
evicts the content that was put into it least recently, and the tail of a sequence before its head. If content has
levels (see `ranked_cache`), the store evicts the lowest level first.

Content is named by (key, block), as in the cache. A *stretch* is a range of adjacent blocks of one key. Each put of a
stretch gets a number. Its blocks form one *span*, or several spans if some of the blocks were put again later or
removed. Eviction reads the spans in the order of their puts, and skips entries that are stale because their blocks were
put again or removed.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Any

from headway.errors import InvariantError
from headway.sim.kv_cache import Stretch
from headway.types import NEVER

SPARE = 64  # `order` and `levels` may have this many entries, and four more per key

# Fields: first block, end block, number, time of the put, level, key. The type states no length, because mypyc copies
# tuples of known length at each read, but spans are compared by identity. The code declares the types of the fields
# that it reads.
Span = tuple[Any, ...]


class Store:
    __slots__ = ("blocks", "came", "levels", "most", "order", "ranked", "spans", "used")

    def __init__(self, blocks: int, ranked: bool = False) -> None:
        self.blocks = blocks
        self.used = 0
        self.came = 0  # the last number that was assigned to a span
        self.spans: dict[int, list[Span]] = {}  # the spans of each key, in order of blocks
        self.ranked = ranked  # whether the store evicts the lowest level first
        self.order: deque[Span] = deque()  # spans in order of puts, some of them stale
        self.levels: list[tuple[float, int, Span]] = []  # heap of (level, number, span), instead of `order` if `ranked`
        self.most = SPARE  # maximum number of entries in `order` or `levels`; above it, stale entries are dropped

    def covered_to(self, key: int, at: int) -> int:
        """Return the first block of a key at or after block `at` that is not stored."""
        spans = self.spans.get(key)
        if spans is None:
            return at
        for first, last, *_ in spans if len(spans) == 1 else spans[_place(spans, at) :]:
            if first > at:
                break
            if last > at:
                at = last
        return at

    def within(self, key: int, start: int, end: int) -> list[Span]:
        """Return the stored spans of a key in order, clipped to the blocks from `start` to `end`."""
        spans = self.spans.get(key)
        if spans is None:
            return []
        if start <= spans[0][0] and spans[-1][1] <= end:
            return spans
        inside = spans[_place(spans, start) : _end(spans, end)]
        if inside:
            if inside[0][0] < start:
                inside[0] = (start, *inside[0][1:])
            if inside[-1][1] > end:
                inside[-1] = (inside[-1][0], end, *inside[-1][2:])
        return inside

    def first_in(self, key: int, start: int, end: int) -> int:
        """Return the first stored block of a key between `start` and `end`. If no block is stored, return `end`."""
        inside = self.within(key, start, end)
        return inside[0][0] if inside else end

    def younger(self, content: list[Stretch], at: int) -> int:
        """Return how many blocks of this content were put after time `at`."""
        count = 0
        for key, start, end, _ in content:
            spans = self.spans.get(key)
            if spans is None or (len(spans) == 1 and spans[0][3] <= at):
                continue
            for first, last, _, came, _, _ in self.within(key, start, end):
                if came > at:
                    count += last - first
        return count

    def put(self, content: list[Stretch], at: int) -> int:
        """Store the blocks as the most recent blocks, each stretch more recent than the stretch before it. Return how
        many of the blocks were not stored yet."""
        fresh = 0
        known, order, number = self.spans, self.order, self.came
        for key, start, end, level in content:
            number += 1
            span = (start, end, number, at, level, key)
            order.append(span)
            spans = known.get(key)
            if spans is None:
                known[key] = [span]
                fresh += end - start
                continue
            first = spans[0]
            if end <= first[0]:  # usual case: content arrives tail first, because it is evicted tail first
                spans.insert(0, span)
                fresh += end - start
            elif first[0] == start and first[1] == end:  # the same blocks are put again
                spans[0] = span
            elif first[0] < start and first[1] == end:  # the tail of the same blocks is put again
                spans[0:1] = [(first[0], start, *first[2:]), span]
            else:
                fresh += end - start - _replace(spans, start, end, [span])
        self.used += fresh
        self.came = number
        if self.ranked:
            self._rank()
        elif len(order) > self.most:
            self._tidy()
        return fresh

    def touch(self, content: list[Stretch], counts: bool, since: int) -> int:
        """Make stored blocks the most recent ones, but keep the times of their puts. If levels are use counts
        (`counts`), add one to the level of each block. Otherwise set it to the level in `content`. Return how many of
        the blocks were put after `since`."""
        order, ranked = self.order, self.ranked
        young = 0
        first: int
        last: int
        at: int
        for key, start, end, level in content:
            spans = self.spans[key]
            place = len(spans) if spans[-1][0] < end else _end(spans, end)
            while place:  # begin at the tail, so that the head becomes the most recent
                place -= 1
                first, last, _, at, uses, _ = spans[place]
                if last <= start:
                    break
                if counts:
                    level = uses + 1
                if ranked or first < start or last > end:
                    first, last = max(first, start), min(last, end)
                    self.put([(key, first, last, level)], at)
                else:
                    self.came += 1
                    spans[place] = span = (first, last, self.came, at, level, key)
                    order.append(span)
                if at > since:
                    young += last - first
        if len(order) > self.most:
            self._tidy()
        return young

    def _rank(self) -> None:
        """Move new entries to the heap of levels."""
        levels = self.levels
        for span in self.order:
            heappush(levels, (span[4], span[2], span))
        self.order.clear()
        if len(levels) > self.most:
            self._tidy()

    def _tidy(self) -> None:
        """Drop stale entries if there are more than four entries per stored key. Change `order` in place, because
        callers have references to it."""
        self.most = 4 * len(self.spans) + SPARE
        if len(self.order) + len(self.levels) <= self.most:
            return
        here = {span[2] for spans in self.spans.values() for span in spans}
        current = [span for span in self.order if span[2] in here]
        self.order.clear()
        self.order.extend(current)
        self.levels = [entry for entry in self.levels if entry[1] in here]
        heapify(self.levels)
        self.most = 4 * len(here) + SPARE

    def discard(self, key: int, start: int, end: int) -> None:
        """Remove the blocks of a key from `start` to `end`, as far as they are stored."""
        spans = self.spans.get(key)
        if spans is None:
            return
        if len(spans) == 1 and start <= spans[0][0] and spans[0][1] <= end:
            self.used -= spans[0][1] - spans[0][0]
            del self.spans[key]
            return
        self.used -= _replace(spans, start, end, [])
        if not spans:
            del self.spans[key]

    def clear(self) -> None:
        self.spans.clear()
        self.order.clear()
        self.levels.clear()
        self.used = 0

    def overflow(self) -> list[Stretch]:
        """Evict the content that exceeds the capacity, and return it in order of eviction."""
        evicted: list[Stretch] = []
        over = self.used - self.blocks
        if over <= 0:
            return evicted
        self.used = self.blocks
        known, order = self.spans, self.order
        before = -1  # key of the last evicted stretch
        start: int
        end: int
        number: int
        key: int
        while over > 0:
            span = order.popleft() if order else heappop(self.levels)[2]
            start, end, number, at, level, key = span
            spans = known.get(key)
            if spans is None:
                continue
            place = -1
            if spans[-1] is not span:
                if (len(spans) == 1 and spans[0][2] != number) or (place := _last(spans, span)) < 0:
                    continue
                order.appendleft(span)  # keep the entry, because other spans of the same put may still be stored
                start, end = spans[place][:2]
            over -= end - start
            if over < 0:  # only the tail is evicted; the head of the span remains
                left = spans[place] = (start, start - over, number, at, level, key)
                start -= over
                if place < 0:
                    order.appendleft(left)
            elif len(spans) == 1:
                del known[key]
            else:
                del spans[place]
            if key == before and (last := evicted[-1])[1] == end and last[3] == level:
                evicted[-1] = (key, start, last[2], level)
            else:
                evicted.append((key, start, end, level))
                before = key
        if self.ranked:
            self._rank()
        return evicted

    def check(self) -> None:
        """Check that the spans add up to the used blocks within the capacity, do not overlap, and have entries in the
        eviction order."""
        used = 0
        entries = {span[2]: span for span in self.order}
        entries.update({number: span for _, number, span in self.levels})
        for key, spans in self.spans.items():
            at = -1
            for span in spans:
                start, end = span[0], span[1]
                came = entries.get(span[2])
                if start < at or end <= start or came is None or came[5] != key or start < came[0] or came[1] < end:
                    raise InvariantError(f"A store's blocks {key}:{start}-{end} are out of order.")
                at = end
                used += end - start
        if used != self.used or used > self.blocks:
            raise InvariantError(
                f"A store's blocks do not add up: {self.used} used of {self.blocks}, but its spans have {used}."
            )


def _place(spans: list[Span], at: int) -> int:
    """Return the position of the first span that ends after `at`."""
    place = bisect_right(spans, (at, NEVER))
    return place - 1 if place and spans[place - 1][1] > at else place


def _end(spans: list[Span], end: int) -> int:
    """Return the position of the first span that begins at `end` or later."""
    return len(spans) if not spans or spans[-1][0] < end else bisect_left(spans, (end,))


def _last(spans: list[Span], came: Span) -> int:
    """Return the position in `spans` of the last part that remains of `came`, a span as it was put. If no part remains,
    return -1."""
    place = _end(spans, came[1]) - 1
    while place >= 0 and spans[place][2] != came[2]:
        place = place - 1 if spans[place][0] > came[0] else -1
    return place


def _replace(spans: list[Span], start: int, end: int, new: list[Span]) -> int:
    """Replace the blocks from `start` to `end` by new spans, and return how many of these blocks were stored before."""
    low, high = _place(spans, start), _end(spans, end)
    replaced = 0
    for span in spans[low:high]:
        replaced += span[1] - span[0]
    if low < high:
        head, tail = spans[low], spans[high - 1]
        if head[0] < start:
            replaced -= start - head[0]
            new = [(head[0], start, *head[2:]), *new]
        if tail[1] > end:
            replaced -= tail[1] - end
            new = [*new, (end, *tail[1:])]
    spans[low:high] = new
    return replaced
