"""A sliding window over (now - length, now], in picoseconds. It is exact, because it stores every entry."""

from collections import deque
from typing import Any, Final

from msgspec import Struct, field

from headway.types import PS_PER_SECOND, Request

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
