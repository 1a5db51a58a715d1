"""BLIS TraceV2: a YAML header and a CSV file, `X.yaml` and `X.csv` (or a folder with `header.yaml` and `data.csv`).

Requests of one group share a prefix of `prefix_length` tokens, which `input_tokens` does not include. If the header
has `session_context_growth: accumulate`, `input_tokens` counts only the new tokens of a turn. The prompt of the turn
then consists of the previous prompt, the previous output and the new tokens. A turn arrives `think_time_us` after the
end of the previous turn. Without that column, the delay is computed from the measured end of the previous turn. If
every session begins at 0 and the times in the file are out of order, times count from the start of each session.
"""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import PS_PER_US
from headway.workload.traces import blis_format
from headway.workload.traces.blis_format import ACCUMULATE, DEFAULTS, FLAGS, REQUIRED, TOLD, WHOLE, files
from headway.workload.traces.blis_writer import write
from headway.workload.traces.csv_file import Row, check_columns
from headway.workload.traces.groups import BLOCK_TOKENS, GROUP, Contents
from headway.workload.traces.limits import MAX_LENGTH, check_order, whole_number
from headway.workload.traces.record import Format, Info, Options, Reader, Record
from headway.workload.traces.source import lines


def tell(path: pathlib.Path, first: list[bytes]) -> bool:
    if path.is_dir():
        return (path / "header.yaml").is_file() and (path / "data.csv").is_file()
    if not first:
        return False
    names = first[0].split(b",")
    return any(line.startswith(b"trace_version:") for line in first) or (
        names[0] == b"request_id" and b"arrival_time_us" in names and b"prefix_group" in names
    )


def read(path: pathlib.Path, options: Options) -> Reader:
    header_path, data = files(path)
    known, header, server = blis_format.load(header_path)
    size = options.block_tokens or server.block_size or BLOCK_TOKENS
    sessions, by_session = _survey(data)
    info = Info("blis", size, True, clock="session" if by_session else "trace", sessions=sessions, extra=known)
    grows = header.session_context_growth == ACCUMULATE
    return Reader(info, _records(data, size, grows, by_session))


def _rows(path: pathlib.Path) -> Iterator[tuple[str, Row]]:
    """Yield each row as a mapping by column, with its location for errors. A quoted cell may contain line breaks."""
    at = 0

    def texts() -> Iterator[str]:
        nonlocal at
        for at, line in lines(path):  # noqa: B007 (`at` is the current line, for errors)
            yield line.decode() + "\n"

    columns: list[str] = []
    try:
        for cells in csv.reader(texts(), strict=True):
            place = f"{path.name} line {at}"
            if not columns:
                columns = [cell.strip() for cell in cells]
                check_columns(columns, REQUIRED, place)
                twice = [name for name in columns if columns.count(name) > 1]
                if twice:
                    raise HeadwayError(f"{place}: the header has the column {shown(twice[0])} twice.")
            elif len(cells) != len(columns):
                raise HeadwayError(f"{place}: has {len(cells)} values, but the header has {len(columns)} columns.")
            else:
                yield place, dict(zip(columns, cells, strict=True))
    except UnicodeDecodeError:
        raise HeadwayError(f"{path.name} line {at}: is not text in UTF-8.") from None
    except csv.Error as error:
        raise HeadwayError(f"{path.name} line {at}: is not valid CSV ({error}).") from None


def _survey(path: pathlib.Path) -> tuple[bool, bool]:
    """Return whether the file has sessions, and whether its times count from the start of each session.

    Times count from the start of each session if they are out of order and every session begins at 0.
    """
    begun: dict[str, None] = {}
    last, ordered, all_at_zero = 0, True, True
    for place, row in _rows(path):
        at = whole(row, "arrival_time_us", place)
        ordered = ordered and at >= last
        last = at
        session = row.get("session_id", "")
        if not session:
            all_at_zero = False
        elif session not in begun:
            begun[session] = None
            all_at_zero = all_at_zero and at == 0
    return bool(begun), bool(begun) and not ordered and all_at_zero


class _Session(Struct, gc=False):
    """The state of a session after its latest row."""

    own: int  # first block id of the content that is unique to the session
    turn: int = -1
    at_ps: int = 0
    prompt: int = 0
    output: int = 0
    end_us: int = 0  # measured time of the last token of the latest turn; 0 if unknown
    shared: int = 0
    group: str | None = None


