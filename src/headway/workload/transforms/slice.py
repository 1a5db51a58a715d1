"""`slice`: keep a part of a trace, by time, by request number or by session number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headway.config import units
from headway.config.keys import DURATION, Form
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.workload.traces.record import Reader, Record
from headway.workload.traces.table import number_sessions
from headway.workload.transforms.base import Transform, Waits, need_clock, with_records, with_sessions

Bounds = tuple[int, int | None]  # (first kept position, position after the last kept one; None: no end)


FROM_TO: Final = Form.of({"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2})


class Spec(Struct, frozen=True):
    start: Annotated[Any, DURATION, "keep the requests from this time on"] = None
    end: Annotated[Any, DURATION, "keep the requests before this time"] = None
    requests: Annotated[Any, FROM_TO, "keep these requests: [from, to), counted from 0"] = None
    sessions: Annotated[Any, FROM_TO, "keep these sessions: [from, to), counted from 0"] = None
    whole_sessions: Annotated[bool, "whether to keep all turns of the sessions that begin within the bounds"] = False


def transform(spec: Spec, where: str) -> Transform:
    """Keep the requests with times in [`start`, `end`), or the requests with the numbers `requests` [from, to), or the
    sessions with the numbers `sessions` [from, to). Numbers count from 0.

    With `start` or `end`, new times count from `start` (default 0); otherwise they count from the first remaining
    request. Sessions are cut at the bounds. If `whole_sessions` is set, exactly the sessions that begin within the
    bounds remain, with all their turns. With `whole_sessions` or `sessions`, memory holds the names of sessions or, if
    sessions are derived, the whole trace.
    """
    timed = spec.start is not None or spec.end is not None
    if [timed, spec.requests is not None, spec.sessions is not None].count(True) != 1:
        raise HeadwayError(f"{where}: set either start and end, or requests: [from, to], or sessions: [from, to].")
    if timed:
        bounds = _times(spec, where)
    elif spec.requests is not None:
        bounds = _numbers(spec.requests, f"{where}.requests")
    else:
        bounds = _numbers(spec.sessions, f"{where}.sessions")

    def cut(reader: Reader) -> Reader:
        if timed:
            need_clock(reader.info, where)
        if spec.sessions is not None:
            records = _sessions(reader, bounds, where)
        elif spec.whole_sessions:
            records = _beginning(reader, bounds, timed, where)
        else:
            records = _requests(reader.records, bounds, timed)
        rebased = reader.info.clock == "trace"
        return with_records(reader, _rebase(records, bounds[0] if timed else None) if rebased else records)

    return cut


def _times(spec: Spec, where: str) -> Bounds:
    start = 0 if spec.start is None else units.duration_ps(spec.start, f"{where}.start")
    end = None if spec.end is None else units.duration_ps(spec.end, f"{where}.end")
    if end is not None and end <= start:
        raise HeadwayError(f"{where}.end: must be later than start, got {shown(spec.end)}.")
    return start, end


def _numbers(value: object, where: str) -> Bounds:
    plain = isinstance(value, list | tuple) and len(value) == 2 and all(type(number) is int for number in value)
    if not plain or not 0 <= value[0] < value[1]:  # type: ignore[index]
        raise HeadwayError(f"{where}: expected two whole numbers [from, to] with 0 <= from < to, got {shown(value)}.")
    return value[0], value[1]  # type: ignore[index]


def _requests(records: Iterator[Record], bounds: Bounds, timed: bool) -> Iterator[Record]:
    start, end = bounds
    waits = Waits()
    last_ps = 0
    for number, record in enumerate(records):
        last_ps = last_ps if record.at_ps is None else record.at_ps
        at = last_ps if timed else number
        if end is not None and at >= end:
            return
        place = waits.see(record)
        if at >= start:
            yield waits.mend(record)
        else:
            waits.drop(record, place)


def _beginning(reader: Reader, bounds: Bounds, timed: bool, where: str) -> Iterator[Record]:
    start, end = bounds
    inside: dict[str, bool] = {}
    last_ps = 0
    for number, (session, record) in enumerate(with_sessions(reader, where)):
        last_ps = last_ps if record.at_ps is None else record.at_ps
        at = last_ps if timed else number
        now = at >= start and (end is None or at < end)
        if now if session is None else inside.setdefault(session, now):
            yield record


def _sessions(reader: Reader, bounds: Bounds, where: str) -> Iterator[Record]:
    start, end = bounds
    number = number_sessions()
    for session, record in with_sessions(reader, where):
        place = number(session)
        if place >= start and (end is None or place < end):
            yield record


def _rebase(records: Iterator[Record], start_ps: int | None) -> Iterator[Record]:
    """Subtract `start_ps` from all times. If `start_ps` is None, subtract the time of the first request."""
    for record in records:
        if record.at_ps is not None:
            start_ps = record.at_ps if start_ps is None else start_ps
            record = replace(record, at_ps=record.at_ps - start_ps)
        yield record
