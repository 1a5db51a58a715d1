"""A value over time as samples on a fixed grid, whose width follows from how long it has been watched alone."""

from collections.abc import Callable

from headway.types import PS_PER_SECOND

FINEST_PS = PS_PER_SECOND // 10  # from sample to sample at first: a few steps
MOST = 200  # samples; then every other one goes, so that there are 100 at least


class Samples:
    """The value at the multiples of `interval_ps` after `origin`, each as the instant left it."""

    __slots__ = ("interval_ps", "origin", "values")

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self.interval_ps = FINEST_PS
        self.values: list[int] = []

    def through(self, last: int, value_at: Callable[[int], int]) -> int:
        """Those that are due up to `last`; when the next one is."""
        values, interval_ps = self.values, self.interval_ps
        at = self.origin + len(values) * interval_ps
        while at <= last:
            values.append(value_at(at))
            if len(values) == MOST:
                self.thin()
                interval_ps = self.interval_ps
            at = self.origin + len(values) * interval_ps
        return at

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
