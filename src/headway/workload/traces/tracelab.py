"""TraceLab (University of Washington): rounds of coding agents as JSONL, and the CSV that its simulators replay. In the
CSV, `input_len` is the appended part of the prompt.

Neither format has block ids, but a round records how many tokens of its prompt the provider had cached. The reader
derives block ids from this cached prefix: a round shares the full blocks of the prefix with the previous round of its
session, at most up to the length of the previous prompt. So a cache miss of the provider looks like new content, and
content that sessions share is unknown.

In JSONL, a round begins with the last message or tool result of its input and ends with its last output. Sessions are
months apart, so times count from the start of each session. In the CSV, the delay of a round is `tool_wait_after_ms` of
the previous round, and `arrival_time` is the start of the session.
"""

import pathlib
from collections.abc import Iterator
from itertools import chain
from typing import Final

from msgspec import Struct, field

from headway.config import units
from headway.errors import HeadwayError
from headway.types import PS_PER_MS
from headway.workload.traces.blocks import beginning
from headway.workload.traces.csv_file import Row, cells, check_columns, parse_length, rows_below
from headway.workload.traces.limits import LAST_PS, check_length, check_order, exact, too_late
from headway.workload.traces.objects import json_rows, stamp_ps
from headway.workload.traces.record import LOCAL, Format, Info, Options, Reader, Record, present
from headway.workload.traces.source import Numbered, lines

BLOCK_TOKENS: Final = 16
MAX_WAIT_MS: Final = LAST_PS // PS_PER_MS
OUTPUTS: Final = ("reasoning", "text", "tool_call", "usage_report")  # all other events are input of the round
COLUMNS: Final = ("round_idx", "prefix_len", "input_len", "output_len")
NAMES: Final = ("session_id", "id")
FORM: Final = (
    "a line is one JSON object with session_id, round_index, prefix_tokens, newly_append_tokens, output_tokens"
)


class Event(Struct, gc=False):
    event_type: str
    timestamp: str | None = None


class Tool(Struct, gc=False):
    tool_wall_latency_ms: int | float | None = None


class Round(Struct):
    """A round: a line of the JSONL, or a row of the CSV, which has only the first five fields."""

    session_id: str
    round_index: int
    prefix_tokens: int
    newly_append_tokens: int
    output_tokens: int
    input_tokens_total: int | None = None
    reasoning_output_tokens: int | None = None
    round_id: str | None = None
    model: str | None = None
    provider: str | None = None
    project: str | None = None
    timing_events: list[Event] | None = None
    tools: list[Tool] | None = None


