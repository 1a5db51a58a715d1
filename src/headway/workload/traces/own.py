"""Headway's own format, which can express all other formats. A file is JSONL or Parquet; JSONL is compressed with gzip
if the name ends in .gz.

The first line is a header, `{"headway_trace": 1, ...}`, with facts about the trace. Every other line is one `Record`
with all its fields. Times are in whole picoseconds, and blocks are runs (first id, count). Writing the same trace twice
gives the same bytes. A Parquet file has the same fields as columns, and the header in its metadata.
"""

import pathlib
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import astuple

from headway.config.keys import Form
from headway.config.schema import Definitions, Part
from headway.config.wording import one_line, shown
from headway.errors import HeadwayError
from headway.types import Json
from headway.workload.traces import own_parquet
from headway.workload.traces.blocks import check_count
from headway.workload.traces.groups import origin
from headway.workload.traces.limits import LAST_PS, MAX_LENGTH, check_order, check_range, too_late
from headway.workload.traces.objects import json_rows
from headway.workload.traces.record import GLOBAL, LOCAL, Format, Info, Options, Reader, Record
from headway.workload.traces.source import lines
from headway.workload.traces.writing import open_bytes

NAME: Final = "headway"
VERSION: Final = 1
MARK: Final = "headway_trace"
LARGEST: Final = (1 << 63) - 1
FORM: Final = "Write the file with `headway trace convert --to headway`"


class Header(msgspec.Struct, forbid_unknown_fields=True):
    """The first line of a file: the version of the format, and the fields of `Info`."""

    headway_trace: Annotated[int, Form.of(Literal[VERSION]), "1, the version"]
    origin: Annotated[str, "where the trace comes from, in your words"]
    block_tokens: Annotated[
        int | None,
        Form.of(Annotated[int, Meta(ge=1, le=MAX_LENGTH)]),
        "tokens per block; leave it out if no request has `blocks`",
    ] = None
    whole_blocks: Annotated[
        bool, "true: requests list only full blocks; false: they also list a partly filled last block"
    ] = False
    scope: Annotated[
        str,
        Form.of(Literal[GLOBAL, LOCAL]),
        "where equal ids mean equal content: in the whole trace, or only within a session",
    ] = GLOBAL
    clock: Annotated[
        Literal["trace", "session"], "whether times count from the start of the trace, or of their session"
    ] = "trace"
    sessions: Annotated[bool, "whether requests name their sessions"] = False
    think_times: Annotated[
        bool, "false: nothing tells when answers ended, so that sessions are replayed by the arrival times"
    ] = True
    extra: Annotated[dict[str, Any], "anything else"] = field(default_factory=dict)


class Line(Record, forbid_unknown_fields=True):
    """A record as a line of the file."""


RANGES: Final = {  # the range of each number; shared prefixes are also at most as long as the prompt
    "prompt_tokens": (0, MAX_LENGTH),
    "output_tokens": (0, MAX_LENGTH),
    "at_ps": (0, LAST_PS),
    "delay_ps": (0, LAST_PS),
    "turn": (0, MAX_LENGTH),
    "max_tokens": (0, MAX_LENGTH),
    "shared_prefix_tokens": (0, MAX_LENGTH),
}


class LineForm(Struct, frozen=True, eq=False):
    """The JSON Schema of every line except the header: the schema of `Line`, with the range of each number."""

    def schema(self, definitions: Definitions) -> Json:
        line = Part(Line).schema(definitions)
        for name, (low, high) in RANGES.items():
            part = line["properties"][name]
            for number in (part, *part.get("anyOf", ())):
                if number.get("type") == "integer":
                    number |= {"minimum": low, "maximum": high}
        return line


LINE_FORM: Final = Form.of(Header, LineForm())


def tell(path: pathlib.Path, first: list[bytes]) -> bool:
    if own_parquet.is_parquet(path):
        return own_parquet.is_own(path, MARK)
    return bool(first) and first[0].startswith(b'{"headway_trace":')


