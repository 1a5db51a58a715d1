"""What transforms have in common: what one is, and keeping waits true where requests are left out."""

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
from headway.workload.traces.blocks import RunTable
from headway.workload.traces.record import Info, Reader, Record

Transform = Callable[[Reader], Reader]

# A record that has to be held takes a few hundred bytes as JSON.
pack: Final = msgspec.json.Encoder().encode
unpack: Final = msgspec.json.Decoder(Record).decode


def with_records(reader: Reader, records: Iterator[Record], **facts: object) -> Reader:
    """A reader of other records, with these fields of its info changed."""
    return Reader(replace(reader.info, **facts), records)


def factor(value: object, where: str) -> Fraction:
    """A number above zero, exactly as it is written."""
    number = None if isinstance(value, bool) else units.exact(units.to_text(value))
    if number is None or not Fraction(1, 10**6) <= number <= 10**6:
        raise HeadwayError(f"{where}: {shown(value)} is not a factor; write a number from 0.000001 to 1000000.")
    return number


def multiply(value: int, by: Fraction) -> int:
    """The product, rounded to the nearest, halves up."""
    return (2 * value * by.numerator + by.denominator) // (2 * by.denominator)


def need_clock(info: Info, where: str) -> None:
    if info.clock != "trace":
        raise HeadwayError(
            f"{where}: this trace has no clock across its sessions, each counts from its own start; "
            "put the transform `starts: {rate: 0.2/s}` before this one."
        )


class Place(Struct, gc=False):
    """Where a request stands in its session: the ids that it waits for, and whether it is the session's first."""

    waits_for: tuple[str, ...]
    first: bool


class Waits:
    """Keeps waits true where requests are left out: one that waited for a request that is gone waits for what that one
    waited for, and the first that is left of a session whose beginning is gone has nothing to come after. Holds the
    names of the sessions and the ids of what is gone."""

    __slots__ = ("_beheaded", "_dropped", "_last")

    def __init__(self) -> None:
        self._last: dict[str, str | None] = {}  # of each session: its latest request's id
        self._dropped: dict[str, tuple[str, ...]] = {}
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
            self._dropped[record.id] = self._follow(place.waits_for)
        if place.first and record.session is not None:
            self._beheaded[record.session] = None

    def mend(self, record: Record) -> Record:
        """A request that stays, as it is once the others are gone."""
        if record.after:
            left = self._follow(record.after)
            if left != record.after:
                record = replace(record, after=left)
        if record.session in self._beheaded:
            del self._beheaded[record.session]
            if record.delay_ps is not None:
                record = replace(record, delay_ps=None)
        return record

    def _follow(self, ids: Iterable[str]) -> tuple[str, ...]:
        """The ids that are left, in place of each dropped one those that it waited for."""
        visited: dict[str, bool] = {}  # whether it is left
        todo = list(ids)
        while todo:
            id = todo.pop(0)
            if id not in visited:
                visited[id] = id not in self._dropped
                todo = [*self._dropped.get(id, ()), *todo]
        return tuple(id for id, left in visited.items() if left)


def keep_where(records: Iterable[Record], keeps: Callable[[Record], bool]) -> Iterator[Record]:
    """The records that are kept, their waits mended."""
    waits = Waits()
    for record in records:
        place = waits.see(record)
        if keeps(record):
            yield waits.mend(record)
        else:
            waits.drop(record, place)


def with_sessions(reader: Reader, where: str) -> Iterator[tuple[str | None, Record]]:
    """Each record with its session, as the trace records it or else derived from its blocks; to derive them it holds
    the whole trace. The records are not changed: derived sessions are not to be taken for recorded ones."""
    if reader.info.sessions:
        return ((record.session, record) for record in reader.records)
    if reader.info.block_tokens is None:
        raise HeadwayError(
            f"{where}: this trace ({reader.info.format}) neither records sessions nor has blocks to derive them from."
        )
    return _derive_sessions(reader)


def _derive_sessions(reader: Reader) -> Iterator[tuple[str | None, Record]]:
    held: list[bytes] = []
    blocks = RunTable()
    for record in reader.records:
        held.append(pack(record))
        blocks.append(record.blocks or ())
    threads = paths.derive(len(held), blocks.row)
    for session, packed in zip(threads.session, held, strict=True):
        yield str(session), unpack(packed)