class Context(Struct):
    """The state of a session after its latest round: the blocks of that round's prompt, and its times."""

    blocks: list[tuple[int, int]] = field(default_factory=list)
    tokens: int = 0  # number of tokens in the latest prompt
    ids: int = 0  # number of block ids used so far
    turn: int = 0
    round_index: int = 0
    first_ps: int | None = None
    at_ps: int = 0
    end_ps: int | None = None
    wait_ps: int = 0  # run time of the tools after the latest round

    def prompt(self, prefix: int, tokens: int, size: int) -> list[tuple[int, int]]:
        """Return the block ids of the next prompt, as runs. It shares its first `prefix` tokens with the latest
        prompt."""
        shared = min(prefix, self.tokens) // size
        fresh = -(-tokens // size) - shared
        blocks = beginning(self.blocks, shared)
        if fresh:
            blocks.append((self.ids, fresh))
            self.ids += fresh
        self.blocks, self.tokens = blocks, tokens
        return list(blocks)


def read(path: pathlib.Path, options: Options) -> Reader:
    size = BLOCK_TOKENS if options.block_tokens is None else options.block_tokens
    source = lines(path)
    first = next(source, None)
    if first is None:
        raise HeadwayError(f"{path.name}: the file is empty.")
    info = Info("tracelab", block_tokens=size, scope=LOCAL, clock="session", sessions=True)
    if first[1].startswith(b"{"):
        records = _rounds(path, chain([first], source), size)
    else:
        place = f"{path.name} line {first[0]}"
        columns = cells(first[1], place)
        session = next((name for name in NAMES if name in columns), NAMES[0])
        check_columns(columns, (session, *COLUMNS), place)
        if "arrival_time" in columns:
            info.clock = "trace"
        records = _rows(path, source, columns, size)
    return Reader(info, records)


def tell(path: pathlib.Path, head: list[bytes]) -> bool:
    first = head[0] if head else b""
    if first.startswith(b"{"):
        return b'"round_index"' in first and b'"newly_append_tokens"' in first
    names = [cell.strip().decode(errors="replace") for cell in first.split(b",")]
    return set(COLUMNS) <= set(names) and any(name in names for name in NAMES)


def _turn(round: Round, context: Context, size: int, place: str) -> Record:
    """Return the record of a round, without its times."""
    if context.turn and round.round_index < context.round_index:
        raise HeadwayError(
            f"{place}: round {round.round_index} of session {round.session_id[:60]!r} comes after round "
            f"{context.round_index}. Sort the file by session and round."
        )
    prompt = round.prefix_tokens + round.newly_append_tokens
    blocks = context.prompt(round.prefix_tokens, prompt, size)
    context.round_index = round.round_index
    context.turn += 1
    return Record(
        prompt,
        round.output_tokens,
        blocks=blocks,
        session=round.session_id,
        turn=context.turn - 1,
        id=round.round_id,
        model=round.model,
        kind="agentic",
        extra=present(
            {
                "cached_tokens": round.prefix_tokens,
                "reasoning_tokens": round.reasoning_output_tokens,
                "provider": round.provider,
                "project": round.project,
            }
        ),
    )


# --- JSONL ------------------------------------------------------------------------------------------------------


def _rounds(path: pathlib.Path, source: Iterator[Numbered], size: int) -> Iterator[Record]:
    contexts: dict[str, Context] = {}
    for place, round in json_rows(path, Round, FORM, source):
        check_length(round.prefix_tokens, "prefix_tokens", place, least=0)
        check_length(round.newly_append_tokens, "newly_append_tokens", place, least=0)
        prompt, total = round.prefix_tokens + round.newly_append_tokens, round.input_tokens_total
        check_length(prompt, "prefix_tokens and newly_append_tokens", place)
        check_length(round.output_tokens, "output_tokens", place, least=0)
        if total is not None and total != prompt:
            has = f"{round.prefix_tokens} and {round.newly_append_tokens}"
            raise HeadwayError(f"{place}: input_tokens_total is {total}, but prefix and append tokens are {has}.")
        context = contexts.setdefault(round.session_id, Context())
        record = _turn(round, context, size, place)
        _time(record, round, context, place)
        yield record


def _time(record: Record, round: Round, context: Context, place: str) -> None:
    """Set the arrival of a round, and its delay after the end of the previous round."""
    began, ended = _ran(round, place)
    if began is not None:
        context.first_ps = began if context.first_ps is None else context.first_ps
        # Timestamps come from several clocks, so they may be out of order. No round may begin before the previous one.
        context.at_ps = max(context.at_ps, began - context.first_ps)
        if context.at_ps > LAST_PS:
            raise HeadwayError(f"{place}: timing_events are too late in the session: {too_late(context.at_ps)}.")
        record.at_ps = context.at_ps
    if not record.turn:
        record.delay_ps = 0
    elif began is not None and context.end_ps is not None:
        record.delay_ps = min(LAST_PS, max(0, began - context.end_ps))
    else:
        record.delay_ps = context.wait_ps
    context.end_ps = ended
    context.wait_ps = 0
    for tool in round.tools or ():  # tools run in parallel, so only the longest latency counts
        latency = tool.tool_wall_latency_ms
        if latency is not None and 0 <= latency <= MAX_WAIT_MS:
            context.wait_ps = max(context.wait_ps, exact(latency, PS_PER_MS))


def _ran(round: Round, place: str) -> tuple[int | None, int | None]:
    """Return the start and the end of a round, computed from its events, in picoseconds since 1970. If the round has no
    timestamps, both are None."""
    began: int | None = None
    ended: int | None = None
    for index, event in enumerate(round.timing_events or ()):
        if event.timestamp is None:
            continue
        at_ps = stamp_ps(event.timestamp)
        if at_ps is None:
            where = f"timing_events[{index}].timestamp {event.timestamp[:40]!r}"
            raise HeadwayError(f"{place}: {where} is not a time like 2026-06-01T05:40:20.151Z.")
        if event.event_type in OUTPUTS:
            ended = at_ps if ended is None else max(ended, at_ps)
        else:
            began = at_ps if began is None else max(began, at_ps)
    return began, ended if ended is not None else began


# --- CSV --------------------------------------------------------------------------------------------------------


def _rows(path: pathlib.Path, source: Iterator[Numbered], columns: list[str], size: int) -> Iterator[Record]:
    contexts: dict[str, Context] = {}
    latest_ps = 0
    for place, row in rows_below(columns, path, source):
        round = Round(
            row.get("session_id") or row.get("id") or "",
            parse_length(row, "round_idx", place, least=0),
            parse_length(row, "prefix_len", place, least=0),
            parse_length(row, "input_len", place, least=0),
            parse_length(row, "output_len", place, least=0),
        )
        if not round.session_id:
            raise HeadwayError(f"{place}: session_id is empty.")
        check_length(round.prefix_tokens + round.newly_append_tokens, "prefix_len and input_len", place)
        context = contexts.setdefault(round.session_id, Context())
        record = _turn(round, context, size, place)
        record.delay_ps = context.wait_ps
        context.wait_ps = _ms(row, "tool_wait_after_ms", place) or 0
        came_ps = _ms(row, "arrival_time", place)
        # Usually, `arrival_time` is the arrival of the session in all its rows.
        # If the value of a row differs from the session's first value, it is the arrival of the row itself.
        if came_ps is not None and came_ps != context.first_ps:
            check_order(came_ps, latest_ps, "arrival_time", row["arrival_time"], place)
            record.at_ps = latest_ps = came_ps
            context.first_ps = came_ps if context.first_ps is None else context.first_ps
        yield record


def _ms(row: Row, name: str, place: str) -> int | None:
    """Convert a time of the row from ms to picoseconds. If the column or the value is missing, return None."""
    text = row.get(name, "")
    if not text:
        return None
    value = units.exact(text)
    if value is None or not 0 <= value <= MAX_WAIT_MS:
        raise HeadwayError(f"{place}: {name} must be a time in ms between 0 and 100 days, got {text[:40]!r}.")
    return round(value * PS_PER_MS)


FORMAT: Final = Format("tracelab", "TraceLab rounds of coding agents (JSONL), or its replay CSV", tell, read)