def read(path: pathlib.Path, options: Options) -> Reader:
    if own_parquet.is_parquet(path):
        header = _header(own_parquet.header(path, MARK), path.name)
        records = own_parquet.records(path)
    else:
        source = lines(path)
        number, line = next(source, (1, b""))
        header = _header(line, f"{path.name} line {number}")
        rows = json_rows(path, Line, "a line is one request as Headway writes it", source)
        records = ((place, Record(*astuple(row))) for place, row in rows)
    if options.block_tokens not in (None, header.block_tokens):
        wrong = f"blocks have {header.block_tokens} tokens, not {options.block_tokens}"
        raise HeadwayError(f"{path.name}: {wrong}. Remove block_tokens.")
    extra = {**header.extra, "origin": header.origin}
    info = Info(
        NAME,
        header.block_tokens,
        header.whole_blocks,
        header.scope,
        header.clock,
        header.sessions,
        header.think_times,
        extra,
    )
    return Reader(info, _check_records(info, records))


def _header(raw: bytes, place: str) -> Header:
    try:
        header = msgspec.json.decode(raw, type=Header)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        why = one_line(error, kind=False)
        raise HeadwayError(f"{place}: is not the header of a Headway trace ({why}). {FORM}.") from None
    if header.headway_trace != VERSION:
        raise HeadwayError(f"{place}: {MARK} must be {VERSION}, got {shown(header.headway_trace)}.")
    if header.scope not in (GLOBAL, LOCAL):
        raise HeadwayError(f"{place}: scope must be {GLOBAL!r} or {LOCAL!r}, got {shown(header.scope)}.")
    if header.block_tokens is not None:
        check_range(header.block_tokens, 1, MAX_LENGTH, "block_tokens", place)
    return header


def _check_records(info: Info, records: Iterator[tuple[str, Record]]) -> Iterator[Record]:
    last_ps = 0
    for place, record in records:
        _check(info, record, place)
        if info.clock == "trace" and record.at_ps is not None:
            check_order(record.at_ps, last_ps, "at_ps", record.at_ps, place)
            last_ps = record.at_ps
        yield record


def _check(info: Info, record: Record, place: str) -> None:
    for name, (low, most) in RANGES.items():
        high = record.prompt_tokens if name == "shared_prefix_tokens" else most
        value = getattr(record, name)
        if value is not None and not low <= value <= high:
            late = f", which is {too_late(value)}" if high == LAST_PS < value < LARGEST else ""
            raise HeadwayError(f"{place}: {name} must lie between {low} and {high}, got {shown(value)}{late}.")
    if record.at_ps is None and record.session is None and not record.after:
        raise HeadwayError(f"{place}: at_ps is missing, but the request waits for no other request.")
    if record.blocks is not None:
        _check_blocks(info, record, record.blocks, place)


def _check_blocks(info: Info, record: Record, runs: Iterable[tuple[int, int]], place: str) -> None:
    size = info.block_tokens
    if size is None:
        raise HeadwayError(f"{place}: has blocks, but the header has no block_tokens.")
    total = 0
    for first, count in runs:
        if not (first >= -LARGEST and count >= 1 and first + count - 1 <= 2 * LARGEST + 1):
            wrong = f"got [{shown(first)}, {shown(count)}]"
            raise HeadwayError(f"{place}: blocks must be pairs [first id, count] of 64-bit integers, {wrong}.")
        total += count
    check_count(total, record.prompt_tokens, size, info.whole_blocks, "blocks", place)


def write(path: pathlib.Path, info: Info, records: Iterable[Record]) -> list[str]:
    """Write all records. Return an empty list, because this format can express every property."""
    extra = {name: value for name, value in info.extra.items() if name != "origin"}
    header = Header(
        VERSION,
        origin(info),
        info.block_tokens,
        info.whole_blocks,
        info.scope,
        info.clock,
        info.sessions,
        info.think_times,
        extra,
    )
    first = _encode(header, path, 0)
    if path.suffix == ".parquet":
        own_parquet.write(path, MARK, first, records)
        return []
    with open_bytes(path) as file:
        file.write(first + b"\n")
        for number, record in enumerate(records, 1):
            file.write(_encode(record, path, number) + b"\n")
    return []


def _encode(value: Header | Record, path: pathlib.Path, number: int) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        which = f"request {number}" if number else "the header"
        why = one_line(error, kind=False)
        raise HeadwayError(f"{path.name}: {which} of the source cannot be written as JSON ({why}).") from None


FORMAT: Final = Format(NAME, "Headway's own, lossless: JSONL, in gzip or not, or Parquet", tell, read, write)
