"""Dynamo request traces (`dynamo.request.trace.v1`): one event per line, alone or inside {"timestamp", "event"}.

A request is written when it ends. Therefore the file is read twice; the first pass finds the order of arrival.
`agent_context` names the session. A session with a `parent_session_id` is a branch of its parent's session: the branch
follows the parent's latest request, and the parent's first request after the end of the branch waits for the branch.
The delay of a request is the time from the end of the last request that it waited for until its arrival. `tool_ms` is
the part of the delay in which tools ran.
"""

from __future__ import annotations

import pathlib
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType

from headway.errors import HeadwayError
from headway.types import PS_PER_NS
from headway.workload.traces.blocks import check_count, id_runs
from headway.workload.traces.limits import MAX_BLOCK, check_length, check_order, check_range, exact
from headway.workload.traces.objects import LAST_NS, NS_PER_MS, Lane, in_order, json_rows
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


MEASURED: Final = Request.__struct_fields__[5:]  # fields with measured values, which are stored in `extra`


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
    """A request of the file, with its session, its end time, and the tool runs before it."""

    request: Request
    context: Context | None
    end_ns: int
    tools: list[tuple[int, int]]  # start and end in ns of each tool run since the session's previous request
    place: str


def read(path: pathlib.Path, options: Options) -> Reader:
    starts = array("q")
    turns: Counter[str] = Counter()  # number of requests of each session
    size: int | None = None
    for start_ns, call in _calls(path):
        starts.append(start_ns)
        if call.context is not None:
            turns[call.context.session_id] += 1
        own_size = call.request.replay.trace_block_size
        if own_size != (size or own_size):
            raise HeadwayError(f"{call.place}: replay.trace_block_size is {own_size}, but {size} in earlier lines.")
        size = own_size
    if size is None:
        raise HeadwayError(f"{path.name}: the file holds no requests, which are events of type request_end.")
    if options.block_tokens not in (None, size):
        has = f"replay.trace_block_size is {size}, not {options.block_tokens}"
        raise HeadwayError(f"{path.name}: {has}. Remove block_tokens.")
    return Reader(Info("dynamo", block_tokens=size, sessions=bool(turns)), _records(path, starts, turns))


def tell(path: pathlib.Path, head: list[bytes]) -> bool:
    return any(f'"{SCHEMA}"'.encode() in line for line in head[:1])


def _records(path: pathlib.Path, starts: array[int], turns: Counter[str]) -> Iterator[Record]:
    lanes: dict[str, Lane] = {}
    sessions: dict[Lane, tuple[str, int]] = {}  # root lane -> (name of the session, number of requests so far)
    first_ns: int | None = None
    for start_ns, call in in_order(starts, _calls(path)):
        first_ns = start_ns if first_ns is None else first_ns
        at_ps = (start_ns - first_ns) * PS_PER_NS
        request, replay, context = call.request, call.request.replay, call.context
        check_order(at_ps, 0, "request_received_ms", request.request_received_ms, call.place)
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
                lane = lanes[context.session_id] = Lane(turns[context.session_id], parent)
                sessions.setdefault(lane.root, (context.session_id, 0))
            record.session, record.turn = sessions[lane.root]
            sessions[lane.root] = (record.session, record.turn + 1)
            _join(record, lane, start_ns, call, context)
        yield record


def _join(record: Record, lane: Lane, start_ns: int, call: Call, context: Context) -> None:
    """Add a record to its lane: set the requests that it waits for, its delay after them, and its agent."""
    record.kind = "agentic"
    record.id = record.id or f"{context.session_id}/{record.turn}"
    record.after, until, _ = lane.add(record.id, start_ns, call.end_ns)
    if until is None:
        record.delay_ps = 0
    else:
        record.delay_ps = max(0, start_ns - until) * PS_PER_NS
        if tools_ns := _overlap(call.tools, until, start_ns):
            record.extra["tool_ms"] = tools_ns / NS_PER_MS
    if context.session_id != record.session:
        record.extra["agent"] = context.session_id
    if context.parent_session_id is not None:
        record.extra["parent_session"] = context.parent_session_id


def _overlap(spans: list[tuple[int, int]], start: int, end: int) -> int:
    """Return how much of the time from `start` to `end` the spans cover. Overlapping spans count once."""
    covered = 0
    for first, last in sorted(spans):
        first, last = max(first, start), min(last, end)
        if last > first:
            covered += last - first
            start = last
    return covered


# --- the file ---------------------------------------------------------------------------------------------------


def _calls(path: pathlib.Path) -> Iterator[tuple[int, Call]]:
    """Yield the arrival of each valid request in ns since 1970, and the request, in file order."""
    tools: dict[str, list[tuple[int, int]]] = {}
    for place, line in json_rows(path, Line, FORM):
        event = line if line.event is UNSET else line.event
        if event.schema != SCHEMA:
            raise HeadwayError(f"{place}: schema must be {SCHEMA}, got {(event.schema or 'none')[:60]}.")
        context = event.agent_context
        name = "" if context is None else context.session_id
        if event.event_type == "request_end":
            if event.request is None:
                raise HeadwayError(f"{place}: request is missing, but the event has the type request_end.")
            start_ns = _check(event.request, place)
            end_ns = _end(event.request, start_ns, event.event_time_unix_ms, place)
            yield start_ns, Call(event.request, context, end_ns, tools.pop(name, []), place)
        elif event.tool is not None and context is not None and event.tool.ended_at_unix_ms is not None:
            ended_ns = _ns(event.tool.ended_at_unix_ms, "tool.ended_at_unix_ms", place)
            began = event.tool.started_at_unix_ms
            began_ns = ended_ns if began is None else _ns(began, "tool.started_at_unix_ms", place)
            tools.setdefault(name, []).append((began_ns, ended_ns))


def _check(request: Request, place: str) -> int:
    replay = request.replay
    size, length, hashes = replay.trace_block_size, replay.input_length, replay.input_sequence_hashes
    check_range(size, 1, MAX_BLOCK, "replay.trace_block_size", place)
    check_length(length, "replay.input_length", place)
    check_length(request.output_tokens, "request.output_tokens", place, least=0)
    check_count(len(hashes), length, size, False, "replay.input_sequence_hashes", place)
    if min(hashes) < 0 or max(hashes) > MAX_HASH:
        raise HeadwayError(f"{place}: replay.input_sequence_hashes must be unsigned 64-bit numbers.")
    return _ns(request.request_received_ms, "request.request_received_ms", place)


def _end(request: Request, start_ns: int, stamp: Number, place: str) -> int:
    """Return the end of a request in ns, computed from its duration. If the request has no duration, use the time of
    the event, which is less precise."""
    if request.total_time_ms is not None:
        return start_ns + _ns(request.total_time_ms, "request.total_time_ms", place)
    return start_ns if stamp is None else max(start_ns, _ns(stamp, "event_time_unix_ms", place))


def _ns(value: float, name: str, place: str) -> int:
    if not 0 <= value <= LAST_NS // NS_PER_MS // 2:
        raise HeadwayError(f"{place}: {name} must be a valid number of ms, got {value}.")
    return exact(value, NS_PER_MS)


FORMAT: Final = Format("dynamo", "Dynamo request trace (dynamo.request.trace.v1)", tell, read)
