"""Replay: the traffic of a workload with the key `trace`.

With `replay: timestamps`, every request arrives at its recorded time. With `replay: think`, a request waits until the
requests that it depends on have ended, and then for its recorded delay. If the simulated cluster is slower than the
recorded cluster, `timestamps` inflates tail latencies and can change which policy wins.
"""

import pathlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import repeat
from typing import Final

from headway import hashing
from headway.config.units import duration_ps, rate
from headway.errors import HeadwayError
from headway.streams import stream
from headway.types import PS_PER_US, Path
from headway.workload import arrivals, transforms
from headway.workload.sessions import Chain, Graph, Session, Turn
from headway.workload.trace_spec import BOTH_STARTS, PLACE, TraceSpec, read_starts
from headway.workload.trace_turns import Clock, Maker, check_stamp, groups, sender_of, waits
from headway.workload.traces import open_trace, paths
from headway.workload.traces.columns import parse_columns
from headway.workload.traces.record import Info, Options, Reader
from headway.workload.traces.source import check_ordinary, reason
from headway.workload.traces.table import NONE, Labels, Trace
from headway.workload.traffic import (
    OpenLoop,
    Planned,
    Retry,
    Sessions,
    SessionStart,
    Source,
    Traffic,
    plan,
    with_deadlines,
)

NO_RETRY: Final = Retry()


def traffic(
    spec: TraceSpec,
    seed: int,
    model: str,
    stop_ps: int,
    declared: Callable[[], int] | None,
    retry: Retry = NO_RETRY,
    timeout_ps: int | None = None,
) -> Traffic:
    """Return the traffic of a trace. `declared` draws the max_tokens that clients send, in the order of the trace."""
    reader = open_replayed(spec, seed)
    clock = Clock(spec.speed, stop_ps)
    maker = Maker(model, declared)
    if _streams(spec, reader.info) and not retry.max:
        return OpenLoop(with_deadlines(_stream_requests(spec, reader, clock, maker), timeout_ps))
    trace = Trace.load(reader, whole=not spec.transforms)
    if not len(trace):
        raise _empty(spec)
    return Replay(spec, trace, seed, clock, maker).traffic(retry, timeout_ps)


def open_replayed(spec: TraceSpec, seed: int) -> Reader:
    """Open the trace of a scenario, with its transforms."""
    path = pathlib.Path(spec.path)
    check_ordinary(path)
    try:
        if not path.is_dir():
            path.open("rb").close()
    except (OSError, ValueError) as error:
        raise HeadwayError(f"{PLACE}.path: cannot open {str(path)!r} ({reason(error)}).") from None
    options = Options(
        block_tokens=spec.block_tokens,
        limit=spec.limit,
        seed=seed,
        columns=None if spec.columns is None else parse_columns(spec.columns, f"{PLACE}.columns"),
        skip_bad=bool(spec.skip_bad),
    )
    reader = open_trace(path, spec.format, options, f"{PLACE}.format")
    if spec.transforms:
        reader = transforms.apply(reader, transforms.parse(spec.transforms, f"{PLACE}.transforms"))
    return reader


def _empty(spec: TraceSpec) -> HeadwayError:
    return HeadwayError(f"{pathlib.Path(spec.path).name}: the file holds no requests.")


def _sessions(spec: TraceSpec, info: Info) -> str:
    """Return the source of the sessions: "recorded", "derived" or "none"."""
    has_blocks = info.block_tokens is not None
    if spec.sessions == "recorded" and not info.sessions:
        other = "derived" if has_blocks else "none"
        raise HeadwayError(f"{PLACE}.sessions: this {info.format} trace records no sessions. Use {other}.")
    if spec.sessions == "derived" and not has_blocks:
        wrong = f"this {info.format} trace has no blocks from which to derive sessions"
        raise HeadwayError(f"{PLACE}.sessions: {wrong}. Use none.")
    if spec.share_system and not has_blocks:
        raise HeadwayError(f"{PLACE}.share_system: this {info.format} trace has no blocks to share. Remove this key.")
    source = spec.sessions or ("recorded" if info.sessions else "derived" if has_blocks else "none")
    if source == "none" and spec.replay == "think":
        raise HeadwayError(f"{PLACE}.replay: this {info.format} trace has no sessions. Use timestamps.")
    return source


