"""What transforms have in common: what one is, and keeping waits true where requests are left out."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headway.config import units
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.workload.traces import paths
from headway.workload.traces.record import Info, Reader, Record

Transform = Callable[[Reader], Reader]


def changed(reader: Reader, records: Iterator[Record], **facts: object) -> Reader:
    """A reader of other records, about which these facts differ."""
    return Reader(replace(reader.info, **facts), records)


def factor(value: object, where: str) -> Fraction:
    """A number above zero, exactly as it is written."""
    found = None if isinstance(value, bool) else units.exact(units.written(value))
    if found is None or not Fraction(1, 10**6) <= found <= 10**6:
        raise HeadwayError(f"{where}: {shown(value)} is not a factor; write a number from 0.000001 to 1000000.")
    return found


def scaled(value: int, by: Fraction) -> int:
    """Rounded to the nearest, halves up."""
    return (2 * value * by.numerator + by.denominator) // (2 * by.denominator)


def need_clock(info: Info, where: str) -> None:
    if info.clock != "trace":
        raise HeadwayError(
            f"{where}: this trace has no clock across its sessions, each counts from its own start; "
            "put the transform `starts: {rate: 0.2/s}` before this one."
        )


class Held:
    """Records that have to be held, a few hundred bytes each, without their order."""

    __slots__ = ("_decode", "_encode")

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(Record).decode

    def pack(self, record: Record) -> bytes:
        return self._encode(record)

    def unpack(self, packed: bytes) -> Record:
        return self._decode(packed)


class Place(Struct, gc=False):
    """Where a request stands in its session: the ids that it waits for, and whether it is the session's first."""

    waits_for: tuple[str, ...]
    first: bool


class Waits:
    """Keeps waits true where requests are left out: one that waited for a request that is gone waits for what that one
    waited for, and the first that is left of a session whose beginning is gone has nothing to come after. Holds the
    names of the sessions and the ids of what is gone."""

    __slots__ = ("_beheaded", "_gone", "_last")

    def __init__(self) -> None:
        self._last: dict[str, str | None] = {}  # of each session: its latest request's id
        self._gone: dict[str, tuple[str, ...]] = {}
        self._beheaded: dict[str, None] = {}

    def see(self, record: Record) -> Place:
        """To be asked of every request, in order."""
        session = record.session
        if session is None:
            return Place(record.after, False)
        first = session not in self._last
        last = self._last.get(session)
        self._last[session] = record.id
        return Place(record.after or (() if last is None else (last,)), first)

    def drop(self, record: Record, place: Place) -> None:
        if record.id is not None:
            self._gone[record.id] = self._left(place.waits_for)
        if place.first and record.session is not None:
            self._beheaded[record.session] = None

    def mend(self, record: Record) -> Record:
        """A request that stays, as it is once the others are gone."""
        if record.after:
            left = self._left(record.after)
            if left != record.after:
                record = replace(record, after=left)
        if record.session in self._beheaded:
            del self._beheaded[record.session]
            if record.delay_ps is not None:
                record = replace(record, delay_ps=None)
        return record

    def _left(self, ids: Iterable[str]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        seen: dict[str, None] = {}
        todo = list(ids)
        while todo:
            one = todo.pop(0)
            if one in seen:
                continue
            seen[one] = None
            if one in self._gone:
                todo = [*self._gone[one], *todo]
            else:
                found[one] = None
        return tuple(found)


# Each record with its session: as the trace records it, else derived from its blocks.

BITS: Final = (1 << 64) - 1  # whichever 64 bits are kept of a longer hash name it as well


def threaded(reader: Reader, where: str) -> Iterator[tuple[str | None, Record]]:
    """Where they have to be derived it holds the whole trace, a few hundred bytes a request. The records themselves are
    not changed: sessions that were guessed are not to be taken for recorded ones."""
    if reader.info.sessions:
        return ((record.session, record) for record in reader.records)
    if reader.info.block_tokens is None:
        raise HeadwayError(
            f"{where}: this trace ({reader.info.format}) neither records sessions nor has blocks to derive them from."
        )
    return _derived(reader)


def _derived(reader: Reader) -> Iterator[tuple[str | None, Record]]:
    held = Held()
    packed: list[bytes] = []
    firsts, counts, starts = array("Q"), array("Q"), array("Q", [0])
    for record in reader.records:
        packed.append(held.pack(record))
        for first, count in record.blocks or ():
            firsts.append(first & BITS)
            counts.append(count)
        starts.append(len(firsts))

    def runs(row: int) -> list[tuple[int, int]]:
        begin, end = starts[row], starts[row + 1]
        return list(zip(firsts[begin:end], counts[begin:end], strict=True))

    found = paths.derive(len(packed), runs)
    for session, one in zip(found.session, packed, strict=True):
        yield str(session), held.unpack(one)
