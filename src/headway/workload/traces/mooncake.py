"""Mooncake JSONL: one object per line in order of arrival, with `timestamp` (ms), `input_length`, `output_length` and
`hash_ids`, one id per block of the prompt. Usually a partly filled last block has an id too, but in some files it has
none. The reader decides this by the first prompt whose length is not a multiple of the block size.

Dialects have other names for the first three fields, and add sessions, turns (`turn_id`) and waits. A later turn first
waits for the end of the previous turn, or of the requests in `wait_for`, and then for its `delay`. A request that waits
for no other request arrives at its timestamp. If the first line has no `hash_ids`, no line may have them, and content
is unknown. Other fields are ignored.
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
from headway.workload.traces.blocks import Fit, beginning, id_runs
from headway.workload.traces.limits import check_length, check_order, exact, read_time
from headway.workload.traces.objects import json_rows
from headway.workload.traces.record import LOCAL, Format, Info, Options, Reader, Record
from headway.workload.traces.source import head
from headway.workload.traces.writing import Losses, open_text

BLOCK_TOKENS: Final = 512
FORM: Final = "a line is one JSON object with timestamp, input_length, output_length and hash_ids"
EXTRA: Final = ("branches", "prefix_reset", "priority", "strict_priority", "policy_class")  # fields stored in `extra`
ROOM: Final = 32  # if ids are local to a session, number of bits for the ids of one session
OWN: Final = 1 << 62  # ids of at least this value are unique to one prompt

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
    turn_id: int | None = None
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
    # Bailian's JSONL has these fields too, but with times in seconds and blocks of 16 tokens.
    # A WEKA session may have the fields of Mooncake too. `chat_id` or `requests` shows that it is one.
    others = b'"chat_id"' in line or b'"requests"' in line
    return line.startswith(b"{") and b'"hash_ids"' in line and lengths and not others


def read(path: pathlib.Path, options: Options) -> Reader:
    first = head(path)
    line = first[0] if first else b'"timestamp" "hash_ids"'
    size = BLOCK_TOKENS if options.block_tokens is None else options.block_tokens
    info = Info(
        "mooncake",
        block_tokens=size if b'"hash_ids"' in line else None,
        whole_blocks=_names_only_full_blocks(first, size),
        clock="trace" if b'"timestamp"' in line or b'"created_time"' in line else "session",
        sessions=any(b'"session_id"' in line or b'"wait_for"' in line for line in first),
    )
    return Reader(info, _records(path, info))


def _names_only_full_blocks(first: list[bytes], size: int) -> bool:
    for line in first:
        try:
            row = msgspec.json.decode(line, type=Row)
        except msgspec.MsgspecError:  # ignore the error: the last of these lines may be incomplete
            return False
        tokens = row.input_tokens if row.input_length is UNSET else row.input_length
        if row.hash_ids is UNSET or tokens is UNSET:
            return False
        if tokens % size:
            return len(row.hash_ids) == tokens // size
    return False


def _records(path: pathlib.Path, info: Info) -> Iterator[Record]:
    fit = None if info.block_tokens is None else Fit(info.block_tokens, info.whole_blocks)
    sessions: dict[str, None] = {}
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
            _check_waits(record, sessions, requests, place)
        yield record


def _check_waits(record: Record, sessions: dict[str, None], requests: dict[str, None], place: str) -> None:
    assert record.id is not None
    for name in record.after:
        if name not in requests:
            raise HeadwayError(f"{place}: wait_for names {shown(name)}, but no earlier line has that request_id.")
    requests[record.id] = None
    if record.session is not None:
        if record.session in sessions and record.at_ps is not None and not record.after:
            record.session = f"{record.session}/{record.id}"  # the request waits for no other, so it starts a session
        sessions[record.session] = None


def _record(row: Row, info: Info, fit: Fit | None, place: str) -> Record:
    prompt = _length(row.input_length, row.input_tokens, "input_length", place)
    output = _length(row.output_length, row.output_tokens, "output_length", place)
    stamp = row.created_time if row.timestamp is UNSET else row.timestamp
    record = Record(prompt, output)
    if stamp is not UNSET:
        record.at_ps = read_time(stamp, "ms since the start", PS_PER_MS, "timestamp", place)
    elif info.clock == "trace" and not (row.session_id is not None or row.wait_for):
        raise HeadwayError(f"{place}: Object missing required field `timestamp`; {FORM}.")
    if fit is not None:
        if row.hash_ids is UNSET:
            raise HeadwayError(f"{place}: Object missing required field `hash_ids`; {FORM}.")
        fit.check(prompt, len(row.hash_ids), "hash_ids", place)
        record.blocks = id_runs(row.hash_ids)
        if info.whole_blocks:
            record.blocks = beginning(record.blocks, prompt // fit.size)
    elif row.hash_ids is not UNSET:
        raise HeadwayError(f"{place}: has hash_ids, but the first line has none. Add them to all lines or to none.")
    if row.session_id is not None:
        record.session = str(row.session_id)
    record.turn = row.turn_id
    if row.request_id is not None:
        record.id = str(row.request_id)
    if row.wait_for:
        record.after = tuple(map(str, row.wait_for))
    delays = [
        read_time(value, "ms", PS_PER_MS, name, place)
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


def write(path: pathlib.Path, info: Info, records: Iterable[Record]) -> list[str]:
    """Write one line per record. If the trace needs fields of the dialects, write them too.

    Ids that are local to a session become unique in the whole trace, and a partly filled last block gets an id.
    """
    lost = Losses("blocks", "session", "after", "delay_ps", "id", "extra")
    if info.block_tokens not in (None, BLOCK_TOKENS):
        lost.add(f"the size of blocks (to read the file again, set block_tokens to {info.block_tokens})")
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
                    lost.add("other fields of the source")
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
