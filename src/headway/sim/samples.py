"""A value over time as samples on a fixed grid, whose width follows from how long it has been watched alone."""

from __future__ import annotations

from headway.types import PS_PER_SECOND

FINEST_PS = PS_PER_SECOND // 1000
MOST = 200  # samples; then every other one goes, so that there are 100 at least


class Samples:
    """The value at the multiples of `interval_ps` after `origin`, each as the instant left it."""

    __slots__ = ("interval_ps", "origin", "values")

    def __init__(self, origin: int, finest_ps: int = FINEST_PS) -> None:
        self.origin = origin
        self.interval_ps = finest_ps
        self.values: list[int] = []

    def next_ps(self) -> int:
        """When the next is due."""
        return self.origin + len(self.values) * self.interval_ps

    def add(self, value: int) -> None:
        self.values.append(value)
        if len(self.values) == MOST:
            self.thin()

    def thin(self) -> None:
        del self.values[1::2]
        self.interval_ps *= 2

    def until(self, now: int, value: int) -> None:
        """It was so much from the last call on, and may change now."""
        values = self.values
        while self.origin + len(values) * self.interval_ps < now:
            values.append(value)
            if len(values) == MOST:
                self.thin()
