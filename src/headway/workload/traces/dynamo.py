"""Dynamo request traces (`dynamo.request.trace.v1`): one event a line, bare or as {"timestamp", "event"}.

A request is written when it ends, so the file is read twice: once for the order of arrival, once for the requests.
Sessions follow `agent_context`. A session with a `parent_session_id` belongs to its parent's: it branches off the
parent's latest request, and the parent's first request after it has ended waits for it. A request's delay is what lies
between the last end that it waited for and its own arrival; `tool_ms` says how much of it tools ran.
"""

from __future__ import annotations

import pathlib
from array import array
from collections.abc import Iterator
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType

from headway.errors import HeadwayError
from headway.types import PS_PER_NS
from headway.workload.traces.blocks import id_runs
from headway.workload.traces.limits import LAST_PS, MAX_BLOCK, check_length, check_range, too_late
from headway.workload.traces.objects import LAST_NS, NS_PER_MS, Lane, exact, in_order, json_rows
from headway.workload.traces.record import Format, Info, Options, Reader, Record

SCHEMA: Final = "dynamo.request.trace.v1"
MAX_HASH: Final = 2**64 - 1
FORM: Final = f"a line is one JSON event of {SCHEMA}"
Number = int | float | None


class Replay(Struct, gc=False):
    trace_block_size: int
    input_length: int
    input_sequence_hashes: list[int]


class Request(Struct):
    request_received_ms: int | float
    output_tokens: int
    replay: Replay
    request_id: str | None = None
    model: str | None = None
    cached_tokens: int | None = None
    ttft_ms: Number = None
    total_time_ms: Number = None
    avg_itl_ms: Number = None
    prefill_wait_time_ms: Number = None
    prefill_time_ms: Number = None
    kv_hit_rate: Number = None
    queue_depth: Number = None
    worker: dict[str, Any] | None = None


MEASURED: Final = Request.__struct_fields__[5:]  # kept in `extra`


class Tool(Struct):
    started_at_unix_ms: Number = None
    ended_at_unix_ms: Number = None


class Context(Struct):
    session_id: str
    parent_session_id: str | None = None


class Event(Struct):
    schema: str | None = None
    event_type: str | None = None
    event_time_unix_ms: Number = None
    agent_context: Context | None = None
    request: Request | None = None
    tool: Tool | None = None


class Line(Event):
    event: Event | UnsetType = UNSET


class Call(Struct):
    """A request as it was found in the file."""

    request: Request
    context: Context | None
    end_ns: int
    tools: list[tuple[int, int]]  # when tools of its session ran since the request before, in ns
    place: str


class Survey(Struct):
    """What has to be known of the whole file before the first record."""

    starts: array[int]
    turns: dict[str, int]  # requests of each session
    block_tokens: int | None = None


def read(path: pathlib.Path, options: Options) -> Reader:
    survey = Survey(array("q"), {})
    for start_ns, call in _calls(path):
        replay, context = call.request.replay, call.context
        survey.starts.append(start_ns)
        if context is not None:
            survey.turns[context.session_id] = survey.turns.get(context.session_id, 0) + 1
        if replay.trace_block_size != (survey.block_tokens or replay.trace_block_size):
            raise HeadwayError(
                f"{call.place}: replay.trace_block_size is {replay.trace_block_size}, but {survey.block_tokens} before."
            )
        survey.block_tokens = replay.trace_block_size
    if survey.block_tokens is None:
        raise HeadwayError(f"{path.name}: the file holds no requests; they are events of type request_end.")
    if options.block_tokens not in (None, survey.block_tokens):
        has = f"replay.trace_block_size is {survey.block_tokens}"
        raise HeadwayError(f"{path.name}: {has}, so block_tokens cannot be {options.block_tokens}.")
    info = Info("dynamo", block_tokens=survey.block_tokens, sessions=bool(survey.turns))
    return Reader(info, _records(path, survey))


def tell(path: pathlib.Path, head: list[bytes]) -> bool:
    return any(f'"{SCHEMA}"'.encode() in line for line in head[:1])


def _records(path: pathlib.Path, survey: Survey) -> Iterator[Record]:
    lanes: dict[str, Lane] = {}
    sessions: dict[Lane, tuple[str, int]] = {}  # of a root: its name and how many requests it had so far
    first_ns: int | None = None
    for start_ns, call in in_order(survey.starts, _calls(path)):
        first_ns = start_ns if first_ns is None else first_ns
        at_ps = (start_ns - first_ns) * PS_PER_NS
        if at_ps > LAST_PS:
            raise HeadwayError(f"{call.place}: request_received_ms is too late, {too_late(at_ps)}.")
        request, replay, context = call.request, call.request.replay, call.context
        record = Record(
            replay.input_length,
            request.output_tokens,
            at_ps=at_ps,
            blocks=id_runs(replay.input_sequence_hashes),
            id=request.request_id,
            model=request.model,
            extra={name: value for name in MEASURED if (value := getattr(request, name)) is not None},
        )
        if context is not None:
            lane = lanes.get(context.session_id)
            if lane is None:
                parent = lanes.get(context.parent_session_id or "")
                lane = lanes[context.session_id] = Lane(survey.turns[context.session_id], parent)
                sessions.setdefault(lane.root, (context.session_id, 0))
            record.session, record.turn = sessions[lane.root]
            sessions[lane.root] = (record.session, record.turn + 1)
            _join(record, lane, start_ns, call, context)
        yield record


