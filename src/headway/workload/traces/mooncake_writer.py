"""Writing Mooncake JSONL, with the fields of its dialects where a trace needs them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, Final

import msgspec

from headway import hashing
from headway.workload.traces.record import LOCAL, Info, Record
from headway.workload.traces.writing import Losses, open_text

PS_PER_MS: Final = 1_000_000_000
BLOCK_TOKENS: Final = 512
ROOM: Final = 32  # bits for the ids of one session, where they mean something within it only
OWN: Final = 1 << 62  # ids from here on name what no other prompt has
EXTRA: Final = ("branches", "prefix_reset", "priority", "strict_priority", "policy_class")


def write(path: pathlib.Path, info: Info, records: Iterable[Record]) -> list[str]:
    """A line a record. Ids that are local to a session are told apart, and a partly filled last block gets one."""
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
    if round(Fraction(repr(ms)) * PS_PER_MS) != ps:
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
