"""The requests that waited and ran at each instance over time, for a timeline.

A running request takes the lowest free slot from its first step to its end. A disaggregated request has a slot at its
prefill instance until the handover, and one at its decode instance from the arrival of its KV cache. A preempted
request keeps its slot. A request that moved between instances has no slot, because the time of its move is not
recorded.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from headway.results.table import Table

WAITING, RUNNING = 0, 1


class Stay(NamedTuple):
    """A request in a slot of an instance. `first_ps` is the time when the instance had computed the prompt, or -1 if it
    never did. If `generate` is set, the request arrived with its KV cache, and the instance only generates tokens."""

    row: int
    slot: int
    begun_ps: int
    first_ps: int
    ended_ps: int
    generate: bool


class Places:
    """The requests of each instance. `prompts` has the requests whose prompt the instance computes. `answers` has the
    requests for which the instance only generates tokens."""

    def __init__(self, requests: Table, until_ps: int) -> None:
        self.until_ps = until_ps  # time at which requests that have not ended are assumed to end
        self.column: dict[str, Sequence[Any]] = {name: requests.column(name) for name in requests}
        self.prompts: dict[int, array[int]] = {}
        self.answers: dict[int, array[int]] = {}
        self.moved = array("q")
        names = ("enqueued_ps", "instance", "prefill_instance", "redirects", "transferred_ps")
        for row, (enqueued, instance, prefill, redirects, transferred) in self.select(*names):
            if enqueued < 0:
                continue
            if redirects:
                self.moved.append(row)
                continue
            self.prompts.setdefault(prefill if prefill >= 0 else instance, array("q")).append(row)
            if transferred >= 0:
                self.answers.setdefault(instance, array("q")).append(row)

    def select(self, *names: str) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield each request (its row) with its values in these columns."""
        return enumerate(zip(*(self.column[name] for name in names), strict=True))

    def end_ps(self, row: int) -> int:
        """Return when a request ended; if it has not ended, return the end of the timeline."""
        finished: int = self.column["finished_ps"][row]
        return finished if finished >= 0 else self.until_ps

    def waits(self, instance: int) -> Iterator[tuple[int, int, int]]:
        """Yield the waits at an instance: request, start, end."""
        enqueued, started = self.column["enqueued_ps"], self.column["started_ps"]
        for row in self.prompts.get(instance, ()):
            until = started[row] if started[row] >= 0 else self.end_ps(row)
            if until > enqueued[row]:
                yield row, enqueued[row], until

    def stays(self, instance: int) -> Iterator[Stay]:
        """Yield the requests that ran at an instance, in order of their start, in slots numbered from 0."""
        started, transferred = self.column["started_ps"], self.column["transferred_ps"]
        runs = [(started[row], row, False) for row in self.prompts.get(instance, ()) if started[row] >= 0]
        runs += [(transferred[row], row, True) for row in self.answers.get(instance, ())]
        runs.sort()
        busy: list[tuple[int, int]] = []  # heap of (end time, slot) of the running requests
        free: list[int] = []
        for begun, row, generate in runs:
            first, ended = (-1, self.end_ps(row)) if generate else self._prefill_end(row)
            while busy and busy[0][0] <= begun:
                heappush(free, heappop(busy)[1])
            slot = heappop(free) if free else len(busy)
            heappush(busy, (ended, slot))
            yield Stay(row, slot, begun, first, ended, generate)

    def _prefill_end(self, row: int) -> tuple[int, int]:
        """Return when a request's prompt was computed, and when the request left the instance that computed it. The
        first time is -1 if the prompt was never computed."""
        if self.column["prefill_instance"][row] >= 0:
            handed: int = self.column["handed_ps"][row]
            return (handed, handed) if handed >= 0 else (-1, self.end_ps(row))
        first: int = self.column["first_token_ps"][row]
        return first, self.end_ps(row)

    def levels(self, instance: int) -> Iterator[tuple[int, int, int]]:
        """Yield the time and the numbers of running and waiting requests of an instance, at each change."""
        # Each integer encodes a time, the state of the request (running or waiting), and whether it starts or ends.
        changes: list[int] = []
        for _, begun, until in self.waits(instance):
            changes += (begun << 2 | WAITING << 1 | 1, until << 2 | WAITING << 1)
        for stay in self.stays(instance):
            changes += (stay.begun_ps << 2 | RUNNING << 1 | 1, stay.ended_ps << 2 | RUNNING << 1)
        return levels(changes)

    def waits_between(self, begin: str, end: str) -> Iterator[tuple[int, int, int]]:
        """Yield the waits between two columns, such as `arrival_ps` and `admitted_ps`: request, start, end. `routed_ps`
        is the time of the last dispatch."""
        for row, (since, until) in self.select(begin, end):
            until = until if until >= 0 else self.end_ps(row)
            if 0 <= since < until:
                yield row, since, until


def levels(changes: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield each time with the numbers of running and waiting requests after all changes at that time."""
    changes.sort()
    counts, now = [0, 0], -1
    for change in changes:
        at = change >> 2
        if at != now and now >= 0:
            yield now, counts[RUNNING], counts[WAITING]
        now = at
        counts[change >> 1 & 1] += 1 if change & 1 else -1
    if now >= 0:
        yield now, counts[RUNNING], counts[WAITING]
