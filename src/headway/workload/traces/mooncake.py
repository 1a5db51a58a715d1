"""Mooncake JSONL: one object a line in order of arrival, with `timestamp` (ms), `input_length`, `output_length` and
`hash_ids`, one id for each block of the prompt, the last of which may be partly filled. Its dialects add to it:

    created_time, input_tokens, output_tokens      other names of the first three
    session_id; delay or delay_ms                  a later turn comes so long after the one before has ended, or where
                                                   that is missing as long as the stamps are apart
    request_id, wait_for, tool_wait_ms             (agentic) a request comes delay + tool_wait_ms after those it waits
                                                   for have ended; one that waits for none comes at its timestamp

Where the first line has no `hash_ids`, none has, and nothing is known of content. Other fields are ignored.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from headway.config.wording import one_line, shown
from headway.errors import HeadwayError
from headway.workload.traces.blocks import Fit, id_runs
from headway.workload.traces.mooncake_writer import write
from headway.workload.traces.record import Format, Info, Options, Reader, Record
from headway.workload.traces.source import head, lines
from headway.workload.traces.table import LAST_PS, MAX_LENGTH, too_late

BLOCK_TOKENS: Final = 512
PS_PER_MS: Final = 1_000_000_000
FORM: Final = "a line is one JSON object with timestamp, input_length, output_length and hash_ids"
KEPT: Final = ("branches", "prefix_reset", "priority", "strict_priority", "policy_class")  # as they are, in `extra`

Number = int | float
Name = str | int


class Row(msgspec.Struct, gc=False):
    timestamp: Number | UnsetType = UNSET
    input_length: int | UnsetType = UNSET
    output_length: int | UnsetType = UNSET
    hash_ids: list[int] | UnsetType = UNSET
    created_time: Number | UnsetType = UNSET
    input_tokens: int | UnsetType = UNSET
    output_tokens: int | UnsetType = UNSET
    session_id: Name | None = None
    delay: Number | None = None
    delay_ms: Number | None = None
    request_id: Name | None = None
    wait_for: list[Name] = []
    tool_wait_ms: Number | None = None
    branches: Any = None
    prefix_reset: Any = None
    priority: Any = None
    strict_priority: Any = None
    policy_class: Any = None


def tell(path: pathlib.Path, first: list[bytes]) -> bool:
    line = first[0] if first else b""
    lengths = b'"input_length"' in line or b'"input_tokens"' in line
    # Bailian's JSONL has these as well, but stamps in seconds and blocks of 16, and so may a session of WEKA's.
    others = b'"chat_id"' in line or b'"requests"' in line
    return line.startswith(b"{") and b'"hash_ids"' in line and lengths and not others


def read(path: pathlib.Path, options: Options) -> Reader:
    first = head(path)
    line = first[0] if first else b'"timestamp" "hash_ids"'
    size = BLOCK_TOKENS if options.block_tokens is None else options.block_tokens
    info = Info(
        "mooncake",
        block_tokens=size if b'"hash_ids"' in line else None,
        clock="trace" if b'"timestamp"' in line or b'"created_time"' in line else "session",
        sessions=any(b'"session_id"' in line or b'"wait_for"' in line for line in first),
    )
    return Reader(info, _records(path, info))


def _records(path: pathlib.Path, info: Info) -> Iterator[Record]:
    decode = msgspec.json.Decoder(Row).decode
    fit = None if info.block_tokens is None else Fit(info.block_tokens)
    sessions: dict[str, None] = {}  # both of a file whose requests wait for each other
    requests: dict[str, None] = {}
    last_ps = 0
    for number, line in lines(path):
        place = f"{path.name} line {number}"
        try:
            row = decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise HeadwayError(f"{place}: {one_line(error, kind=False)}; {FORM}.") from None
        record = _record(row, info, fit, place)
        if record.at_ps is not None:
            if record.at_ps < last_ps:
                stamp = row.created_time if row.timestamp is UNSET else row.timestamp
                raise HeadwayError(f"{place}: timestamp {stamp} is before an earlier line's; sort the file by time.")
            last_ps = record.at_ps
        if record.session is not None or record.after:
            info.sessions = True
        if record.id is not None:
            _place_in_graph(record, sessions, requests, place)
        yield record


def _place_in_graph(record: Record, sessions: dict[str, None], requests: dict[str, None], place: str) -> None:
    assert record.id is not None
    for name in record.after:
        if name not in requests:
            raise HeadwayError(f"{place}: wait_for names {shown(name)}, but no earlier line has that request_id.")
    requests[record.id] = None
    if record.session is not None:
        if record.session in sessions and record.at_ps is not None and not record.after:
            # It waits for nothing, as only the first of a session does.
            record.session = f"{record.session}/{record.id}"
        sessions[record.session] = None


def _record(row: Row, info: Info, fit: Fit | None, place: str) -> Record:
    prompt = _length(row.input_length, row.input_tokens, "input_length", place)
    output = _length(row.output_length, row.output_tokens, "output_length", place)
    stamp = row.created_time if row.timestamp is UNSET else row.timestamp
    record = Record(prompt, output)
    if stamp is not UNSET:
        record.at_ps = _stamp(stamp, place)
    elif info.clock == "trace" and not (row.session_id is not None or row.wait_for):
        raise HeadwayError(f"{place}: Object missing required field `timestamp`; {FORM}.")
    if fit is not None:
        if row.hash_ids is UNSET:
            raise HeadwayError(f"{place}: Object missing required field `hash_ids`; {FORM}.")
        fit.check(prompt, len(row.hash_ids), "hash_ids", place)
        record.blocks = id_runs(row.hash_ids)
    elif row.hash_ids is not UNSET:
        raise HeadwayError(f"{place}: has hash_ids, but the first line has none; give every line its own.")
    if row.session_id is not None:
        record.session = str(row.session_id)
    if row.request_id is not None:
        record.id = str(row.request_id)
    if row.wait_for:
        record.after = tuple(map(str, row.wait_for))
    delays = [
        _delay(value, name, place)
        for name, value in (("delay", row.delay), ("delay_ms", row.delay_ms), ("tool_wait_ms", row.tool_wait_ms))
        if value is not None
    ]
    if delays or row.wait_for:
        record.delay_ps = sum(delays)
    for name in KEPT:
        value = getattr(row, name)
        if value is not None and value != []:
            record.extra[name] = value
    return record


def _length(value: int | UnsetType, other: int | UnsetType, name: str, place: str) -> int:
    found = other if value is UNSET else value
    if found is UNSET:
        raise HeadwayError(f"{place}: Object missing required field `{name}`; {FORM}.")
    if not 1 <= found <= MAX_LENGTH:
        raise HeadwayError(f"{place}: {name} must lie between 1 and {MAX_LENGTH}, got {shown(found)}.")
    return found


def _stamp(stamp: Number, place: str) -> int:
    if stamp < 0:
        raise HeadwayError(f"{place}: timestamp counts ms from the start of the trace and cannot be {shown(stamp)}.")
    if stamp * PS_PER_MS > LAST_PS:
        late = "" if stamp == float("inf") else f", {too_late(int(stamp) * PS_PER_MS)}"
        wrong = f"timestamp {shown(stamp)} is too large{late}"
        raise HeadwayError(f"{place}: {wrong}; it counts ms from the start of the trace.")
    return exact_ps(stamp)


def _delay(value: Number, name: str, place: str) -> int:
    if not 0 <= value * PS_PER_MS <= LAST_PS:
        raise HeadwayError(f"{place}: {name} is a time in ms between 0 and 100 days, got {shown(value)}.")
    return exact_ps(value)


def exact_ps(value: Number) -> int:
    """Milliseconds exactly as they are written."""
    return value * PS_PER_MS if isinstance(value, int) else round(Fraction(repr(value)) * PS_PER_MS)


FORMAT: Final = Format(
    "mooncake", "Mooncake JSONL and its dialects: 512-token blocks, sessions, delays", tell, read, write
)
