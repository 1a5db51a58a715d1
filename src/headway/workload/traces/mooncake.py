"""Mooncake JSONL: one object a line in order of arrival, with `timestamp` (ms), `input_length`, `output_length` and
`hash_ids`, one id for each block of the prompt, the last of which may be partly filled. Its dialects have other names
for the first three, and add sessions and waits: a later turn comes its `delay` after the one before has ended, or after
those that `wait_for` names; a request that waits for none comes at its timestamp.

Where the first line has no `hash_ids`, none has, and nothing is known of content. Other fields are ignored.
"""

import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from headway import hashing
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import PS_PER_MS
from headway.workload.traces.blocks import Fit, id_runs
from headway.workload.traces.limits import LAST_PS, check_length, check_order, too_late
from headway.workload.traces.objects import exact, json_rows
from headway.workload.traces.record import LOCAL, Format, Info, Options, Reader, Record
from headway.workload.traces.source import head
from headway.workload.traces.writing import Losses, open_text

BLOCK_TOKENS: Final = 512
FORM: Final = "a line is one JSON object with timestamp, input_length, output_length and hash_ids"
EXTRA: Final = ("branches", "prefix_reset", "priority", "strict_priority", "policy_class")  # kept in `extra`
ROOM: Final = 32  # bits for the ids of one session, where they mean something within it only
OWN: Final = 1 << 62  # ids from here on name what no other prompt has

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
    fit = None if info.block_tokens is None else Fit(info.block_tokens)
    sessions: dict[str, None] = {}  # both of a file whose requests wait for each other
    requests: dict[str, None] = {}
    last_ps = 0
    for place, row in json_rows(path, Row, FORM):
        record = _record(row, info, fit, place)
        if record.at_ps is not None:
            stamp = row.created_time if row.timestamp is UNSET else row.timestamp
            check_order(record.at_ps, last_ps, "timestamp", stamp, place)
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
    for name in EXTRA:
        value = getattr(row, name)
        if value is not None and value != []:
            record.extra[name] = value
    return record


def _length(value: int | UnsetType, other: int | UnsetType, name: str, place: str) -> int:
    length = other if value is UNSET else value
    if length is UNSET:
        raise HeadwayError(f"{place}: Object missing required field `{name}`; {FORM}.")
    check_length(length, name, place)
    return length


def _stamp(stamp: Number, place: str) -> int:
    if stamp < 0:
        raise HeadwayError(f"{place}: timestamp counts ms from the start of the trace and cannot be {shown(stamp)}.")
    if stamp * PS_PER_MS > LAST_PS:
        late = "" if stamp == float("inf") else f", {too_late(int(stamp) * PS_PER_MS)}"
        wrong = f"timestamp {shown(stamp)} is too large{late}"
        raise HeadwayError(f"{place}: {wrong}; it counts ms from the start of the trace.")
    return exact(stamp, PS_PER_MS)


def _delay(value: Number, name: str, place: str) -> int:
    if not 0 <= value * PS_PER_MS <= LAST_PS:
        raise HeadwayError(f"{place}: {name} is a time in ms between 0 and 100 days, got {shown(value)}.")
    return exact(value, PS_PER_MS)


def write(path: pathlib.Path, info: Info, records: Iterable[Record]) -> list[str]:
    """Write a line a record, with the fields of the dialects where the trace needs them. Ids that are local to a
    session become ids of the trace, and a partly filled last block gets one."""
    lost = Losses("blocks", "session", "after", "delay_ps", "id", "extra")
    if info.block_tokens not in (None, BLOCK_TOKENS):
        lost.add(f"the size of its blocks (to read it again, say block_tokens {info.block_tokens})")
    sessions: dict[str | None, int] = {}
    encode = msgspec.json.Encoder().encode
    with open_text(path) as file:
        for number, record in enumerate(records):
            lost.see(record)
            row: dict[str, Any] = {}
            if record.at_ps is not None and info.clock == "trace":
                row["timestamp"] = _ms(record.at_ps, lost)
            row["input_length"], row["output_length"] = record.prompt_tokens, max(1, record.output_tokens)
            if not record.output_tokens:
                lost.add("requests without any output (1 token is written)")
            if info.block_tokens is not None:
                scope = sessions.setdefault(record.session, len(sessions)) if info.scope == LOCAL else None
                row["hash_ids"] = list(_ids(record, info.block_tokens, scope, number))
            row |= _waits(record, info, lost)
            for name, value in record.extra.items():
                if name in EXTRA:
                    row[name] = value
                else:
                    lost.add("further fields of the source")
            file.write(encode(row).decode() + "\n")
    return lost.phrases()


def _waits(record: Record, info: Info, lost: Losses) -> dict[str, Any]:
    row: dict[str, Any] = {}
    if record.session is not None:
        row["session_id"] = record.session
    if record.delay_ps is not None:
        row["delay"] = _ms(record.delay_ps, lost)
    elif info.clock != "trace" and record.at_ps:
        lost.add("times within a session without delays")
    if record.id is not None:
        row["request_id"] = record.id
    if record.after:
        row["wait_for"] = list(record.after)
    return row


def _ms(ps: int, lost: Losses) -> int | float:
    whole, rest = divmod(ps, PS_PER_MS)
    if not rest:
        return whole
    ms = ps / PS_PER_MS
    if exact(ms, PS_PER_MS) != ps:
        lost.add("the last digits of times")
    return ms


def _ids(record: Record, size: int, scope: int | None, number: int) -> Iterator[int]:
    count = 0
    for first, length in record.blocks or ():
        count += length
        for block in range(first, first + length):
            if scope is None:
                yield block
            elif 0 <= block < 1 << ROOM:
                yield (scope << ROOM) + block
            else:
                yield hashing.stable("block", scope, block) % OWN
    for place in range(-(-record.prompt_tokens // size) - count):
        yield OWN + (number << 20) + place


FORMAT: Final = Format(
    "mooncake", "Mooncake JSONL and its dialects: 512-token blocks, sessions, delays", tell, read, write
)