def _records(path: pathlib.Path, size: int, grows: bool, by_session: bool) -> Iterator[Record]:
    contents = Contents(size)
    sessions: dict[str, _Session] = {}
    last_ps = 0
    for place, row in _rows(path):
        name = row.get("session_id") or None
        state = _Session(contents.fresh()) if name is None else sessions.get(name)
        if state is None:
            state = sessions[name or ""] = _Session(contents.fresh())
        at_ps = whole(row, "arrival_time_us", place) * PS_PER_US
        earliest_ps = state.at_ps if by_session else last_ps
        check_order(at_ps, earliest_ps, "arrival_time_us", row["arrival_time_us"], place)
        last_ps = at_ps
        record = _record(row, place, at_ps)
        if name is not None:
            record.session = name
            _continue(record, state, row, grows, contents, place)
        own = state.own if grows else contents.fresh()
        if not 1 <= record.prompt_tokens <= MAX_LENGTH:
            wrong = f"input_tokens + prefix_length must lie between 1 and {MAX_LENGTH}"
            raise HeadwayError(f"{place}: {wrong}, got {record.prompt_tokens}.")
        group = state.group if grows and name is not None else row.get(GROUP) or None
        record.blocks = contents.runs(record.prompt_tokens, record.shared_prefix_tokens, group, own)
        yield record


def _record(row: Row, place: str, at_ps: int) -> Record:
    """Return the record of a row, without its session and blocks."""
    extra = {
        name: _value(text, name, place)
        for name, text in row.items()
        if name not in TOLD and text and text != DEFAULTS.get(name)
    }
    own, output = whole(row, "input_tokens", place), whole(row, "output_tokens", place)
    if output > MAX_LENGTH:
        raise HeadwayError(f"{place}: output_tokens must be at most {MAX_LENGTH}, got {output}.")
    shared = whole(row, "prefix_length", place) if GROUP in extra and "prefix_length" in row else 0
    served = extra.get("server_input_tokens", 0)
    prompt = served if served and GROUP not in extra else own + shared  # the server's count includes its chat template
    if prompt != own + shared:
        extra["input_tokens"] = own
    if not output:
        extra["output_tokens"] = 0  # the request failed; a record always has at least one output token
    return Record(
        prompt,
        max(output, 1),
        at_ps,
        id=row.get("request_id") or None,
        model=row.get("model") or None,
        tenant=row.get("tenant_id") or None,
        slo_class=row.get("slo_class") or None,
        kind="reasoning" if extra.get("reason_ratio") else None,
        shared_prefix_tokens=shared,
        extra=extra,
    )


def _continue(record: Record, state: _Session, row: Row, grows: bool, contents: Contents, place: str) -> None:
    """Set the turn and the delay of a record. If `grows` is set, also set its prompt, which includes the history of the
    session."""
    assert record.at_ps is not None
    turn = whole(row, "round_index", place) if "round_index" in row else state.turn + 1
    if turn != state.turn + 1:
        known = f"the next round of session {shown(record.session)} is {state.turn + 1}"
        raise HeadwayError(f"{place}: round_index is {turn}, but {known}. Sort the file by time.")
    record.turn = turn
    if turn:
        if row.get("think_time_us"):
            record.delay_ps = whole(row, "think_time_us", place) * PS_PER_US
        elif 0 < state.end_us * PS_PER_US <= record.at_ps:
            record.delay_ps = record.at_ps - state.end_us * PS_PER_US
    if grows:
        _grow(record, state, row, contents, place)
    state.turn, state.at_ps = turn, record.at_ps
    state.prompt, state.output = record.prompt_tokens, record.extra.get("output_tokens", record.output_tokens)
    state.end_us = int(record.extra.get("last_chunk_time_us", 0))


def _grow(record: Record, state: _Session, row: Row, contents: Contents, place: str) -> None:
    if not record.turn:
        state.shared, state.group = record.shared_prefix_tokens, row.get(GROUP) or None
    elif row.get("input_tokens_reset"):  # the context was compacted, so none of its old content remains
        record.prompt_tokens = whole(row, "input_tokens_reset", place)
        record.shared_prefix_tokens = state.shared = 0
        state.group, state.own = None, contents.fresh()
    else:
        record.prompt_tokens = state.prompt + state.output + whole(row, "input_tokens", place)
        record.shared_prefix_tokens = state.shared


def whole(row: Row, name: str, place: str) -> int:
    """Return a cell as a whole number of at least 0."""
    text = row[name].strip()
    number = whole_number(text)
    if number is None:
        raise HeadwayError(f"{place}: {name} must be a whole number of at least 0, got {shown(text)}.")
    return number


def _value(text: str, name: str, place: str) -> Any:
    """Return the value of a cell by the type of its column. In an unknown column, the value is a string."""
    text = text.strip()
    if name in WHOLE:
        digits = text.removeprefix("-") if name.endswith("_time_us") else text
        if whole_number(digits) is None:
            raise HeadwayError(f"{place}: {name} must be a whole number, got {shown(text)}.")
        return int(text)
    if name == "reason_ratio":
        try:
            ratio = float(text)
        except ValueError:
            ratio = -1.0
        if not 0.0 <= ratio <= 1.0:
            raise HeadwayError(f"{place}: reason_ratio must be a number between 0 and 1, got {shown(text)}.")
        return ratio
    if name == "streaming":
        if text not in FLAGS:
            raise HeadwayError(f"{place}: streaming must be true or false, got {shown(text)}.")
        return FLAGS[text]
    return text


FORMAT: Final = Format("blis", "BLIS TraceV2: YAML header and CSV with prefix groups and sessions", tell, read, write)
