"""A number that several instances change, as pollers have seen it."""

from __future__ import annotations

from collections import deque


class Ticks:
    """Its value at ticks that have passed, each before all that happened at it."""

    __slots__ = ("interval", "seen", "tick")

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.tick = 0  # the first that has not been written down
        self.seen: deque[tuple[int, int]] = deque()  # the last tick, and the value at it and since the entry before

    def until(self, now: int, value: int) -> None:
        """It was so much from the last call on, and may change now."""
        if now >= self.tick:
            last = now // self.interval * self.interval
            self.seen.append((last, value))
            self.tick = last + self.interval

    def at(self, tick: int, value: int) -> int:
        """What it was at a tick, and is now. Ticks are asked for in order."""
        seen = self.seen
        while seen and seen[0][0] < tick:
            seen.popleft()
        return seen[0][1] if seen else value
