"""Recent values of an instance for its reported signals: busy fraction, hit rate, and moves of blocks."""

from collections import deque

from headway.types import PS_PER_SECOND

HIT_REQUESTS = 100  # the hit rate covers this number of the most recently started requests
MOVES_WINDOW_PS = 10 * PS_PER_SECOND


class BusyWindow:
    """The fraction of time that an instance was busy, over a sliding window."""

    __slots__ = ("left_ps", "length", "periods")

    def __init__(self, length_ps: int) -> None:
        self.length = length_ps
        self.periods: deque[tuple[int, int]] = deque()  # busy periods that have ended, oldest first
        self.left_ps = 0  # total duration of the busy periods that have left the window

    def add(self, start: int, end: int) -> None:
        self.periods.append((start, end))

    def share(self, origin: int, at: int, ended_ps: int, busy_from: int) -> float:
        """Return the busy fraction of the window that ends at `at`, or of the time since `origin` if that is shorter.
        `ended_ps` is the total duration of the busy periods that ended by `at`. `busy_from` is the start of the busy
        period at `at`, or -1 if the instance is idle. `at` must not decrease between calls."""
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
    """The fraction of prompt tokens that an instance has recently found in its cache."""

    __slots__ = ("cached", "last", "tokens")

    def __init__(self) -> None:
        self.last: deque[tuple[int, int]] = deque()  # (cached tokens, prompt tokens) of each covered request
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
        return self.cached / self.tokens if self.tokens else 0.0


class MoveRate:
    """The rate at which blocks move between GPU and stores, over a sliding window that may end in the past."""

    __slots__ = ("inside", "later", "total")

    def __init__(self) -> None:
        self.later: deque[tuple[int, int]] = deque()  # (time, number of blocks) of each move after the window
        self.inside: deque[tuple[int, int]] = deque()  # (time, number of blocks) of each move in the window
        self.total = 0  # sum of the blocks moved in the window

    def add(self, at: int, blocks: int) -> None:
        self.later.append((at, blocks))

    def rate(self, to: int, before: int) -> float:
        """Return the blocks moved per second in the window that ends at `to`, counting only moves before `before`.
        Neither time may decrease between calls."""
        later, inside = self.later, self.inside
        while later and later[0][0] < before:
            self.total += later[0][1]
            inside.append(later.popleft())
        while inside and inside[0][0] <= to - MOVES_WINDOW_PS:
            self.total -= inside.popleft()[1]
        return self.total * PS_PER_SECOND / MOVES_WINDOW_PS


class Ticks:
    """The values of a counter at past ticks. The value at a tick is the value before the events of that instant."""

    __slots__ = ("interval", "tick", "values")

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.tick = 0  # time of the first tick that is not recorded
        self.values: deque[tuple[int, int]] = deque()  # (last tick with this value, value)

    def until(self, now: int, value: int) -> None:
        """Record the value that was valid since the last call. Call this before the value changes."""
        if now >= self.tick:
            last = now // self.interval * self.interval
            self.values.append((last, value))
            self.tick = last + self.interval

    def at(self, tick: int, value: int) -> int:
        """Return the value at a tick; `value` is the current value. Calls must be in order of ticks."""
        values = self.values
        while values and values[0][0] < tick:
            values.popleft()
        return values[0][1] if values else value
