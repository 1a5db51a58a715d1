"""Qwen-Bailian JSONL: one object per line in order of arrival, with `chat_id`, `parent_chat_id` (-1 for none),
`timestamp` (s), `input_length`, `output_length`, `type` (text, search, image, file), `turn` (from 1) and `hash_ids`,
one id per block of 16 tokens. A session is a tree of chats, and its name is the id of the root chat."""

import pathlib
from collections.abc import Iterator
from typing import Final

import msgspec

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND
from headway.workload.traces.blocks import Fit, id_runs
from headway.workload.traces.limits import MAX_LENGTH, check_length, check_order, read_time
from headway.workload.traces.objects import json_rows
from headway.workload.traces.record import Format, Info, Options, Reader, Record

BLOCK_TOKENS: Final = 16
NO_PARENT: Final = -1
FORM: Final = "a line is one JSON object with chat_id, parent_chat_id, timestamp, both lengths and hash_ids"


class Row(msgspec.Struct, gc=False):
    chat_id: int
    parent_chat_id: int
    timestamp: int | float
    input_length: int
    output_length: int
    hash_ids: list[int]
    type: str | None = None
    turn: int | None = None


def tell(path: pathlib.Path, first: list[bytes]) -> bool:
    names = (b'"chat_id"', b'"parent_chat_id"', b'"hash_ids"')
    return bool(first) and first[0].startswith(b"{") and all(name in first[0] for name in names)


def read(path: pathlib.Path, options: Options) -> Reader:
    size = BLOCK_TOKENS if options.block_tokens is None else options.block_tokens
    return Reader(Info("bailian", block_tokens=size, sessions=True), _records(path, size))


def _records(path: pathlib.Path, size: int) -> Iterator[Record]:
    """Yield the records. Memory holds two numbers per chat, because a later chat may continue any earlier chat."""
    fit = Fit(size, whole=True)
    roots: dict[int, int] = {}
    latest: dict[int, int] = {}  # root chat -> its latest chat
    last_ps = 0
    for place, row in json_rows(path, Row, FORM):
        record = _record(row, fit, place)
        assert record.at_ps is not None
        check_order(record.at_ps, last_ps, "timestamp", row.timestamp, place)
        last_ps = record.at_ps
        chat, parent = row.chat_id, row.parent_chat_id
        if chat in roots:
            raise HeadwayError(f"{place}: chat_id {shown(chat)} is already used by an earlier line.")
        # If a parent is missing in the file, the chats that continue it form a session named after the parent's id.
        root = chat if parent == NO_PARENT else roots.get(parent, parent)
        if parent in roots and latest.get(root) != parent:
            record.after = (str(parent),)
        roots[chat], latest[root] = root, chat
        record.session = str(root)
        yield record


def _record(row: Row, fit: Fit, place: str) -> Record:
    at_ps = read_time(row.timestamp, "seconds since the start", PS_PER_SECOND, "timestamp", place)
    check_length(row.input_length, "input_length", place)
    check_length(row.output_length, "output_length", place)
    fit.check(row.input_length, len(row.hash_ids), "hash_ids", place)
    if row.turn is not None and not 1 <= row.turn <= MAX_LENGTH:
        raise HeadwayError(f"{place}: turn counts from 1, got {shown(row.turn)}.")
    return Record(
        row.input_length,
        row.output_length,
        at_ps=at_ps,
        blocks=id_runs(row.hash_ids),
        turn=None if row.turn is None else row.turn - 1,
        id=str(row.chat_id),
        kind="chat",
        extra={} if row.type is None else {"type": row.type},
    )


FORMAT: Final = Format("bailian", "Qwen-Bailian JSONL: 16-token blocks, chats with their parents", tell, read)
