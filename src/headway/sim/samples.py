"""Samples of a value at equal intervals of time. The interval depends only on how long the value is observed."""

from collections.abc import Callable

from headway.types import PS_PER_SECOND

FINEST_PS = PS_PER_SECOND // 10  # initial interval, which is as long as a few steps
MOST = 200  # maximum number of samples; when it is reached, half of them are dropped: the second, the fourth and so on


class Samples:
    """Samples of a value at multiples of `interval_ps` after `origin`, each taken after the events of its instant."""

    __slots__ = ("interval_ps", "origin", "values")

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self.interval_ps = FINEST_PS
        self.values: list[int] = []

    def through(self, last: int, value_at: Callable[[int], int]) -> int:
        """Take the samples that are due up to `last`, and return when the next one is due."""
        values, interval_ps = self.values, self.interval_ps
        at = self.origin + len(values) * interval_ps
        while at <= last:
            values.append(value_at(at))
            at += interval_ps
            if len(values) == MOST:
                self.thin()
                interval_ps = self.interval_ps
                at = self.origin + len(values) * interval_ps
        return at

    def thin(self) -> None:
        del self.values[1::2]
        self.interval_ps *= 2

    def until(self, now: int, value: int) -> None:
        """Record the value that was valid since the last call. Call this before the value changes."""
        values, origin, interval_ps = self.values, self.origin, self.interval_ps
        while origin + len(values) * interval_ps < now:
            values.append(value)
            if len(values) == MOST:
                self.thin()
                interval_ps = self.interval_ps
