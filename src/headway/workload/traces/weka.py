"""WEKA's agentic coding sessions (kv-cache-tester): one JSON object per session. A trace is one such file, a folder of
such files, or a file with one session per line. Block ids are in `hash_ids` or, in the compact form, in `hash_runs` as
[first id, count].

Times are seconds since the start of the session; sessions have no common clock. If `think_time` is missing, the delay
is the difference between the `t` of two requests minus the `api_time` of the first. An entry of type `subagent` has its
own requests, whose `t` counts from the spawn of the sub-agent. The `t` of the entry itself is the spawn or, if the
entry has a `duration_ms`, the end of the sub-agent. The parent's first request after the end of a sub-agent waits for
the sub-agent. The delay of that request comes from the timestamps, because its `think_time` includes the run time of
the sub-agent.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from headway.errors import HeadwayError
from headway.types import PS_PER_MS, PS_PER_SECOND
from headway.workload.traces import source
from headway.workload.traces.blocks import check_count, id_runs
from headway.workload.traces.limits import MAX_BLOCK, MAX_LENGTH, check_length, check_order, check_range, read_time
from headway.workload.traces.objects import Lane, decode_object, objects
from headway.workload.traces.record import GLOBAL, LOCAL, Format, Info, Options, Reader, Record, present

SCOPES: Final = {"local": LOCAL, "global": GLOBAL}
SUFFIXES: Final = (".json", ".json.gz", ".jsonl", ".jsonl.gz")
MAX_ID: Final = 2**64 - 1
MARKS: Final = (b'"hash_id_scope"', b'"tool_tokens"', b'"requests"')
FORM: Final = "a session is a JSON object with id, block_size and requests, each with t, type, in, out and hash_ids"


class Request(Struct, tag_field="type", tag="n", gc=False):
    t: int | float
    prompt: int = field(name="in")
    output: int = field(name="out")
    model: str | None = None
    hash_ids: list[int] | None = None
    hash_runs: list[tuple[int, int]] | None = None
    api_time: int | float | None = None
    think_time: int | float | None = None
    ttft: int | float | None = None
    stop: str | None = None


class Streamed(Request, tag="s", gc=False):
    pass


class Subagent(Struct, tag_field="type", tag="subagent"):
    t: int | float
    requests: list[Request | Streamed]
    agent_id: str | None = None
    duration_ms: int | float | None = None
    tool_tokens: int | None = None
    system_tokens: int | None = None


class Session(Struct):
    id: str
    block_size: int
    requests: list[Request | Streamed | Subagent]
    hash_id_scope: str = "local"
    tool_tokens: int | None = None
    system_tokens: int | None = None


def read(path: pathlib.Path, options: Options) -> Reader:
    sessions = _sessions(path)
    place, first = next(sessions)
    size = first.block_size
    if options.block_tokens not in (None, size):
        raise HeadwayError(f"{place}: block_size is {size}, not {options.block_tokens}. Remove block_tokens.")
    info = Info(
        "weka",
        block_tokens=size,
        whole_blocks=True,
        scope=SCOPES[first.hash_id_scope],
        clock="session",
        sessions=True,
    )
    every = chain([(place, first)], sessions)
    return Reader(info, (record for where, session in every for record in _records(session, where)))


def tell(path: pathlib.Path, head: list[bytes]) -> bool:
    if path.is_dir():
        first = min((file for file in path.iterdir() if file.name.endswith(SUFFIXES)), default=None)
        try:
            head = [] if first is None or first.is_dir() else source.head(first)
        except HeadwayError:
            return False
    start = b"\n".join(head)
    return start.startswith(b"{") and all(mark in start for mark in MARKS)


# --- the files --------------------------------------------------------------------------------------------------


def _sessions(path: pathlib.Path) -> Iterator[tuple[str, Session]]:
    """Yield each session with its location for errors. Check that session ids differ, and that all sessions have the
    same block size and scope."""
    decode = msgspec.json.Decoder(Session).decode
    places: dict[str, str] = {}
    first: Session | None = None
    for file in _files(path):
        for place, text in objects(file):
            session = decode_object(decode, text, place, FORM)
            _check(session, first or session, place)
            if session.id in places:
                raise HeadwayError(f"{place}: the session id {session.id!r} is already used at {places[session.id]}.")
            places[session.id] = place
            first = first or session
            yield place, session


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
    if not files:
        raise HeadwayError(f"{path.name}: the folder has no sessions, which are files ending in .json or .json.gz.")
    return files


def _check(session: Session, first: Session, place: str) -> None:
    check_range(session.block_size, 1, MAX_BLOCK, "block_size", place)
    if session.hash_id_scope not in SCOPES:
        raise HeadwayError(f"{place}: hash_id_scope must be local or global, got {session.hash_id_scope[:40]!r}.")
    for name in ("block_size", "hash_id_scope"):
        mine, others = getattr(session, name), getattr(first, name)
        if mine != others:
            raise HeadwayError(
                f"{place}: {name} is {mine!r}, but {others!r} in the first session. Read them as two traces."
            )


# --- one session ------------------------------------------------------------------------------------------------


class _Step(Struct):
    """A request of a session. Its times count from the start of the session."""

    start_ps: int
    end_ps: int
    lane: Lane
    agent: Subagent | None
    request: Request
    place: str
    before: _Step | None  # the previous step of its lane


def _records(session: Session, place: str) -> Iterator[Record]:
    steps = _steps(session, place)
    branches = any(step.agent for step in steps)
    for turn, step in enumerate(steps):
        request, agent = step.request, step.agent
        name = f"{session.id}/{turn}"
        after, until, goes_on = step.lane.add(name, step.start_ps, step.end_ps)
        extra = _extra(request, session, agent)
        delay_ps = _think(step)
        if until is not None and not goes_on:
            delay_ps = max(0, step.start_ps - until)
        if request.think_time is not None and delay_ps != _seconds(request.think_time, "think_time", step.place):
            extra["think_time"] = request.think_time  # stored, because the think time differs from the delay
        yield Record(
            request.prompt,
            request.output,
            at_ps=step.start_ps,
            blocks=_blocks(request, session.block_size, step.place),
            session=session.id,
            turn=turn,
            id=name if branches else None,
            after=after,
            delay_ps=delay_ps,
            model=request.model,
            kind="agentic",
            extra=extra,
        )


def _steps(session: Session, place: str) -> list[_Step]:
    """Return all requests of a session in order of their start."""
    own = [(number, entry) for number, entry in enumerate(session.requests) if not isinstance(entry, Subagent)]
    main = Lane(len(own))
    steps: list[_Step] = []
    _add(steps, main, None, 0, [(f"{place} requests[{number}]", request) for number, request in own])
    for number, entry in enumerate(session.requests):
        if isinstance(entry, Subagent):
            where = f"{place} requests[{number}]"
            spawn_ps = _seconds(entry.t, "t", where)
            if entry.duration_ms is not None:
                spawn_ps = max(0, spawn_ps - read_time(entry.duration_ms, "ms", PS_PER_MS, "duration_ms", where))
            inner = [(f"{where}.requests[{at}]", request) for at, request in enumerate(entry.requests)]
            _add(steps, Lane(len(inner), main), entry, spawn_ps, inner)
    if len(steps) > len(own):
        steps.sort(key=lambda step: step.start_ps)  # stable: a parent stays before branches with the same start
    return steps


def _add(
    steps: list[_Step], lane: Lane, agent: Subagent | None, from_ps: int, requests: Sequence[tuple[str, Request]]
) -> None:
    before: _Step | None = None
    for place, request in requests:
        check_length(request.prompt, "in", place)
        check_length(request.output, "out", place, least=0)
        start_ps = from_ps + _seconds(request.t, "t", place)
        check_order(start_ps, 0 if before is None else before.start_ps, "t", request.t, place)
        end_ps = start_ps + (0 if request.api_time is None else _seconds(request.api_time, "api_time", place))
        before = _Step(start_ps, end_ps, lane, agent, request, place, before)
        steps.append(before)


def _think(step: _Step) -> int:
    """Return the time from the end of the lane's previous request to the start of this request."""
    if step.before is None:
        return step.start_ps
    gap_ps = max(0, step.start_ps - step.before.end_ps)
    if step.request.think_time is None:
        return gap_ps
    think_ps = _seconds(step.request.think_time, "think_time", step.place)
    # If the previous request has no api_time, think_time counts from an earlier request and includes the run time of
    # the previous request.
    return min(think_ps, gap_ps) if step.before.request.api_time is None else think_ps


