"""A store of KV content below the GPU's cache: nobody computes there, so nobody holds anything. It keeps what was put
there last; beyond its capacity the oldest goes first, and of what came together the tail before the head. Where content
has a level (see `ranked_cache`), what has the lowest goes first, of equals the oldest.

Content is named as in the cache: by (key, block). Blocks of one key that came together have a number in common; they
are one span, or several where some of them came again later or were taken out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from heapq import heapify, heappop, heappush

from headway.sim.kv_cache import Stretch, follow
from headway.sim.leap import NEVER
from headway.types import InvariantError

SPARE = 64  # entries of no use that a queue may have, beside three for each that is of use

Span = tuple[int, int, int, int, float]  # first block, end block, number, when it came, level


class Store:
    __slots__ = ("blocks", "came", "levels", "queue", "ranked", "room", "spans", "used")

    def __init__(self, blocks: int, ranked: bool = False) -> None:
        self.blocks = blocks
        self.used = 0
        self.came = 0  # the last number
        self.spans: dict[int, list[Span]] = {}  # by key, in order
        self.ranked = ranked  # whether levels count
        # What goes next, as it came: not all of it is still here.
        self.queue: deque[Stretch] = deque()  # the oldest first, numbered without a gap up to the last that came
        self.levels: list[tuple[float, int, Stretch]] = []  # a heap with numbers instead, where levels count
        self.room = SPARE  # entries before those of no use are looked for

    # --- what is here ----------------------------------------------------------------------------------------

    def covered(self, key: int, at: int) -> int:
        """Where the blocks of a key end that are here without a gap from `at` on."""
        spans = self.spans.get(key)
        if spans is None:
            return at
        for first, last, _, _, _ in spans if len(spans) == 1 else spans[_place(spans, at) :]:
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
        found = spans[_place(spans, start) : bisect_left(spans, (end, 0, 0, 0, 0.0))]
        if found:
            if found[0][0] < start:
                found[0] = (start, *found[0][1:])
            if found[-1][1] > end:
                found[-1] = (found[-1][0], end, *found[-1][2:])
        return found

    def first_in(self, key: int, start: int, end: int) -> int:
        """The first of the blocks of a key from `start` to `end` that is here, or `end`."""
        found = self.within(key, start, end)
        return found[0][0] if found else end

    def younger(self, content: list[Stretch], at: int) -> int:
        """How many of the blocks came after `at`."""
        count = 0
        for key, start, end, _ in content:
            for first, last, _, came, _ in self.within(key, start, end):
                if came > at:
                    count += last - first
        return count

    def parts_of(self, key: int, start: int, end: int) -> list[Stretch]:
        """What is here of these blocks, by level, in order."""
        return [(key, first, last, level) for first, last, _, _, level in self.within(key, start, end)]

    # --- what comes ------------------------------------------------------------------------------------------

    def put(self, content: list[Stretch], at: int) -> int:
        """The blocks become the most recent ones, each stretch more recent than the one before. How many of them were
        not here."""
        fresh = 0
        known, number = self.spans, self.came
        for key, start, end, level in content:
            number += 1
            spans = known.get(key)
            if spans is None:
                known[key] = [(start, end, number, at, level)]
                fresh += end - start
                continue
            first, last, _, _, _ = spans[0]
            if first == start and last == end:  # it is here as it comes
                spans[0] = (start, end, number, at, level)
            elif end <= first:  # what is evicted goes from the tail on
                spans.insert(0, (start, end, number, at, level))
                fresh += end - start
            else:
                fresh += end - start - _replace(spans, start, end, [(start, end, number, at, level)])
        if self.ranked:
            for place, stretch in enumerate(content, self.came + 1):
                heappush(self.levels, (stretch[3], place, stretch))
        else:
            self.queue.extend(content)
        self.came = number
        self.used += fresh
        if len(self.queue) + len(self.levels) > self.room:
            self._tidy()
        return fresh

    def touch(self, content: list[Stretch], counts: bool) -> None:
        """The blocks, all of which are here, become the most recent ones, but came when they came. Where uses count
        they have been used once more, else they have the new level."""
        for key, start, end, level in content:
            spans = self.spans[key]
            place = len(spans) if spans[-1][0] < end else bisect_left(spans, (end, 0, 0, 0, 0.0))
            while place:  # the head is the most recent
                place -= 1
                first, last, _, at, uses = spans[place]
                if last <= start:
                    break
                if counts:
                    level = uses + 1
                if first >= start and last <= end and not self.ranked:
                    self.came += 1
                    spans[place] = (first, last, self.came, at, level)
                    self.queue.append((key, first, last, level))
                else:
                    self.put([(key, max(first, start), min(last, end), level)], at)
        if len(self.queue) > self.room:
            self._tidy()

    # --- what goes -------------------------------------------------------------------------------------------

    def discard(self, key: int, start: int, end: int) -> None:
        """Take the blocks out, as far as they are here."""
        spans = self.spans.get(key)
        if spans is None:
            return
        first = spans[0]
        if len(spans) == 1 and start <= first[0] and first[1] <= end:
            del self.spans[key]
            self.used -= first[1] - first[0]
            return
        self.used -= _replace(spans, start, end, [])
        if not spans:
            del self.spans[key]

    def clear(self) -> None:
        self.spans.clear()
        self.queue.clear()
        self.levels.clear()
        self.used = 0

    def overflow(self) -> list[Stretch]:
        """Take out what goes beyond the capacity, in the order in which it goes."""
        gone: list[Stretch] = []
        over = self.used - self.blocks
        if over <= 0:
            return gone
        self.used = self.blocks
        known, queue, levels, ranked = self.spans, self.queue, self.levels, self.ranked
        number = self.came - len(queue) + 1
        while over > 0:
            if ranked:
                _, number, entry = levels[0]
            else:
                entry = queue[0]
            key, first, end, level = entry
            spans = known.get(key)
            if spans is not None:
                place = -1 if spans[-1][2] == number else _last(spans, number, first, end)
                if place < len(spans):
                    start, end, _, at, _ = spans[place]
                    if end - start > over:
                        spans[place] = (start, end - over, number, at, level)
                        follow(gone, (key, end - over, end, level))
                        break
                    over -= end - start
                    follow(gone, (key, start, end, level))
                    del spans[place]
                    if not spans:
                        del known[key]
                    if start > first:  # there may be more of it
                        continue
            if ranked:
                heappop(levels)
            else:
                queue.popleft()
                number += 1
        return gone

    def _tidy(self) -> None:
        """Forget the entries of no use, and number the others anew."""
        first = self.came - len(self.queue) + 1
        entries = [(number, one) for number, one in enumerate(self.queue, first) if self._has(number, one)]
        self.levels = [one for one in self.levels if self._has(one[1], one[2])]
        heapify(self.levels)
        if entries:
            moved = {old: new for new, (old, _) in enumerate(entries, self.came - len(entries) + 1)}
            for spans in self.spans.values():
                spans[:] = [(start, end, moved[old], at, level) for start, end, old, at, level in spans]
        self.queue = deque([one for _, one in entries])
        self.room = 4 * (len(self.queue) + len(self.levels)) + SPARE

    def _has(self, number: int, entry: Stretch) -> bool:
        key, start, end, _ = entry
        spans = self.spans.get(key)
        return spans is not None and _last(spans, number, start, end) < len(spans)

    def check(self) -> None:
        """What the spans say is what is used, no block twice, each will go some time, and no more than there is room
        for."""
        used = 0
        queued = range(self.came - len(self.queue) + 1, self.came + 1)
        ranked = {number for _, number, _ in self.levels}
        for key, spans in self.spans.items():
            at = -1
            for start, end, number, _, _ in spans:
                if start < at or end <= start or not (number in ranked or number in queued):
                    raise InvariantError(f"A store's blocks {key}:{start}-{end} are out of order.")
                at = end
                used += end - start
        if used != self.used or used > self.blocks:
            raise InvariantError(
                f"A store's blocks do not add up: {self.used} used of {self.blocks}, spans say {used}."
            )


def _place(spans: list[Span], at: int) -> int:
    """The first that ends after `at`."""
    place = bisect_right(spans, (at, NEVER, 0, 0, 0.0))
    return place - 1 if place and spans[place - 1][1] > at else place


def _last(spans: list[Span], number: int, start: int, end: int) -> int:
    """The place of the last of those that are left of what came from `start` to `end`; without any, behind all."""
    place = len(spans) if spans[-1][0] < end else bisect_left(spans, (end, 0, 0, 0, 0.0))
    while place:
        place -= 1
        span = spans[place]
        if span[2] == number:
            return place
        if span[0] <= start:
            break
    return len(spans)


def _replace(spans: list[Span], start: int, end: int, new: list[Span]) -> int:
    """Put what is new in the place of the blocks from `start` to `end`. How many of those were here."""
    low = _place(spans, start)
    high = bisect_left(spans, (end, 0, 0, 0, 0.0), low)
    gone = 0
    for place in range(low, high):
        gone += spans[place][1] - spans[place][0]
    if low < high:
        head, tail = spans[low], spans[high - 1]
        if head[0] < start:
            gone -= start - head[0]
            new = [(head[0], start, *head[2:]), *new]
        if tail[1] > end:
            gone -= tail[1] - end
            new = [*new, (end, tail[1], *tail[2:])]
    spans[low:high] = new
    return gone
