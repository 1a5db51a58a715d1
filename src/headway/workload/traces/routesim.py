"""RouteSim's compact JSONL: one object per line in order of arrival, with `ts` (ms), `prompt_tokens` and `gen_tokens`.

Optional fields are `prefix_hash` (the name of a shared prefix), `prefix_len` (its tokens), `conversation_id`,
`lora_adapter` and `priority`. The reader skips blank lines and lines that begin with #, and ignores other fields.
"""

import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from headway.types import PS_PER_MS
from headway.workload.traces.groups import BLOCK_TOKENS, GROUP, Contents, NamedLosses, group_of
from headway.workload.traces.limits import check_length, check_order, check_range, read_time
from headway.workload.traces.objects import json_rows
from headway.workload.traces.record import Format, Info, Options, Reader, Record, present
from headway.workload.traces.source import lines
from headway.workload.traces.writing import Losses, open_text

KNOWN: Final = (GROUP, "prefix_len", "adapter", "priority", "session_context_growth")
FORM: Final = "a line is one JSON object with ts, prompt_tokens and gen_tokens"


class Row(msgspec.Struct, gc=False):
    ts: int | float
    prompt_tokens: int
    gen_tokens: int
    prefix_hash: str | None = None
    prefix_len: int | None = None
    conversation_id: str | None = None
    lora_adapter: str | None = None
    priority: int | None = None


def tell(path: pathlib.Path, first: list[bytes]) -> bool:
    for line in first:
        if not line.startswith(b"#"):
            return line.startswith(b"{") and all(
                name in line for name in (b'"ts"', b'"prompt_tokens"', b'"gen_tokens"')
            )
    return False


def read(path: pathlib.Path, options: Options) -> Reader:
    size = BLOCK_TOKENS if options.block_tokens is None else options.block_tokens
    sessions = any(row.conversation_id for _, row in _rows(path))
    info = Info("routesim", block_tokens=size, whole_blocks=True, sessions=sessions)
    return Reader(info, _records(path, size))


def _rows(path: pathlib.Path) -> Iterator[tuple[str, Row]]:
    return json_rows(path, Row, FORM, (numbered for numbered in lines(path) if not numbered[1].startswith(b"#")))


def _records(path: pathlib.Path, size: int) -> Iterator[Record]:
    contents = Contents(size)
    last_ps = 0
    for place, row in _rows(path):
        check_length(row.prompt_tokens, "prompt_tokens", place)
        check_length(row.gen_tokens, "gen_tokens", place)
        check_length(row.prefix_len or 0, "prefix_len", place, least=0)
        check_range(row.priority or 0, 0, 255, "priority", place)
        at_ps = read_time(row.ts, "ms since the start", PS_PER_MS, "ts", place)
        check_order(at_ps, last_ps, "ts", row.ts, place)
        last_ps = at_ps
        shared = min(row.prefix_len or 0, row.prompt_tokens) if row.prefix_hash is not None else 0
        yield Record(
            row.prompt_tokens,
            row.gen_tokens,
            at_ps,
            contents.runs(row.prompt_tokens, shared, row.prefix_hash, contents.fresh()),
            row.conversation_id or None,
            shared_prefix_tokens=shared,
            extra=present(
                {
                    GROUP: row.prefix_hash,
                    "prefix_len": None if row.prefix_len == shared else row.prefix_len,
                    "adapter": row.lora_adapter,
                    "priority": row.priority,
                }
            ),
        )


def write(path: pathlib.Path, info: Info, records: Iterable[Record]) -> list[str]:
    """Write the records with times in whole milliseconds, because RouteSim cannot read fractions."""
    lost = NamedLosses(info, KNOWN, "session")
    if info.extra.get("session_context_growth"):
        lost.add("how the prompts of a session extend each other")
    with open_text(path) as file:
        for record in records:
            lost.see(record)
            file.write(msgspec.json.encode(_row(lost, info, record, path)).decode() + "\n")
    return lost.phrases()


def _row(lost: Losses, info: Info, record: Record, path: pathlib.Path) -> dict[str, Any]:
    at_ps = lost.stamp(info, record, path)
    ms = lost.round_time(at_ps, PS_PER_MS, "1 ms")
    extra = record.extra
    row: dict[str, Any] = {"ts": ms, "prompt_tokens": record.prompt_tokens, "gen_tokens": record.output_tokens}
    group = group_of(record, info) or extra.get(GROUP)
    if group:
        row["prefix_hash"] = group
        declared = extra.get("prefix_len")
        capped = isinstance(declared, int) and declared > record.shared_prefix_tokens == record.prompt_tokens
        row["prefix_len"] = declared if capped else record.shared_prefix_tokens
    elif record.shared_prefix_tokens:
        lost.add("shared prefixes without a name")
    if record.session is not None:
        row["conversation_id"] = record.session
    if extra.get("adapter"):
        row["lora_adapter"] = extra["adapter"]
    priority = extra.get("priority")
    if isinstance(priority, int) and 0 <= priority <= 255:
        row["priority"] = priority
    elif priority is not None:
        lost.add("priorities other than numbers from 0 to 255")
    return row


FORMAT: Final = Format("routesim", "RouteSim compact JSONL: prefix hashes and conversations", tell, read, write)