def _thinks(spec: TraceSpec, info: Info) -> bool:
    """Return whether a request waits for earlier requests of its session. By default, requests wait only if the trace
    records both sessions and think times."""
    recorded = _sessions(spec, info) == "recorded"
    return recorded and info.think_times if spec.replay is None else spec.replay == "think"


def _streams(spec: TraceSpec, info: Info) -> bool:
    """Return whether the trace can be replayed row by row, without loading the whole trace first."""
    return info.block_tokens is None and info.clock == "trace" and spec.starts is None and not _thinks(spec, info)


def _stream_requests(spec: TraceSpec, reader: Reader, clock: Clock, maker: Maker) -> Iterator[Planned]:
    labelled = _sessions(spec, reader.info) == "recorded"
    turns: dict[str, int] = {}
    row = -1
    for row, record in enumerate(reader.records):
        at_ps = clock.scale(check_stamp(row, record.at_ps))
        if clock.over(at_ps, row):
            return
        name = record.session if labelled else None
        place = 0
        if name is not None:
            place = turns[name] = turns.get(name, -1) + 1
        path = Path((hashing.key(hashing.PROMPT, row),), (record.prompt_tokens,))
        turn = maker.turn(row, record.prompt_tokens, record.output_tokens, path, record)
        yield plan(row, at_ps, turn, *sender_of(record, name), place)
    if row < 0:
        raise _empty(spec)


