"""Mooncake JSONL: one object a line in order of arrival, with `timestamp` (ms), `input_length`, `output_length` and
`hash_ids`, one id for each block of the prompt, the last of which may be partly filled. Other fields are ignored."""

from __future__ import annotations

import pathlib
from fractions import Fraction
from typing import Final

import msgspec

from headway.types import HeadwayError
from headway.workload.traces.source import lines
from headway.workload.traces.table import LAST_PS, MAX_LENGTH, Trace, too_late

BLOCK_TOKENS: Final = 512
PS_PER_MS: Final = 1_000_000_000
FORM: Final = "a line is one JSON object with timestamp, input_length, output_length and hash_ids"


class Row(msgspec.Struct, gc=False):
    timestamp: int | float
    input_length: int
    output_length: int
    hash_ids: list[int]


def load(path: pathlib.Path, limit: int | None = None, block_tokens: int | None = None) -> Trace:
    """The first `limit` requests of a file."""
    size = BLOCK_TOKENS if block_tokens is None else block_tokens
    trace = Trace("mooncake", size)
    decode = msgspec.json.Decoder(Row).decode
    numbers: dict[int, int] = {}
    last_ps = 0
    for number, line in lines(path):
        place = f"{path.name} line {number}"
        try:
            row = decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise HeadwayError(f"{place}: {error}; {FORM}.") from None
        at_ps = _check(row, size, place)
        if at_ps < last_ps:
            raise HeadwayError(
                f"{place}: timestamp {row.timestamp} is before an earlier line's; sort the file by time."
            )
        last_ps = at_ps
        trace.arrival_ps.append(at_ps)
        trace.prompt_tokens.append(row.input_length)
        trace.output_tokens.append(row.output_length)
        trace.ids.extend([numbers.setdefault(block, len(numbers)) for block in row.hash_ids])
        trace.starts.append(len(trace.ids))
        if len(trace) == limit:
            break
    return trace


def _check(row: Row, size: int, place: str) -> int:
    """The stamp in picoseconds, once everything about the row is found right."""
    stamp = row.timestamp
    if stamp < 0:
        raise HeadwayError(f"{place}: timestamp counts ms from the start of the trace and cannot be {stamp}.")
    if stamp * PS_PER_MS > LAST_PS:
        late = "" if stamp == float("inf") else f", {too_late(int(stamp) * PS_PER_MS)}"
        raise HeadwayError(f"{place}: timestamp {stamp} is too large{late}; it counts ms from the start of the trace.")
    for name in ("input_length", "output_length"):
        length = getattr(row, name)
        if not 1 <= length <= MAX_LENGTH:
            raise HeadwayError(f"{place}: {name} must lie between 1 and {MAX_LENGTH}, got {length}.")
    wanted = -(-row.input_length // size)
    if len(row.hash_ids) != wanted:
        blocks = f"{row.input_length} tokens are {wanted} blocks of {size}"
        raise HeadwayError(f"{place}: hash_ids has {len(row.hash_ids)} entries, but {blocks}.")
    return stamp * PS_PER_MS if isinstance(stamp, int) else round(Fraction(repr(stamp)) * PS_PER_MS)
