"""A store of KV content below the GPU's cache: nobody computes there, so nobody holds anything. It keeps what was put
there last; beyond its capacity the oldest goes first, and of what came together the tail before the head. Where content
has a level (see `ranked_cache`), what has the lowest goes first, of equals the oldest.

Content is named as in the cache: by (key, block). Blocks of one key that came together have a number in common; they
are one span, or several where some of them came again later or were taken out. Who goes next is read from what came,
in order: what has come again since, or was taken out, is passed over when its turn is there.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Any

from headway.errors import InvariantError
from headway.sim.kv_cache import Stretch
from headway.types import NEVER

SPARE = 64  # entries of no use that the order may have, beside three for each that is of use

# First block, end block, number, when it came, level, key. Not declared so: compiled, a tuple of known length is a
# value and made anew wherever it is read, and this is to be the same one. What is read from it is declared instead.
Span = tuple[Any, ...]


class Store:
    __slots__ = ("blocks", "came", "levels", "most", "order", "ranked", "spans", "used")

    def __init__(self, blocks: int, ranked: bool = False) -> None:
        self.blocks = blocks
        self.used = 0
        self.came = 0  # the last number
        self.spans: dict[int, list[Span]] = {}  # by key, in order
        self.ranked = ranked  # whether levels count
        self.order: deque[Span] = deque()  # as they came, and some that are gone
        self.levels: list[tuple[float, int, Span]] = []  # heap of the same instead, where levels count
        self.most = SPARE  # entries of either before those that are gone are dropped

    # --- what is here ----------------------------------------------------------------------------------------

    def covered_to(self, key: int, at: int) -> int:
        """Where the blocks of a key end that are here without a gap from `at` on."""
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
        """What is here of these blocks, in order."""
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
        """The first of the blocks of a key from `start` to `end` that is here, or `end`."""
        inside = self.within(key, start, end)
        return inside[0][0] if inside else end

    def younger(self, content: list[Stretch], at: int) -> int:
        """How many of the blocks came after `at`."""
        count = 0
        for key, start, end, _ in content:
            spans = self.spans.get(key)
            if spans is None or (len(spans) == 1 and spans[0][3] <= at):
                continue
            for first, last, _, came, _, _ in self.within(key, start, end):
                if came > at:
                    count += last - first
        return count

    def parts_of(self, key: int, start: int, end: int) -> list[Stretch]:
        """What is here of these blocks, by level, in order."""
        return [(key, first, last, level) for first, last, _, _, level, _ in self.within(key, start, end)]

    # --- what comes ------------------------------------------------------------------------------------------

    def put(self, content: list[Stretch], at: int) -> int:
        """The blocks become the most recent ones, each stretch more recent than the one before. How many of them were
        not here."""
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
            if end <= first[0]:  # what is evicted goes from the tail on
                spans.insert(0, span)
                fresh += end - start
            elif first[0] == start and first[1] == end:  # it is here as it comes
                spans[0] = span
            elif first[0] < start and first[1] == end:  # of what is here the tail comes first
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
        """The blocks, all of which are here, become the most recent ones, but came when they came. Where uses count
        they have been used once more, else they have the new level. How many came after `since`."""
        order, ranked = self.order, self.ranked
        young = 0
        first: int
        last: int
        at: int
        for key, start, end, level in content:
            spans = self.spans[key]
            place = len(spans) if spans[-1][0] < end else _end(spans, end)
            while place:  # the head is the most recent
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
        """What has come goes by its level."""
        levels = self.levels
        for span in self.order:
            heappush(levels, (span[4], span[2], span))
        self.order.clear()
        if len(levels) > self.most:
            self._tidy()

    def _tidy(self) -> None:
        """Nothing is kept in order that is gone, where there is more than four for each key that is here. The order
        stays the same object, since this happens while others go through it."""
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

    # --- what goes -------------------------------------------------------------------------------------------

    def discard(self, key: int, start: int, end: int) -> None:
        """Take the blocks out, as far as they are here."""
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
        """Take out what goes beyond the capacity, in the order in which it goes."""
        evicted: list[Stretch] = []
        over = self.used - self.blocks
        if over <= 0:
            return evicted
        self.used = self.blocks
        known, order = self.spans, self.order
        before = -1  # the key of what went last
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
                order.appendleft(span)  # there may be more of it
                start, end = spans[place][:2]
            over -= end - start
            if over < 0:  # the head stays
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
        """What the spans say is what is used, no block twice, each will go some time, and no more than there is room
        for."""
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
                f"A store's blocks do not add up: {self.used} used of {self.blocks}, spans say {used}."
            )


def _place(spans: list[Span], at: int) -> int:
    """The first that ends after `at`."""
    place = bisect_right(spans, (at, NEVER))
    return place - 1 if place and spans[place - 1][1] > at else place


def _end(spans: list[Span], end: int) -> int:
    """The first that begins at `end` or after it."""
    return len(spans) if not spans or spans[-1][0] < end else bisect_left(spans, (end,))


def _last(spans: list[Span], came: Span) -> int:
    """The place of the last span that is left of what came, or -1."""
    place = _end(spans, came[1]) - 1
    while place >= 0 and spans[place][2] != came[2]:
        place = place - 1 if spans[place][0] > came[0] else -1
    return place


def _replace(spans: list[Span], start: int, end: int, new: list[Span]) -> int:
    """Put what is new in the place of the blocks from `start` to `end`. How many of those were here."""
    low, high = _place(spans, start), _end(spans, end)
    replaced = _size(spans[low:high])
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


def _size(spans: list[Span]) -> int:
    count = 0
    for span in spans:
        count += span[1] - span[0]
    return count