class Replay:
    """A trace in memory, and the options of its replay."""

    def __init__(self, spec: TraceSpec, trace: Trace, seed: int, clock: Clock, maker: Maker) -> None:
        self._trace = trace
        self._seed = seed
        self._clock = clock
        self._maker = maker
        self._thinks = _thinks(spec, trace.info)
        self._starts = None if spec.starts is None else read_starts(spec)
        if spec.share_system and not trace.systems:
            wrong = f"this {trace.info.format} trace has no lengths of tool and system prompts"
            raise HeadwayError(f"{PLACE}.share_system: {wrong}. Remove this key.")
        self._path = trace.paths(bool(spec.share_system))
        self._session: Sequence[int] = trace.session
        self._names = trace.sessions
        kind = _sessions(spec, trace.info)
        if kind == "derived":
            threads = paths.derive(len(trace), trace.runs)
            self._session, self._names = threads.session, [str(number) for number in range(threads.count)]
        elif kind == "none":
            self._session = array("q", [NONE]) * len(trace)

    def traffic(self, retry: Retry, timeout_ps: int | None = None) -> Traffic:
        starts = self._starts
        users = None if starts is None else starts.users
        if self._trace.info.clock != "trace" and starts is None:
            wrong = f"this {self._trace.info.format} trace does not record when sessions begin"
            raise HeadwayError(f"{PLACE}.starts: {wrong}. Set starts: {BOTH_STARTS}.")
        if self._thinks:
            source = Source(self._sessions(), retry, self._clock.stop_ps, users, timeout_ps=timeout_ps)
            if starts is not None and starts.pause is not None:
                source.pause_ps = duration_ps(starts.pause, f"{PLACE}.starts.pause")
            return Sessions([source])
        if users is not None:
            raise HeadwayError(
                f"{PLACE}.starts.users: needs replay: think. A user starts a session when the previous one has ended."
            )
        if retry.max:
            return Sessions([Source(self._single_turns(), retry, self._clock.stop_ps, timeout_ps=timeout_ps)])
        return OpenLoop(with_deadlines(self._requests(), timeout_ps))

    # --- by timestamps -------------------------------------------------------------------------------------------

    def _requests(self) -> Iterator[Planned]:
        for number, (at_ps, row, name, place) in enumerate(self._arrivals()):
            yield plan(number, at_ps, self._turn(row), *sender_of(self._labels(row), name), place)

    def _single_turns(self) -> Iterator[SessionStart]:
        """Yield each request as its own session, so that it can be retried."""
        for at_ps, row, name, place in self._arrivals():
            turns = iter((self._turn(row),))
            yield at_ps, partial(Chain, *sender_of(self._labels(row), name), turns, 1, place)

    def _arrivals(self) -> Iterator[tuple[int, int, str | None, int]]:
        """Yield the arrival time of each request in order, with its row, session name and position in the session."""
        turns: dict[int, int] = {}
        for at_ps, row in self._recorded_times() if self._starts is None else self._shifted_times():
            if self._clock.over(at_ps, row):
                return
            session = self._session[row]
            if session < 0:
                yield at_ps, row, None, 0
            else:
                place = turns[session] = turns.get(session, -1) + 1
                yield at_ps, row, self._names[session], place

    def _recorded_times(self) -> Iterator[tuple[int, int]]:
        scale = self._clock.scale
        for row, at_ps in enumerate(self._trace.arrival_ps):
            yield scale(check_stamp(row, at_ps)), row

    def _shifted_times(self) -> Iterator[tuple[int, int]]:
        """Yield each arrival time with its row, in order of time. Each session begins at the time that the `starts` key
        gives it, and its later requests keep their recorded distance from its first request."""
        stamps, scale = self._trace.arrival_ps, self._clock.scale
        coming: list[tuple[int, int]] = []
        for start_ps, rows in zip(self._begins(), groups(self._trace, self._session), strict=False):
            while coming and coming[0][0] <= start_ps:
                yield heappop(coming)
            if self._clock.over(start_ps, rows[0], "starts.rate"):
                break
            first_ps = check_stamp(rows[0], stamps[rows[0]])
            for row in rows:
                heappush(coming, (start_ps + scale(max(0, check_stamp(row, stamps[row]) - first_ps)), row))
        while coming:
            yield heappop(coming)

    # --- by think time -------------------------------------------------------------------------------------------

    def _sessions(self) -> Iterator[SessionStart]:
        """Yield the sessions in order of their start times."""
        stamps = self._trace.arrival_ps
        sessions = groups(self._trace, self._session)
        if self._starts is not None:
            for start_ps, rows in zip(self._begins(), sessions, strict=False):
                if self._clock.over(start_ps, rows[0], "starts.rate"):
                    return
                yield start_ps, partial(self._session_of, rows)
            return
        for rows in sessions:
            if stamps[rows[0]] == NONE:
                wrong = f"request {rows[0]} of the trace begins a session, but has no time"
                raise HeadwayError(f"{PLACE}.starts: {wrong}. Set starts: {BOTH_STARTS}.")
        sessions.sort(key=lambda rows: stamps[rows[0]])
        for rows in sessions:
            start_ps = self._clock.scale(stamps[rows[0]])
            if self._clock.over(start_ps, rows[0]):
                return
            yield start_ps, partial(self._session_of, rows)

    def _session_of(self, rows: list[int]) -> Session:
        session = self._session[rows[0]]
        sender = sender_of(self._labels(rows[0]), None if session < 0 else self._names[session])
        plans = waits(self._trace, self._session, rows)
        scale = self._clock.scale
        if not any(row in self._trace.after for row in rows):  # each request waits for the previous request
            return Chain(*sender, (self._turn(row, scale(delay_ps)) for row, _, delay_ps in plans), len(rows))
        number = {row: place for place, row in enumerate(rows)}
        turns, after = [], []
        for row, awaited, delay_ps in plans:
            turns.append(self._turn(row, scale(delay_ps)))
            after.append([number[other] for other in awaited])
        return Graph(*sender, turns, after)

    # --- used by both --------------------------------------------------------------------------------------------

    def _begins(self) -> Iterator[int]:
        """Yield the start time of each session in picoseconds, as the `starts` key determines it."""
        starts = self._starts
        assert starts is not None
        if starts.rate is None:
            return repeat(0)
        process = arrivals.parse("poisson" if starts.arrival is None else starts.arrival, f"{PLACE}.starts.arrival")
        rng = stream(self._seed, "workload.trace.starts")
        times = arrivals.microseconds(process, rate(starts.rate, f"{PLACE}.starts.rate"), rng)
        return (microseconds * PS_PER_US for microseconds in times)

    def _labels(self, row: int) -> Labels:
        return self._trace.labels[self._trace.label[row]]

    def _turn(self, row: int, delay_ps: int = 0) -> Turn:
        trace = self._trace
        prompt, output = trace.prompt_tokens[row], trace.output_tokens[row]
        return self._maker.turn(row, prompt, output, self._path(row), self._labels(row), delay_ps)
