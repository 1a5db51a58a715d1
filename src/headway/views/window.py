"""A sliding window of exact length: what came in (now - length, now], in whole picoseconds, without buckets."""

from __future__ import annotations

from collections import deque

from msgspec import Struct, field

from headway.types import PS_PER_SECOND


class Window(Struct, eq=False):
    """Amounts with their times, the oldest first, and their sum. What has left the window is dropped when something
    comes or is asked for, so that an entry costs O(1) amortised. Time does not go back."""

    length_ps: int
    entries: deque[tuple[int, int]] = field(default_factory=deque)  # when, how much
    total: int = 0  # of all entries

    def add(self, now_ps: int, amount: int = 1) -> None:
        self.sum(now_ps)
        self.entries.append((now_ps, amount))
        self.total += amount

    def pop(self) -> None:
        """Take the newest entry back; there is one."""
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
        """The mean of amounts in picoseconds, in seconds."""
        total = self.sum(now_ps)
        return total / (len(self.entries) * PS_PER_SECOND) if self.entries else None
