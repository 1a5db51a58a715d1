"""What an instance has been like of late, as its reported signals show it: busy shares, hit rates, moves of blocks."""

from collections import deque

from headway.types import PS_PER_SECOND

HIT_REQUESTS = 100  # the last to enter the batch, each when it does so for the first time
MOVES_WINDOW_PS = 10 * PS_PER_SECOND


class BusyWindow:
    """How long an instance was busy in the last so many seconds, looking only at what has left the window."""

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

    __slots__ = ("left_ps",)

    def __init__(self, length_ps: int) -> None:
        super().__init__(length_ps)
        self.left_ps = 0  # busy times that have left the window, summed

    def share_at(self, origin: int, at: int, ended_ps: int, busy_from: int) -> float:
        """As `share`, for instants that do not go back; `done` is the sum of all busy times that had ended by then."""
        since = max(origin, at - self.length)
        if at <= since:
            return 0.0
        periods = self.periods
        while periods and periods[0][1] <= since:
            start, end = periods.popleft()
            self.left_ps += end - start
        before = self.left_ps
        if periods:
            before += max(0, since - periods[0][0])
        elif 0 <= busy_from < since:
            before += since - busy_from
        busy = ended_ps if busy_from < 0 else ended_ps + at - busy_from
        return (busy - before) / (at - since)


class HitRate:
    """How much of the prompts an instance has found in its cache of late."""

    __slots__ = ("cached", "last", "tokens")

    def __init__(self) -> None:
        self.last: deque[tuple[int, int]] = deque()  # tokens found cached, tokens of the prompt
        self.cached = 0
        self.tokens = 0

    def add(self, cached: int, tokens: int) -> None:
        self.last.append((cached, tokens))
        self.cached += cached
        self.tokens += tokens
        if len(self.last) > HIT_REQUESTS:
            cached, tokens = self.last.popleft()
            self.cached -= cached
            self.tokens -= tokens

    def share(self) -> float:
        """Of the prompts' tokens; 0 before the first request."""
        return self.cached / self.tokens if self.tokens else 0.0


class MoveRate:
    """How many blocks have moved in the last seconds, as of an instant that may have passed."""

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
        while inside and inside[0][0] <= to - MOVES_WINDOW_PS:
            self.total -= inside.popleft()[1]
        return self.total * PS_PER_SECOND / MOVES_WINDOW_PS


class Ticks:
    """A number that several instances change, at ticks that have passed, each before all that happened at it."""

    __slots__ = ("interval", "tick", "values")

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.tick = 0  # the first that has not been written down
        self.values: deque[tuple[int, int]] = deque()  # the last tick, and the value at it and since the entry before

    def until(self, now: int, value: int) -> None:
        """It was so much from the last call on, and may change now."""
        if now >= self.tick:
            last = now // self.interval * self.interval
            self.values.append((last, value))
            self.tick = last + self.interval

    def at(self, tick: int, value: int) -> int:
        """What it was at a tick, and is now. Ticks are asked for in order."""
        values = self.values
        while values and values[0][0] < tick:
            values.popleft()
        return values[0][1] if values else value
