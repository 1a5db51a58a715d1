"""How many blocks have moved in the last seconds, as of an instant that may have passed."""

from __future__ import annotations

from collections import deque

from headway.types import PS_PER_SECOND

WINDOW_PS = 10 * PS_PER_SECOND


class Flow:
    __slots__ = ("inside", "later", "total")

    def __init__(self) -> None:
        self.later: deque[tuple[int, int]] = deque()  # when and how many, of which nobody has asked yet
        self.inside: deque[tuple[int, int]] = deque()  # in the window
        self.total = 0  # of those

    def add(self, at: int, blocks: int) -> None:
        self.later.append((at, blocks))

    def rate(self, to: int, before: int) -> float:
        """Blocks a second over the window that ends at `to`, of what moved before `before`; neither goes back."""
        later, inside = self.later, self.inside
        while later and later[0][0] < before:
            self.total += later[0][1]
            inside.append(later.popleft())
        while inside and inside[0][0] <= to - WINDOW_PS:
            self.total -= inside.popleft()[1]
        return self.total * PS_PER_SECOND / WINDOW_PS
