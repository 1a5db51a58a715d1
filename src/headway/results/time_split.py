"""Where the time of each request went: router, queue and its limits, load, prefill, preemption, transfer, decode.

The parts of a request add up to its time from arrival to its end, or to the end of the run if it is still in flight. A
request that moved between instances while running is an exception: only its time at the router and the rest are known.

A request waits in the queue before its first turn, and also if its blocks have arrived, from a tier or from another
instance, but it cannot enter the batch yet. After a preemption, its wait is part of the preemption.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from headway.results.recorder import COMPLETED, RequestColumns
from headway.results.records import LIMITS, QueueLimit
from headway.results.waits import Waits

QUEUED: Final = tuple(f"queue.{limit}" for limit in (*LIMITS[1:], "step"))
# `queue.step` is the time that a request waits in the queue only because the current step has not ended. `moved` is
# all time after routing, if the request moved between instances.
PARTS: Final = ("router", *QUEUED, "load", "prefill", "preemption", "transfer_wait", "transfer", "decode", "moved")
COLUMNS: Final = (
    "arrival_ps", "routed_ps", "enqueued_ps", "started_ps", "first_token_ps", "handed_ps", "transfer_ps",
    "transferred_ps", "finished_ps", "prefill_instance", "instance", "redirects", "preempted_ps", "loading_ps",
    "ready_ps", "interrupted_ps", "joined_ps", "outcome",
)  # fmt: skip


class LimitTimes:
    """How long each limit of the queue has held at one instance, up to any given time."""

    __slots__ = ("times", "totals")

    def __init__(self) -> None:
        self.times: list[int] = []  # time of each change
        # For each change: the new limit, and how long each limit had held until then.
        self.totals: list[tuple[str, dict[str, int]]] = []

    def add(self, change: QueueLimit) -> None:
        held = self.until(change.at_ps)
        self.times.append(change.at_ps)
        self.totals.append((change.limit, held))

    def until(self, at: int) -> dict[str, int]:
        """Return how long each limit held before `at`."""
        place = bisect_right(self.times, at) - 1
        if place < 0:
            return {}
        limit, held = self.totals[place]
        if not limit:
            return held
        return {**held, limit: held.get(limit, 0) + at - self.times[place]}

    def between(self, begin: int, end: int) -> dict[str, int]:
        before = self.until(begin)
        return {limit: time - before.get(limit, 0) for limit, time in self.until(end).items()}


class TimeSplit:
    def __init__(self, requests: RequestColumns, limits: Iterable[QueueLimit], ended_ps: int) -> None:
        self.columns = [getattr(requests, name) for name in COLUMNS]
        self.ended_ps = ended_ps
        self.left_ps = Waits(requests, ended_ps).left_ps
        self.limits: dict[int, LimitTimes] = {}
        for change in limits:
            self.limits.setdefault(change.instance, LimitTimes()).add(change)

    def total(self, rows: Sequence[int]) -> dict[str, int]:
        """Return the time of these requests in each part, in picoseconds. Parts without time are left out."""
        sums = dict.fromkeys(PARTS, 0)
        for row in rows:
            for part, time in self._parts(row, *[column[row] for column in self.columns]):
                sums[part] += time
        return {part: time for part, time in sums.items() if time}

    def of(self, row: int) -> dict[str, int]:
        """Return the time of one request in each part, in picoseconds."""
        return self.total([row])

    def _parts(
        self, row: int, arrival: int, routed: int, enqueued: int, started: int, first: int, handed: int, begun: int,
        arrived: int, finished: int, prefill: int, instance: int, moved: int, preempted: int, loading: int, ready: int,
        interrupted: int, joined: int, outcome: int,
    ) -> list[tuple[str, int]]:  # fmt: skip
        end = finished if finished >= 0 else self.ended_ps
        if enqueued < 0:  # the request never reached an instance
            return [("router", (routed if routed >= 0 else end) - arrival)]
        parts = [("router", enqueued - arrival)]
        if moved:
            return [*parts, ("moved", end - enqueued)]
        left = min(self.left_ps[row], end)
        home = prefill if prefill >= 0 else instance
        parts += self._wait(home, enqueued, left)
        if started < 0:
            return parts
        computed = handed if handed >= 0 else first if first >= 0 and prefill < 0 else end
        parts.append(("load", loading))
        if ready:
            parts += self._wait(home, left + loading, left + loading + ready)
        parts.append(("prefill", computed - left - loading - ready - interrupted))
        if handed >= 0:
            sent = begun if begun >= 0 else end
            there = max(sent, arrived if arrived >= 0 else end)
            # A request that completed has joined; folders of older versions do not have the time.
            computed = joined if joined >= 0 else there if outcome == COMPLETED else end
            parts += [("transfer_wait", sent - handed), ("transfer", there - sent)]
            parts += self._wait(instance, there, computed)
        return [*parts, ("preemption", interrupted + preempted), ("decode", end - computed - preempted)]

    def _wait(self, instance: int, begin: int, end: int) -> list[tuple[str, int]]:
        times = self.limits.get(instance)
        held = {} if times is None or end <= begin else times.between(begin, end)
        parts = [(f"queue.{limit}", time) for limit, time in held.items() if time]
        return [*parts, ("queue.step", end - begin - sum(held.values()))]
