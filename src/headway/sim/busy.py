"""How long an instance was busy in the last so many seconds, without looking at more than what has left the window."""

from __future__ import annotations

from collections import deque


class BusyWindow:
    __slots__ = ("length", "periods", "total")

    def __init__(self, length_ps: int) -> None:
        self.length = length_ps
        self.periods: deque[tuple[int, int]] = deque()  # busy times that have ended, oldest first
        self.total = 0  # their lengths, summed

    def add(self, start: int, end: int) -> None:
        self.periods.append((start, end))
        self.total += end - start

    def share(self, origin: int, now: int, busy_from: int) -> float:
        """The busy share of the window that ends now, or of the time since `origin` where that is less. `busy_from`
        is when the present busy time began, -1 if the instance is idle."""
        since = max(origin, now - self.length)
        if now == since:
            return 0.0
        periods = self.periods
        while periods and periods[0][1] <= since:
            start, end = periods.popleft()
            self.total -= end - start
        busy = self.total
        if periods and periods[0][0] < since:
            busy -= since - periods[0][0]
        if busy_from >= 0:
            busy += now - max(busy_from, since)
        return busy / (now - since)


class PastWindow(BusyWindow):
    """One that ends at an instant of the past. Later busy times may have ended since, so what had been done by then is
    told by whoever remembers it."""

    __slots__ = ("gone",)

    def __init__(self, length_ps: int) -> None:
        super().__init__(length_ps)
        self.gone = 0  # busy times that have left the window, summed

    def share_at(self, origin: int, at: int, done: int, busy_from: int) -> float:
        """As `share`, for instants that do not go back; `done` is the sum of all busy times that had ended by then."""
        since = max(origin, at - self.length)
        if at <= since:
            return 0.0
        periods = self.periods
        while periods and periods[0][1] <= since:
            start, end = periods.popleft()
            self.gone += end - start
        before = self.gone
        if periods:
            before += max(0, since - periods[0][0])
        elif 0 <= busy_from < since:
            before += since - busy_from
        busy = done if busy_from < 0 else done + at - busy_from
        return (busy - before) / (at - since)
