"""What a count did over time, exactly: windows of any length that ends now, as far back as is kept.

Each log is the running total at every instant at which it changed, in whole numbers. A window is the difference of two
totals, found by bisection; what is older than any window may reach is dropped now and then, half of the log at least,
so that an entry costs O(1) amortised.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

SPARE: Final = 64  # entries that are kept in any case


class Tally:
    """How much came."""

    __slots__ = ("full", "kept_ps", "times", "total", "totals")

    def __init__(self, start_ps: int, kept_ps: int) -> None:
        self.kept_ps = kept_ps
        self.total = 0
        self.times = [start_ps - 1]
        self.totals = [0]  # up to and including that instant
        self.full = SPARE

    def add(self, now_ps: int, amount: int = 1) -> None:
        self.total += amount
        if self.times[-1] == now_ps:
            self.totals[-1] = self.total
            return
        if len(self.times) >= self.full:
            old = bisect_right(self.times, now_ps - self.kept_ps) - 1  # the last that a window may begin with
            if old > 0:
                del self.times[:old], self.totals[:old]
            self.full = 2 * len(self.times) + SPARE
        self.times.append(now_ps)
        self.totals.append(self.total)

    def since(self, start_ps: int) -> int:
        """What came after an instant, up to now."""
        return self.total - self.totals[max(0, bisect_right(self.times, start_ps) - 1)]


class Level:
    """A count that goes up and down, and the area below it: 3 for 2 s is 6 count-seconds."""

    __slots__ = ("area", "areas", "full", "kept_ps", "level", "levels", "times")

    def __init__(self, start_ps: int, kept_ps: int, level: int = 0) -> None:
        self.kept_ps = kept_ps
        self.level = level
        self.area = 0  # up to the last entry, in count-picoseconds
        self.times = [start_ps]
        self.areas = [0]
        self.levels = [level]  # from that instant on
        self.full = SPARE

    def set(self, now_ps: int, level: int) -> None:
        last_ps = self.times[-1]
        if last_ps == now_ps:
            self.level = self.levels[-1] = level
            return
        self.area += self.level * (now_ps - last_ps)
        self.level = level
        if len(self.times) >= self.full:
            old = bisect_right(self.times, now_ps - self.kept_ps) - 1
            if old > 0:
                del self.times[:old], self.areas[:old], self.levels[:old]
            self.full = 2 * len(self.times) + SPARE
        self.times.append(now_ps)
        self.areas.append(self.area)
        self.levels.append(level)

    def upto(self, at_ps: int) -> int:
        """The area up to an instant that is not before the oldest window's start."""
        place = max(0, bisect_right(self.times, at_ps) - 1)
        return self.areas[place] + self.levels[place] * (at_ps - self.times[place])
