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
AT_ONCE: Final = 4096  # number of requests whose times are in memory at a time


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
        """Return how long each limit held from `begin` to `end`."""
        place = bisect_right(self.times, begin) - 1
        if place == bisect_right(self.times, end) - 1:  # the usual case: no change
            limit = self.totals[place][0] if place >= 0 else ""
            return {limit: end - begin} if limit else {}
        before = self.until(begin)
        return {limit: time - before.get(limit, 0) for limit, time in self.until(end).items()}


class TimeSplit:
    def __init__(self, requests: RequestColumns, limits: Iterable[QueueLimit], ended_ps: int) -> None:
        self.ended_ps = ended_ps
        self.columns_of_requests = [*(getattr(requests, name) for name in COLUMNS), Waits(requests, ended_ps).left_ps]
        self.limits: dict[int, LimitTimes] = {}
        for change in limits:
            self.limits.setdefault(change.instance, LimitTimes()).add(change)

    def total(self, rows: Sequence[int]) -> dict[str, int]:
        """Return the time of these requests in each part, in picoseconds. Parts without time are left out."""
        sums = dict.fromkeys(PARTS, 0)
        for begin in range(0, len(rows), AT_ONCE):
            for part, times in self.columns(rows[begin : begin + AT_ONCE]).items():
                sums[part] += sum(times)
        return {part: time for part, time in sums.items() if time}

    def of(self, row: int) -> dict[str, int]:
        """Return the time of one request in each part, in picoseconds."""
        return self.total([row])

    def columns(self, rows: Sequence[int]) -> dict[str, list[int]]:
        """Return for each part the time of each of these requests, in picoseconds. Parts without time are left out."""
        split: dict[str, list[int]] = {part: [0] * len(rows) for part in PARTS}
        router, load, prefill, decode = split["router"], split["load"], split["prefill"], split["decode"]
        picked = [map(column.__getitem__, rows) for column in self.columns_of_requests]
        for place, (
            arrival, routed, enqueued, started, first, handed, begun, arrived, finished, prefill_instance, instance,
            moved, preempted, loading, ready, interrupted, joined, outcome, left,
        ) in enumerate(zip(*picked, strict=True)):  # fmt: skip
            end = finished if finished >= 0 else self.ended_ps
            if enqueued < 0:  # the request never reached an instance
                router[place] = (routed if routed >= 0 else end) - arrival
                continue
            router[place] = enqueued - arrival
            if moved:
                split["moved"][place] = end - enqueued
                continue
            if left > end:
                left = end
            home = prefill_instance if prefill_instance >= 0 else instance
            self._add_wait(split, place, home, enqueued, left)
            if started < 0:
                continue
            computed = handed if handed >= 0 else first if first >= 0 and prefill_instance < 0 else end
            prefill[place] = computed - left - loading - ready - interrupted
            load[place] = loading
            if ready:
                self._add_wait(split, place, home, left + loading, left + loading + ready)
            if handed >= 0:
                sent = begun if begun >= 0 else end
                there = max(sent, arrived if arrived >= 0 else end)
                # A request that completed has joined; folders of older versions do not have the time.
                computed = joined if joined >= 0 else there if outcome == COMPLETED else end
                split["transfer_wait"][place], split["transfer"][place] = sent - handed, there - sent
                self._add_wait(split, place, instance, there, computed)
            split["preemption"][place] = interrupted + preempted
            decode[place] = end - computed - preempted
        return {part: times for part, times in split.items() if any(times)}

    def _add_wait(self, split: dict[str, list[int]], place: int, instance: int, begin: int, end: int) -> None:
        rest = end - begin
        if rest > 0 and instance in self.limits:
            for limit, time in self.limits[instance].between(begin, end).items():
                split[f"queue.{limit}"][place] += time
                rest -= time
        split["queue.step"][place] += rest
