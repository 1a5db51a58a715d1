"""A store of KV content below the GPU's cache: nobody computes there, so nobody holds anything. It keeps what was put
there last; beyond its capacity the oldest goes first, and of what came together the tail before the head. Where content
has a level (see `ranked_cache`), what has the lowest goes first, of equals the oldest.

Content is named as in the cache: by (key, block). Blocks of one key that came together have a number in common; they
are one span, or several where some of them came again later or were taken out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from heapq import heapify, heappop, heappush

from headway.sim.kv_cache import Stretch, follow
from headway.sim.leap import NEVER
from headway.types import InvariantError

SPARE = 64  # entries of no use that the heap may have, beside three for each that is of use

Span = tuple[int, int, int, int, float]  # first block, end block, number, when it came, level


class Store:
    __slots__ = ("blocks", "came", "levels", "oldest", "ranked", "spans", "split", "together", "used")

    def __init__(self, blocks: int, ranked: bool = False) -> None:
        self.blocks = blocks
        self.used = 0
        self.came = 0  # the last number
        self.spans: dict[int, list[Span]] = {}  # by key, in order
        self.ranked = ranked  # whether levels count
        self.together: dict[int, Stretch] = {}  # what came together, by number, as long as some of it is here
        self.split: dict[int, int] = {}  # how many spans more than one there are of it, where there are
        self.oldest = 0  # no number is less
        self.levels: list[tuple[float, int]] = []  # heap of the numbers where levels count, and of some that are gone

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
        found = spans[_place(spans, start) : _end(spans, end)]
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
        known, together, number = self.spans, self.together, self.came
        for stretch in content:
            key, start, end, level = stretch
            number += 1
            together[number] = stretch
            spans = known.get(key)
            if spans is None:
                known[key] = [(start, end, number, at, level)]
                fresh += end - start
                continue
            first, last, old, _, _ = spans[0]
            if end <= first:  # what is evicted goes from the tail on
                spans.insert(0, (start, end, number, at, level))
                fresh += end - start
            elif first == start and last == end:  # it is here as it comes
                spans[0] = (start, end, number, at, level)
                self._forget(old)
            else:
                fresh += end - start - self._replace(spans, start, end, [(start, end, number, at, level)])
        self.used += fresh
        if self.ranked:
            self._rank(content)
        self.came = number
        return fresh

    def _rank(self, content: list[Stretch]) -> None:
        levels = self.levels
        for number, stretch in enumerate(content, self.came + 1):
            heappush(levels, (stretch[3], number))
        if len(levels) > 4 * len(self.together) + SPARE:
            levels[:] = [(stretch[3], number) for number, stretch in self.together.items()]
            heapify(levels)

    def touch(self, content: list[Stretch], counts: bool) -> None:
        """The blocks, all of which are here, become the most recent ones, but came when they came. Where uses count
        they have been used once more, else they have the new level."""
        for key, start, end, level in content:
            spans = self.spans[key]
            place = _end(spans, end)
            while place:  # the head is the most recent
                place -= 1
                first, last, old, at, uses = spans[place]
                if last <= start:
                    break
                if counts:
                    level = uses + 1
                if first >= start and last <= end and not self.ranked:
                    self.came += 1
                    spans[place] = (first, last, self.came, at, level)
                    self.together[self.came] = (key, first, last, level)
                    self._forget(old)
                else:
                    self.put([(key, max(first, start), min(last, end), level)], at)

    # --- what goes -------------------------------------------------------------------------------------------

    def discard(self, key: int, start: int, end: int) -> None:
        """Take the blocks out, as far as they are here."""
        spans = self.spans.get(key)
        if spans is None:
            return
        self.used -= self._replace(spans, start, end, [])
        if not spans:
            del self.spans[key]

    def clear(self) -> None:
        self.spans.clear()
        self.together.clear()
        self.split.clear()
        self.levels.clear()
        self.used = 0

    def overflow(self) -> list[Stretch]:
        """Take out what goes beyond the capacity, in the order in which it goes."""
        gone: list[Stretch] = []
        over = self.used - self.blocks
        if over <= 0:
            return gone
        self.used = self.blocks
        known, together, number = self.spans, self.together, self.oldest
        while over > 0:
            if self.ranked:
                number = self._lowest()
            else:
                while number not in together:
                    number += 1
            key, _, end, level = together[number]
            spans = known[key]
            place = -1 if spans[-1][2] == number else _last(spans, number, end)
            start, end, _, at, _ = spans[place]
            if end - start > over:
                spans[place] = (start, end - over, number, at, level)
                start = end - over
            else:
                del spans[place]
                if not spans:
                    del known[key]
                self._forget(number)
            over -= end - start
            follow(gone, (key, start, end, level))
        self.oldest = number
        return gone

    def _lowest(self) -> int:
        """Of what has the lowest level the oldest."""
        while self.levels[0][1] not in self.together:
            heappop(self.levels)
        return self.levels[0][1]

    def _replace(self, spans: list[Span], start: int, end: int, new: list[Span]) -> int:
        """Put what is new in the place of the blocks from `start` to `end`. How many of those were here."""
        low, high = _place(spans, start), _end(spans, end)
        gone = 0
        if low < high:
            head, tail = spans[low], spans[high - 1]
            if head[0] < start:
                gone -= start - head[0]
                new = [(head[0], start, *head[2:]), *new]
                self.split[head[2]] = self.split.get(head[2], 0) + 1
            if tail[1] > end:
                gone -= tail[1] - end
                new = [*new, (end, tail[1], *tail[2:])]
                self.split[tail[2]] = self.split.get(tail[2], 0) + 1
            for first, last, number, _, _ in spans[low:high]:
                gone += last - first
                self._forget(number)
        spans[low:high] = new
        return gone

    def _forget(self, number: int) -> None:
        """A span of what came together is none any more."""
        more = self.split.pop(number, 0)
        if not more:
            del self.together[number]
        elif more > 1:
            self.split[number] = more - 1

    def check(self) -> None:
        """What the spans say is what is used, no block twice, each will go some time, and no more than there is room
        for."""
        used = 0
        count = 0
        ranked = {number for _, number in self.levels}
        for key, spans in self.spans.items():
            at = -1
            for start, end, number, _, _ in spans:
                came = self.together.get(number, (key, end, start, 0.0))
                inside = came[0] == key and came[1] <= start and end <= came[2]
                if start < at or end <= start or not inside or (self.ranked and number not in ranked):
                    raise InvariantError(f"A store's blocks {key}:{start}-{end} are out of order.")
                at = end
                used += end - start
            count += len(spans)
        whole = count == len(self.together) + sum(self.split.values())
        if used != self.used or used > self.blocks or not whole:
            raise InvariantError(
                f"A store's blocks do not add up: {self.used} used of {self.blocks}, spans say {used}."
            )


def _place(spans: list[Span], at: int) -> int:
    """The first that ends after `at`."""
    place = bisect_right(spans, (at, NEVER, 0, 0, 0.0))
    return place - 1 if place and spans[place - 1][1] > at else place


def _end(spans: list[Span], end: int) -> int:
    """The first that begins at `end` or after it."""
    return len(spans) if not spans or spans[-1][0] < end else bisect_left(spans, (end, 0, 0, 0, 0.0))


def _last(spans: list[Span], number: int, end: int) -> int:
    """The place of the last span of a number, all of whose blocks come before `end`."""
    place = _end(spans, end) - 1
    while spans[place][2] != number:
        place -= 1
    return place
