"""Helpers that the transforms share: their type, and a class that keeps waits valid when requests are removed."""

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from headway.config import units
from headway.config.keys import Form
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.workload.traces import paths
from headway.workload.traces.blocks import RunTable
from headway.workload.traces.record import Info, Reader, Record

Transform = Callable[[Reader], Reader]

# Records are kept in memory as JSON, with a few hundred bytes per record.
pack: Final = msgspec.json.Encoder().encode
unpack: Final = msgspec.json.Decoder(Record).decode


FACTOR: Final = Form.of({"type": ["number", "string"], "minimum": 1e-6, "maximum": 1e6})  # a string keeps all digits
FactorNumber = Annotated[Any, FACTOR]


def with_records(reader: Reader, records: Iterator[Record], **facts: object) -> Reader:
    """Return a reader of these records. It has the `Info` of `reader`, except for the fields in `facts`."""
    return Reader(replace(reader.info, **facts), records)


def factor(value: object, where: str) -> Fraction:
    """Read a factor from 0.000001 to 1000000 as an exact fraction: 0.1 becomes 1/10."""
    number = None if isinstance(value, bool) else units.exact(units.to_text(value))
    if number is None or not Fraction(1, 10**6) <= number <= 10**6:
        raise HeadwayError(f"{where}: {shown(value)} is not a factor; write a number from 0.000001 to 1000000.")
    return number


def multiply(value: int, by: Fraction) -> int:
    """Return the product, rounded to the nearest whole number. Halves are rounded up."""
    return (2 * value * by.numerator + by.denominator) // (2 * by.denominator)


def need_clock(info: Info, where: str) -> None:
    if info.clock != "trace":
        raise HeadwayError(
            f"{where}: the sessions of this trace have no common clock. "
            "Put the transform `starts: {rate: 0.2/s}` before this one."
        )


Place = tuple[tuple[str, ...], bool]  # (ids that a request waits for, True if it begins its session)


class Waits:
    """Keeps waits valid when requests are removed. If a request waited for a removed request, it now waits for the
    requests that the removed request waited for. The first remaining request of a session has no delay. Memory holds
    the names of sessions and the ids of removed requests."""

    def __init__(self) -> None:
        self._last: dict[str, str | None] = {}  # session -> id of its latest request
        self._dropped: dict[str, tuple[str, ...]] = {}
        self._beheaded: dict[str, None] = {}  # sessions whose first requests were removed

    def see(self, record: Record) -> Place:
        """Return the ids of the requests that a request waits for, and whether it is the first request of its session.
        Callers must call this for every request, in order."""
        session = record.session
        if session is None:
            return record.after, False
        first = session not in self._last
        last = self._last.get(session)
        self._last[session] = record.id
        return record.after or (() if last is None else (last,)), first

    def drop(self, record: Record, place: Place) -> None:
        waits_for, first = place
        if record.id is not None:
            self._dropped[record.id] = self._follow(waits_for)
        if first and record.session is not None:
            self._beheaded[record.session] = None

    def mend(self, record: Record) -> Record:
        """Return a remaining request that no longer waits for removed requests."""
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
        """Replace each removed request by the requests that it waited for, until only remaining requests are left."""
        visited: dict[str, bool] = {}  # id -> whether the request remains
        todo = list(ids)
        while todo:
            id = todo.pop(0)
            if id not in visited:
                visited[id] = id not in self._dropped
                todo = [*self._dropped.get(id, ()), *todo]
        return tuple(id for id, left in visited.items() if left)


def keep_where(records: Iterable[Record], keeps: Callable[[Record], bool]) -> Iterator[Record]:
    """Yield the records for which `keeps` is true, with their waits corrected."""
    waits = Waits()
    for record in records:
        place = waits.see(record)
        if keeps(record):
            yield waits.mend(record)
        else:
            waits.drop(record, place)


def with_sessions(reader: Reader, where: str) -> Iterator[tuple[str | None, Record]]:
    """Yield each record with its session. If the trace records no sessions, derive the sessions from the blocks of the
    trace; this reads the whole trace into memory.

    The records do not change, so that derived sessions are not mistaken for recorded sessions.
    """
    if reader.info.sessions:
        return ((record.session, record) for record in reader.records)
    if reader.info.block_tokens is None:
        raise HeadwayError(
            f"{where}: this {reader.info.format} trace has neither recorded sessions nor blocks to derive them from."
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
