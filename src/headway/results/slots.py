"""Who was where and when, for a timeline: what waited at each instance and what ran there, in the lowest free slot.

A request holds a slot from its first step to its end; one whose prompt is computed apart holds one there until it is
handed over, and another from the arrival of its KV cache on. What had to yield keeps its slot. A request that was moved
from one instance to another has no slot, since nothing says when it went.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from headway.results.table import Table

WAITING, RUNNING = 0, 1


class Stay(NamedTuple):
    """A request in a slot. Its prompt was computed there by `first_ps`, or never if that is -1; not at all where it
    came with its KV cache, to `generate` only."""

    row: int
    slot: int
    begun_ps: int
    first_ps: int
    ended_ps: int
    generate: bool


class Places:
    """The requests of each instance: those whose prompts it computes, and those that it only generates for."""

    def __init__(self, requests: Table, until_ps: int) -> None:
        self.until_ps = until_ps  # when what has not ended is cut off
        self.column: dict[str, Sequence[Any]] = {name: requests.column(name) for name in requests}
        self.prompts: dict[int, array[int]] = {}
        self.answers: dict[int, array[int]] = {}
        self.moved = array("q")
        columns = (
            self.column[name] for name in ("enqueued_ps", "instance", "prefill_instance", "redirects", "transferred_ps")
        )
        for row, (enqueued, instance, prefill, redirects, transferred) in enumerate(zip(*columns, strict=True)):
            if enqueued < 0:
                continue
            if redirects:
                self.moved.append(row)
                continue
            self.prompts.setdefault(prefill if prefill >= 0 else instance, array("q")).append(row)
            if transferred >= 0:
                self.answers.setdefault(instance, array("q")).append(row)

    def end_ps(self, row: int) -> int:
        """When a request left the instance that generates, or was cut off."""
        finished: int = self.column["finished_ps"][row]
        return finished if finished >= 0 else self.until_ps

    def waits(self, instance: int) -> Iterator[tuple[int, int, int]]:
        """What waited at an instance: request, from when to when."""
        enqueued, started = self.column["enqueued_ps"], self.column["started_ps"]
        for row in self.prompts.get(instance, ()):
            until = started[row] if started[row] >= 0 else self.end_ps(row)
            if until > enqueued[row]:
                yield row, enqueued[row], until

    def stays(self, instance: int) -> Iterator[Stay]:
        """What ran there, in order of its beginning, in slots numbered from 0."""
        started, transferred = self.column["started_ps"], self.column["transferred_ps"]
        runs = [(started[row], row, False) for row in self.prompts.get(instance, ()) if started[row] >= 0]
        runs += [(transferred[row], row, True) for row in self.answers.get(instance, ())]
        runs.sort()
        busy: list[tuple[int, int]] = []  # until when, and the slot
        free: list[int] = []
        for begun, row, generate in runs:
            first, ended = (-1, self.end_ps(row)) if generate else self._prefill_end(row)
            while busy and busy[0][0] <= begun:
                heappush(free, heappop(busy)[1])
            slot = heappop(free) if free else len(busy)
            heappush(busy, (ended, slot))
            yield Stay(row, slot, begun, first, ended, generate)

    def _prefill_end(self, row: int) -> tuple[int, int]:
        """When the prompt of a request was done, -1 where it never was, and when the request left that instance."""
        if self.column["prefill_instance"][row] >= 0:
            handed: int = self.column["handed_ps"][row]
            return (handed, handed) if handed >= 0 else (-1, self.end_ps(row))
        first: int = self.column["first_token_ps"][row]
        return first, self.end_ps(row)

    def levels(self, instance: int) -> Iterator[tuple[int, int, int]]:
        """How many run at an instance and how many wait there, whenever that changes."""
        changes: list[int] = []  # time, whether running or waiting, and one more or one less, in one number each
        for _, begun, until in self.waits(instance):
            changes += (begun << 2 | WAITING << 1 | 1, until << 2 | WAITING << 1)
        for stay in self.stays(instance):
            changes += (stay.begun_ps << 2 | RUNNING << 1 | 1, stay.ended_ps << 2 | RUNNING << 1)
        return levels(changes)

    def waits_between(self, begin: str, end: str) -> Iterator[tuple[int, int, int]]:
        """What waited between two times of a request, such as `arrival_ps` and `admitted_ps`: request, from when to
        when. Of a request that was sent again, `routed_ps` is the last time."""
        for row, (since, until) in enumerate(zip(self.column[begin], self.column[end], strict=True)):
            until = until if until >= 0 else self.end_ps(row)
            if 0 <= since < until:
                yield row, since, until


def levels(changes: list[int]) -> Iterator[tuple[int, int, int]]:
    """Time, how many run and how many wait, after all that happened at that time."""
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
