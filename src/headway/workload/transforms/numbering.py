"""Renumber block ids from 0 in order of first appearance. Equal ids stay equal."""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from headway.workload.traces.blocks import Run, add_run
from headway.workload.traces.record import LOCAL, Record

BUCKET_BITS: Final = 12  # one list of runs covers 2^BUCKET_BITS ids, so that no list grows long


class Counter(Struct):
    """A counter of new ids. `next` is the next unused id."""

    next: int = 0

    def take(self, count: int) -> int:
        first = self.next
        self.next += count
        return first


class Numbering:
    """Maps the ids of one namespace to new ids. Memory holds runs of ids, not single ids."""

    __slots__ = ("_buckets", "counter")

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        # bucket -> (starts, ends, first new ids) of its runs
        self._buckets: dict[int, tuple[list[int], list[int], list[int]]] = {}

    def runs(self, blocks: Iterable[Run]) -> list[Run]:
        runs: list[Run] = []
        for first, count in blocks:
            end = first + count
            while first < end:
                bucket = first >> BUCKET_BITS
                stop = min(end, (bucket + 1) << BUCKET_BITS)
                new, length = self._stretch(bucket, first, stop)
                add_run(runs, new, length)
                first += length
        return runs

    def _stretch(self, bucket: int, first: int, stop: int) -> Run:
        """Return the longest run of new ids for the old ids from `first` on. The run ends at `stop` at the latest. It
        either repeats ids that were assigned before, or consists of newly assigned ids."""
        starts, ends, news = self._buckets.setdefault(bucket, ([], [], []))
        at = bisect_right(starts, first) - 1
        if at >= 0 and first < ends[at]:
            return news[at] + first - starts[at], min(stop, ends[at]) - first
        if at + 1 < len(starts):
            stop = min(stop, starts[at + 1])
        new = self.counter.take(stop - first)
        if at >= 0 and ends[at] == first and news[at] + first - starts[at] == new:
            ends[at] = stop
        else:
            starts.insert(at + 1, first)
            ends.insert(at + 1, stop)
            news.insert(at + 1, new)
        return new, stop - first


class Numbers:
    """Renumbers the block ids of a trace. If ids are local to a session, each session has its own namespace of old ids.
    With `counter`, the new ids are unique across all these namespaces."""

    def __init__(self, scope: str, counter: Counter | None = None) -> None:
        self._local = scope == LOCAL
        self._counter = counter
        self._spaces: dict[str | None, Numbering] = {}

    def of(self, record: Record) -> Numbering:
        name = record.session if self._local else None
        space = self._spaces.get(name)
        if space is None or (self._local and name is None):
            space = self._spaces[name] = Numbering(self._counter or Counter())
        return space
