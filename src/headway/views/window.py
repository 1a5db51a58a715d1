"""Sliding windows over (now - length, now], in picoseconds. They are exact, because they store every entry.

A running total serves windows of any length: the amount in a window is the difference between the totals at its end and
at its start. Bisection finds the total at a given time.
"""

from bisect import bisect_right
from collections import deque
from typing import Any, Final

from msgspec import Struct, field

from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND, Request

LONGEST_S: Final = 600  # longest window that a policy may read, where the length is free
SPARE: Final = 64  # a running total with fewer entries than this never removes old entries
WINDOW_PS: Final = 10 * PS_PER_SECOND  # length of the windows in which a router keeps its own measurements


class Window(Struct, eq=False):
    """The amounts in a sliding window with their times, and the sum of the amounts. Every call removes the entries that
    have left the window, so an entry costs O(1) amortised. Times must not decrease between calls."""

    length_ps: int
    entries: deque[tuple[int, int]] = field(default_factory=deque)  # (time, amount) of each entry, oldest first
    total: int = 0  # sum of the amounts of all entries

    def add(self, now_ps: int, amount: int = 1) -> None:
        self.sum(now_ps)
        self.entries.append((now_ps, amount))
        self.total += amount

    def pop(self) -> None:
        """Remove the newest entry, which must exist."""
        self.total -= self.entries.pop()[1]

    def sum(self, now_ps: int) -> int:
        entries, start_ps = self.entries, now_ps - self.length_ps
        while entries and entries[0][0] <= start_ps:
            self.total -= entries.popleft()[1]
        return self.total

    def count(self, now_ps: int) -> int:
        self.sum(now_ps)
        return len(self.entries)

    def amounts(self, now_ps: int) -> list[int]:
        self.sum(now_ps)
        return [amount for _, amount in self.entries]

    def per_second(self, now_ps: int) -> float:
        return self.sum(now_ps) * PS_PER_SECOND / self.length_ps

    def mean_seconds(self, now_ps: int) -> float | None:
        """Return the mean amount in seconds. The amounts must be durations in picoseconds."""
        total = self.sum(now_ps)
        return total / (len(self.entries) * PS_PER_SECOND) if self.entries else None


class Recent:
    """The router's own measurements of an instance in (now - 10 s, now]. `clock.now_ps` is the current time."""

    __slots__ = ("_clock", "_output", "_tpots", "_ttfts")

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._ttfts = Window(WINDOW_PS)
        self._tpots = Window(WINDOW_PS)
        self._output = Window(WINDOW_PS)

    def on_first_token(self, now_ps: int, request: Request) -> None:
        self._ttfts.add(now_ps, now_ps - request.arrival_ps)

    def on_finished(self, now_ps: int, output_tokens: int, decode_ps: int | None) -> None:
        self._output.add(now_ps, output_tokens)
        if decode_ps is not None and output_tokens > 1:
            self._tpots.add(now_ps, decode_ps // (output_tokens - 1))  # an integer, so that the sum is exact

    @property
    def ttft(self) -> float | None:
        return self._ttfts.mean_seconds(self._clock.now_ps)

    @property
    def tpot(self) -> float | None:
        """Mean time per output token in seconds, over completed requests of at least two tokens."""
        return self._tpots.mean_seconds(self._clock.now_ps)

    @property
    def tokens_per_second(self) -> float:
        return self._output.per_second(self._clock.now_ps)


class RunningTotal:
    """A total over time. `add` increases it by an amount. Between the calls, it grows by `level` per picosecond: with 3
    requests in flight, it grows by 6 request-seconds in 2 s."""

    def __init__(self, start_ps: int, kept_ps: int, level: int = 0) -> None:
        self.kept_ps = kept_ps
        self.level = level
        self.total = 0  # the total at the last of `times`
        self.times = [start_ps - 1]
        self.totals = [0]  # the total at each of `times`, including changes at that time
        self.levels = [level]  # the level from each of `times` until the next
        self.full = SPARE

    def add(self, now_ps: int, amount: int = 1) -> None:
        self._change(now_ps, amount, self.level)

    def set(self, now_ps: int, level: int) -> None:
        self._change(now_ps, 0, level)

    def _change(self, now_ps: int, amount: int, level: int) -> None:
        last_ps = self.times[-1]
        self.total += self.level * (now_ps - last_ps) + amount
        self.level = level
        if last_ps == now_ps:
            self.totals[-1], self.levels[-1] = self.total, level
            return
        if len(self.times) >= self.full:
            # Index of the last entry before the longest window.
            old = bisect_right(self.times, now_ps - self.kept_ps) - 1
            if old > 0:
                del self.times[:old], self.totals[:old], self.levels[:old]
            self.full = 2 * len(self.times) + SPARE
        self.times.append(now_ps)
        self.totals.append(self.total)
        self.levels.append(level)

    def upto(self, at_ps: int) -> int:
        """Return the total at `at_ps`. This time must not be earlier than the start of the longest window."""
        place = max(0, bisect_right(self.times, at_ps) - 1)
        return self.totals[place] + self.levels[place] * (at_ps - self.times[place])

    def since(self, start_ps: int) -> int:
        """Return the growth of the total since `start_ps`."""
        return self.total - self.upto(start_ps)


class LongWindow:
    """The amounts in windows of any length up to `LONGEST_S`."""

    __slots__ = ("_total",)

    def __init__(self, now_ps: int) -> None:
        self._total = RunningTotal(now_ps, LONGEST_S * PS_PER_SECOND)

    def add(self, now_ps: int, amount: int = 1) -> None:
        self._total.add(now_ps, amount)

    def per_second(self, now_ps: int, seconds: float) -> float:
        length_ps = round(seconds * PS_PER_SECOND)
        if not 0 < length_ps <= LONGEST_S * PS_PER_SECOND:
            raise HeadwayError(
                f"a window of {seconds:g} s is not available; use more than 0 s and at most {LONGEST_S} s."
            )
        return self._total.since(now_ps - length_ps) * PS_PER_SECOND / length_ps