def _seconds(value: float, name: str, place: str) -> int:
    return read_time(value, "seconds", PS_PER_SECOND, name, place)


def _blocks(request: Request, size: int, place: str) -> Sequence[tuple[int, int]]:
    """Return the ids of the prompt's full blocks as runs. Raise if their number does not match the prompt's length."""
    name, blocks = "hash_runs", request.hash_runs
    if request.hash_ids is not None and blocks is None:
        name, blocks = "hash_ids", id_runs(request.hash_ids)
    elif request.hash_ids is not None or blocks is None:
        raise HeadwayError(f"{place}: a request needs either hash_ids or, in the compact form, hash_runs.")
    count = 0
    for first, length in blocks:
        if not (0 <= first <= MAX_ID and 1 <= length <= MAX_LENGTH):
            raise HeadwayError(
                f"{place}: {name} has the run [{first}, {length}], but ids must be at least 0 and counts at least 1."
            )
        count += length
    check_count(count, request.prompt, size, True, name, place)
    return blocks


def _extra(request: Request, session: Session, agent: Subagent | None) -> dict[str, Any]:
    """Return the measured values of a request, and the lengths of its tool and system prompts."""
    prefix = session if agent is None else agent
    return present(
        {
            "api_time": request.api_time,
            "ttft": request.ttft,
            "stop": request.stop or None,
            "tool_tokens": prefix.tool_tokens,
            "system_tokens": prefix.system_tokens,
            "agent": None if agent is None else agent.agent_id,
        }
    )


FORMAT: Final = Format("weka", "WEKA agentic coding sessions, published or compact", tell, read)