def _join(record: Record, lane: Lane, start_ns: int, call: Call, context: Context) -> None:
    """Put a request in its place in its session."""
    record.kind = "agentic"
    record.id = record.id or f"{context.session_id}/{record.turn}"
    wait = lane.add(record.id, start_ns, call.end_ns)
    record.after = wait.after
    if wait.until is None:
        record.delay_ps = 0
    else:
        record.delay_ps = max(0, start_ns - wait.until) * PS_PER_NS
        if tools_ns := _overlap(call.tools, wait.until, start_ns):
            record.extra["tool_ms"] = tools_ns / NS_PER_MS
    if context.session_id != record.session:
        record.extra["agent"] = context.session_id
    if context.parent_session_id is not None:
        record.extra["parent_session"] = context.parent_session_id


def _overlap(spans: list[tuple[int, int]], start: int, end: int) -> int:
    """How much of the time between two instants the spans cover together."""
    covered = 0
    for first, last in sorted(spans):
        first, last = max(first, start), min(last, end)
        if last > first:
            covered += last - first
            start = last
    return covered


# --- the file ---------------------------------------------------------------------------------------------------


def _calls(path: pathlib.Path) -> Iterator[tuple[int, Call]]:
    """Requests with their arrival in ns since 1970, in the file's order, all found right."""
    tools: dict[str, list[tuple[int, int]]] = {}
    for place, line in json_rows(path, Line, FORM):
        event = line if line.event is UNSET else line.event
        if event.schema != SCHEMA:
            raise HeadwayError(f"{place}: schema must be {SCHEMA}, got {(event.schema or 'none')[:60]}.")
        context = event.agent_context
        name = "" if context is None else context.session_id
        if event.event_type == "request_end":
            if event.request is None:
                raise HeadwayError(f"{place}: request is missing; an event of type request_end has one.")
            start_ns = _check(event.request, place)
            end_ns = _end(event.request, start_ns, event.event_time_unix_ms, place)
            yield start_ns, Call(event.request, context, end_ns, tools.pop(name, []), place)
        elif event.tool is not None and context is not None and event.tool.ended_at_unix_ms is not None:
            ended_ns = _ns(event.tool.ended_at_unix_ms, "tool.ended_at_unix_ms", place)
            began = event.tool.started_at_unix_ms
            began_ns = ended_ns if began is None else _ns(began, "tool.started_at_unix_ms", place)
            tools.setdefault(name, []).append((began_ns, ended_ns))


def _check(request: Request, place: str) -> int:
    """The arrival, once everything about the request is found right."""
    replay = request.replay
    size, length, hashes = replay.trace_block_size, replay.input_length, replay.input_sequence_hashes
    check_range(size, 1, MAX_BLOCK, "replay.trace_block_size", place)
    check_length(length, "replay.input_length", place)
    check_length(request.output_tokens, "request.output_tokens", place, least=0)
    blocks = -(-length // size)
    if len(hashes) != blocks:
        need = f"{length} tokens are {blocks} blocks of {size}"
        raise HeadwayError(f"{place}: replay.input_sequence_hashes has {len(hashes)} entries, but {need}.")
    if min(hashes) < 0 or max(hashes) > MAX_HASH:
        raise HeadwayError(f"{place}: replay.input_sequence_hashes are whole numbers of 64 bits without a sign.")
    return _ns(request.request_received_ms, "request.request_received_ms", place)


def _end(request: Request, start_ns: int, stamp: Number, place: str) -> int:
    """When a request ended: its duration is finer than the stamp of the event."""
    if request.total_time_ms is not None:
        return start_ns + _ns(request.total_time_ms, "request.total_time_ms", place)
    return start_ns if stamp is None else max(start_ns, _ns(stamp, "event_time_unix_ms", place))


def _ns(value: float, name: str, place: str) -> int:
    if not 0 <= value <= LAST_NS // NS_PER_MS // 2:
        raise HeadwayError(f"{place}: {name} counts ms and cannot be {value}.")
    return exact(value, NS_PER_MS)


FORMAT: Final = Format("dynamo", "Dynamo request trace (dynamo.request.trace.v1)", tell, read)
