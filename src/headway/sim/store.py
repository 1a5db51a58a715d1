"""A store of KV content below the GPU's cache: nobody computes there, so nobody holds anything. It keeps what was put
there last; beyond its capacity the oldest goes first, and of what came together the tail before the head. Where content
has a level (see `ranked_cache`), what has the lowest goes first, of equals the oldest.

Content is named as in the cache: by (key, block). Blocks of one key that came together are one *part*, which may have
gaps where some of them came again later or were taken out.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from headway.sim.kv_cache import Runs, Stretch
from headway.types import InvariantError

SPARE = 64  # entries of no use that a heap may have, beside as many as there are of use


class Part:
    __slots__ = ("at", "key", "level", "ranges")

    def __init__(self, key: int, start: int, end: int, at: int, level: float) -> None:
        self.at = at  # when it came
        self.key = key
        self.level = level
        self.ranges = [(start, end)]  # in order


class Store:
    __slots__ = ("blocks", "came", "levels", "parts", "ranked", "recency", "used")

    def __init__(self, blocks: int, ranked: bool = False) -> None:
        self.blocks = blocks
        self.used = 0
        self.parts: dict[int, list[Part]] = {}  # by key
        self.recency: dict[Part, None] = {}  # oldest first
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
        parts = self.parts.get(key, ())
        further = True
        while further:
            further = False
            for part in parts:
                for start, end in part.ranges:
                    if start <= at < end:
                        at = end
                        further = len(parts) > 1
        return at

    def first_in(self, runs: Runs, start: int, end: int) -> int:
        """The first of the blocks from `start` to `end` that is here, or `end`."""
        first = 0
        for key, last in runs:
            if last > start:
                for part in self.parts.get(key, ()):
                    for left, right in part.ranges:
                        at = max(left, first, start)
                        if at < min(right, last, end):
                            end = at
            if last >= end:
                break
            first = last
        return end

    def younger(self, runs: Runs, start: int, end: int, at: int) -> int:
        """How many of the blocks from `start` to `end` came after `at`."""
        count = first = 0
        for key, last in runs:
            for part in self.parts.get(key, ()):
                if part.at > at:
                    for left, right in part.ranges:
                        count += max(0, min(right, last, end) - max(left, first, start))
            first = last
        return count

    def parts_of(self, key: int, start: int, end: int) -> list[Stretch]:
        """What is here of these blocks, by level, in order."""
        found: list[Stretch] = []
        for part in self.parts.get(key, ()):
            for first, last in part.ranges:
                if first < end and last > start:
                    found.append((key, max(first, start), min(last, end), part.level))
        return sorted(found)

    def put(self, key: int, start: int, end: int, at: int, level: float = 0.0) -> int:
        """The blocks become the most recent ones. How many of them were not here before."""
        fresh = end - start - self.discard(key, start, end)
        part = Part(key, start, end, at, level)
        self.parts.setdefault(key, []).append(part)
        self.recency[part] = None
        if self.ranked:
            self.came += 1
            heappush(self.levels, (level, self.came, part))
        self.used += end - start
        return fresh

    def discard(self, key: int, start: int, end: int) -> int:
        """Take the blocks out. How many of them were here."""
        gone = 0
        for part in self.parts.get(key, [])[:]:
            left = []
            for first, last in part.ranges:
                if last <= start or first >= end:
                    left.append((first, last))
                    continue
                gone += min(last, end) - max(first, start)
                if first < start:
                    left.append((first, start))
                if last > end:
                    left.append((end, last))
            part.ranges = left
            if not left:
                self._forget(part)
        self.used -= gone
        return gone

    def overflow(self) -> list[Stretch]:
        """Take out what goes beyond the capacity, in the order in which it goes."""
        gone: list[Stretch] = []
        while self.used > self.blocks:
            part = self._lowest() if self.ranked else next(iter(self.recency))
            start, end = part.ranges.pop()
            over = self.used - self.blocks
            if end - start > over:
                part.ranges.append((start, end - over))
                start = end - over
            elif not part.ranges:
                self._forget(part)
            self.used -= end - start
            gone.append((part.key, start, end, part.level))
        return gone

    def _lowest(self) -> Part:
        levels = self.levels
        if len(levels) > 2 * len(self.recency) + SPARE:
            self.levels = levels = [entry for entry in levels if entry[2] in self.recency]
            heapify(levels)
        while levels[0][2] not in self.recency:
            heappop(levels)
        return levels[0][2]

    def _forget(self, part: Part) -> None:
        del self.recency[part]
        parts = self.parts[part.key]
        parts.remove(part)
        if not parts:
            del self.parts[part.key]

    def check(self) -> None:
        """What the parts say is what is used, no block twice, and no more than there is room for."""
        used = 0
        for key, parts in self.parts.items():
            at = -1
            for start, end in sorted(one for part in parts for one in part.ranges):
                if start < at or end <= start or any(part not in self.recency for part in parts):
                    raise InvariantError(f"A store's blocks {key}:{start}-{end} are out of order.")
                at = end
                used += end - start
        if used != self.used or used > self.blocks:
            raise InvariantError(
                f"A store's blocks do not add up: {self.used} used of {self.blocks}, parts say {used}."
            )
