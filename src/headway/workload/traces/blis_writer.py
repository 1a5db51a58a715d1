"""Write BLIS TraceV2, the files `X.yaml` and `X.csv`. This takes two passes, because unused columns are omitted."""

from __future__ import annotations

import csv
import pathlib
import tempfile
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final, TextIO

from msgspec import Struct

from headway.errors import HeadwayError
from headway.types import PS_PER_US
from headway.workload.traces import blis_format
from headway.workload.traces.blis_format import COLUMNS, DEFAULTS, OPTIONAL, TOLD, names
from headway.workload.traces.groups import GROUP, NamedLosses, group_of, origin
from headway.workload.traces.limits import whole_number
from headway.workload.traces.record import Info, Record
from headway.workload.traces.source import reason
from headway.workload.traces.writing import open_text

OWN: Final = tuple(name for name in COLUMNS if name not in TOLD and name not in (GROUP, "input_tokens_reset"))
KNOWN: Final = frozenset((*OWN, GROUP, "input_tokens", "output_tokens", "input_tokens_reset"))
# Fields of a record that the format can express, some of them with losses.
KEPT: Final = ("session", "delay_ps", "after", "id", "model", "tenant", "slo_class", "kind")

Row = dict[str, Any]


class _Session(Struct, gc=False):
    """The state of a session after its latest row."""

    turn: int = 0
    at_us: int = 0
    prompt: int = 0
    output: int = 0
    end_us: int = 0
    last: str | None = None


def write(path: pathlib.Path, info: Info, records: Iterable[Record]) -> list[str]:
    header_path, data_path = names(path)
    writer = _Writer(info)
    try:
        with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as draft:
            used = _draft(draft, writer, records)
            draft.seek(0)
            with open_text(data_path) as file:
                indices = [index for index, name in enumerate(COLUMNS) if name not in OPTIONAL or name in used]
                final = csv.writer(file, lineterminator="\n")
                final.writerow([COLUMNS[index] for index in indices])
                for cells in csv.reader(draft):
                    final.writerow([cells[index] for index in indices])
    except (OSError, csv.Error) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise HeadwayError(f"{path.name}: the file cannot be written ({why}).") from None
    with open_text(header_path) as file:
        file.write(blis_format.text(writer.header(), writer.grows))
    return writer.lost.phrases()


def _draft(draft: TextIO, writer: _Writer, records: Iterable[Record]) -> dict[str, None]:
    """Write all rows with all columns, and return the optional columns that at least one row uses."""
    used: dict[str, None] = {}
    rows = csv.writer(draft)
    for record in records:
        row = writer.row(record)
        used.update((name, None) for name in OPTIONAL if row.get(name) not in (None, "", DEFAULTS.get(name)))
        rows.writerow([row.get(name, DEFAULTS.get(name, "")) for name in COLUMNS])
    return used


class _Writer:
    """Converts records to rows. Memory grows with the number of sessions."""

    def __init__(self, info: Info) -> None:
        self.info = info
        self.lost = NamedLosses(info, KNOWN, *KEPT)
        self.ours = origin(info) == "blis"
        self.grows = self.ours and info.extra.get(blis_format.GROWTH) == blis_format.ACCUMULATE
        self._sessions: dict[str, _Session] = {}
        self._count = 0
        self._last_us = 0

    def header(self) -> dict[str, Any]:
        header = {name: value for name, value in self.info.extra.items() if name not in ("origin", "notes")}
        if self.ours:
            return header
        if header:
            self.lost.add("facts about the trace as a whole")
        return {}

    def row(self, record: Record) -> Row:
        lost = self.lost
        lost.see(record)
        state = _Session() if record.session is None else self._sessions.setdefault(record.session, _Session())
        at_us = self._stamp(record, state)
        row: Row = {name: _cell(record.extra[name]) for name in OWN if name in record.extra}
        row["request_id"] = record.id
        if record.id is None or whole_number(record.id) is None:
            row["request_id"] = self._count
            if record.id is not None:
                lost.add("the ids of requests that are not numbers")
        row["arrival_time_us"] = at_us
        row.update(tenant_id=record.tenant or "", slo_class=record.slo_class or "", model=record.model or "")
        failed = record.output_tokens == 1 and record.extra.get("output_tokens") == 0
        row["output_tokens"] = output = 0 if failed else record.output_tokens
        self._lengths(row, record, state)
        if record.kind and not (record.kind == "reasoning" and record.extra.get("reason_ratio")):
            lost.add("kinds of requests")
        self._turn(row, record, state, at_us)
        state.turn, state.at_us, state.last = state.turn + 1, at_us, record.id
        state.prompt, state.output = record.prompt_tokens, output
        end = record.extra.get("last_chunk_time_us")
        state.end_us = end if isinstance(end, int) else 0
        self._last_us = at_us
        self._count += 1
        return row

    def _stamp(self, record: Record, state: _Session) -> int:
        by_session = self.info.clock == "session" and record.session is not None
        if record.at_ps is None:
            self.lost.add("that some requests have no arrival time")
            waits = (record.delay_ps or 0) // PS_PER_US
            return state.at_us + waits if by_session else self._last_us
        return self.lost.round_time(record.at_ps, PS_PER_US, "1 µs")

    def _lengths(self, row: Row, record: Record, state: _Session) -> None:
        extra, shared = record.extra, record.shared_prefix_tokens
        group = group_of(record, self.info)
        if shared and group is None:
            self.lost.add("shared prefixes without a name")
            shared = 0
        prompt, served = record.prompt_tokens, extra.get("server_input_tokens")
        row["input_tokens"] = prompt - shared
        if self.grows and state.turn:
            grown = prompt - state.prompt - state.output
            if grown < 0 or extra.get("input_tokens_reset"):
                row["input_tokens_reset"] = prompt
            row["input_tokens"] = max(grown, 0)
            return
        named = extra.get(GROUP)
        row["prefix_group"] = group or (named if isinstance(named, str) else "")
        row["prefix_length"] = shared
        if row["prefix_group"]:
            return
        if served == prompt:  # the length of the prompt is the server's count, which has its own column
            row["input_tokens"] = extra.get("input_tokens", prompt)
        else:
            row["server_input_tokens"] = 0

    def _turn(self, row: Row, record: Record, state: _Session, at_us: int) -> None:
        lost = self.lost
        if record.after and record.after != (state.last,):
            lost.add("which requests wait for which")
        if record.session is None:
            if record.delay_ps:
                lost.add("delays of requests without a session")
            return
        row["session_id"], row["round_index"] = record.session, state.turn
        if record.turn is not None and record.turn != state.turn:
            lost.add("turn numbers that do not count up from 0")
        if record.delay_ps is None:
            return
        think_us = lost.round_time(record.delay_ps, PS_PER_US, "1 µs")
        if not state.turn:
            if think_us:
                lost.add("the delay before a session's first turn")
        # If the measured end of the previous turn implies the think time, the column is not needed.
        elif not (0 < state.end_us <= at_us and at_us - state.end_us == think_us):
            row["think_time_us"] = think_us


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return format(Decimal(repr(value)), "f")
    return value
