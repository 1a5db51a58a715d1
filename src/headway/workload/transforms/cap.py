"""`cap`: keep the first turns of each session, so that no long session creates a hot spot."""

from collections.abc import Iterator
from heapq import heappush, heappushpop
from typing import Annotated

from msgspec import Meta, Struct

from headway.workload.traces.record import Reader, Record
from headway.workload.transforms.base import Place, Transform, Waits, pack, unpack, with_records, with_sessions

# (turn, time, position in the trace, record, `Place`) of a request.
# The first three are negated, so that the heap yields the last request first.
Entry = tuple[int, int, int, bytes, Place]


class Spec(Struct, frozen=True):
    max_turns: Annotated[int, Meta(ge=1), "most requests of a session"]


def transform(spec: Spec, where: str) -> Transform:
    """Keep the first `max_turns` requests of each session, by turn and then by time. Keep the order of the trace.

    If a request has no turn number, its position in the session is its turn. If the trace records no sessions, they are
    derived from its blocks. Memory holds the kept requests or, if sessions are derived, the whole trace.
    """
    return lambda reader: with_records(reader, _cap(reader, spec.max_turns, where))


def _cap(reader: Reader, most: int, where: str) -> Iterator[Record]:
    waits = Waits()
    heaps: dict[str, list[Entry]] = {}
    left: list[tuple[int, bytes]] = []  # (position in the trace, record) of each kept request
    turns: dict[str, int] = {}
    for position, (session, record) in enumerate(with_sessions(reader, where)):
        place = waits.see(record)
        if session is None:
            left.append((position, pack(record)))
            continue
        turn = turns.get(session, 0)
        turns[session] = turn + 1
        if record.turn is not None:
            turn = record.turn
        heap = heaps.setdefault(session, [])
        key = (-turn, -(record.at_ps or 0), -position)
        if len(heap) == most and key < heap[0][:3]:
            waits.drop(record, place)
            continue
        entry = (*key, pack(record), place)
        if len(heap) < most:
            heappush(heap, entry)
        else:
            last = heappushpop(heap, entry)
            waits.drop(unpack(last[3]), last[4])
    for heap in heaps.values():
        left.extend((-entry[2], entry[3]) for entry in heap)
    left.sort()
    for _, packed in left:
        yield waits.mend(unpack(packed))
