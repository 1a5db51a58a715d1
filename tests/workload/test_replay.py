"""Traces replayed: by their stamps or by think time, with sessions as recorded, derived or begun anew."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.types import NEVER
from headway.workload import replay, trace_spec
from headway.workload.traffic import OpenLoop, Planned, Retry, Sessions, Traffic

MS = 10**9
SECOND = 10**12
NO_END = 10**20


def write(folder: Path, rows: list[dict[str, Any]]) -> str:
    path = folder / "t.jsonl"
    lines = []
    for number, keys in enumerate(rows):
        row = {"input_length": 600, "output_length": 3, "hash_ids": [2 * number, 2 * number + 1]} | keys
        lines.append(json.dumps({key: value for key, value in row.items() if value is not None}) + "\n")
    path.write_text("".join(lines))
    return str(path)


def traffic(path: str, stop_ps: int = NO_END, retry: Retry = replay.NO_RETRY, **keys: Any) -> Traffic:
    return replay.traffic(trace_spec.parse({"path": path, **keys}), 1, "m", stop_ps, None, retry)


def serve(source: Traffic, took_ps: int, fails: tuple[int, ...] = ()) -> list[tuple[int, str | None, int]]:
    """The requests as they come, each of which takes the same time: arrival, session and turn."""
    arrivals = []
    flights: list[tuple[int, Planned]] = []
    while source.next_ps != NEVER or flights:
        if flights and flights[0][0] <= source.next_ps:
            at_ps, ended = flights.pop(0)
            source.on_ended(ended.request, at_ps, ended.request.id not in fails)
            continue
        came = source.take()
        arrivals.append((came.request.arrival_ps, came.request.session, came.request.turn))
        flights.append((came.request.arrival_ps + took_ps, came))
    return arrivals


def error_of(path: str, **keys: Any) -> str:
    with pytest.raises(HeadwayError) as caught:
        list(traffic(path, **keys))
    return str(caught.value)


TWO = [
    {"timestamp": 0, "session_id": "a"},
    {"timestamp": 10, "session_id": "b"},
    {"timestamp": 100, "session_id": "a"},
    {"session_id": "b", "delay": 7},
]


def test_recorded_sessions_wait_for_answers_by_default(tmp_path: Path) -> None:
    source = traffic(write(tmp_path, TWO))
    assert isinstance(source, Sessions)
    assert serve(source, 1000 * MS) == [
        (0, "a", 0),
        (10 * MS, "b", 0),
        (1017 * MS, "b", 1),  # its delay after the answer
        (1100 * MS, "a", 1),  # the stamps' difference after the answer
    ]


def test_speed_divides_stamps_and_delays(tmp_path: Path) -> None:
    events = serve(traffic(write(tmp_path, TWO), speed=2), 1000 * MS)
    assert [at for at, _, _ in events] == [0, 5 * MS, 1008 * MS + MS // 2, 1050 * MS]


def test_stamps_are_replayed_where_that_is_asked(tmp_path: Path) -> None:
    source = traffic(write(tmp_path, TWO[:3]), replay="timestamps")
    assert isinstance(source, OpenLoop)
    assert serve(source, 1000 * MS) == [(0, "a", 0), (10 * MS, "b", 0), (100 * MS, "a", 1)]
    assert error_of(write(tmp_path, TWO), replay="timestamps") == (
        "workload.trace.replay: request 3 of the trace has no recorded time, only a delay. Set replay: think."
    )


def test_a_request_waits_for_all_that_it_names(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "session_id": "s", "request_id": "a"},
        {"timestamp": 1, "session_id": "s", "request_id": "b", "wait_for": ["a"], "delay": 5},
        {"timestamp": 2, "session_id": "s", "request_id": "c", "wait_for": ["a"], "delay": 50},
        {"timestamp": 3, "session_id": "s", "request_id": "d", "wait_for": ["b", "c"], "tool_wait_ms": 1},
    ]
    assert serve(traffic(write(tmp_path, rows)), 100 * MS) == [
        (0, "s", 0),
        (105 * MS, "s", 1),
        (150 * MS, "s", 2),
        (251 * MS, "s", 3),
    ]


def test_sessions_that_wait_for_each_other_go_together(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "session_id": "parent", "request_id": "a"},
        {"timestamp": 1, "session_id": "child", "request_id": "b", "wait_for": ["a"], "delay": 5},
        {"timestamp": 9, "session_id": "other", "request_id": "x"},
        {"timestamp": 9, "session_id": "parent", "request_id": "c", "wait_for": ["a", "b"]},
    ]
    events = serve(traffic(write(tmp_path, rows)), 100 * MS)
    assert [at for at, _, _ in events] == [0, 9 * MS, 105 * MS, 205 * MS]


DERIVED = [
    {"timestamp": 0, "hash_ids": [1, 2]},
    {"timestamp": 50, "hash_ids": [5, 6]},
    {"timestamp": 90, "input_length": 1100, "hash_ids": [1, 2, 3]},
]


def test_derived_sessions_are_labels_that_change_no_timing_unless_asked(tmp_path: Path) -> None:
    path = write(tmp_path, DERIVED)
    assert serve(traffic(path), 1000 * MS) == [(0, "0", 0), (50 * MS, "1", 0), (90 * MS, "0", 1)]
    assert serve(traffic(path, sessions="none"), 1000 * MS) == [(0, None, 0), (50 * MS, None, 0), (90 * MS, None, 0)]
    thinking = serve(traffic(path, replay="think"), 1000 * MS)
    assert thinking == [(0, "0", 0), (50 * MS, "1", 0), (1090 * MS, "0", 1)]


def test_what_a_trace_cannot_do_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, DERIVED)
    assert error_of(path, sessions="recorded").startswith(
        "workload.trace.sessions: this mooncake trace records no session"
    )
    assert error_of(path, share_system=True).startswith(
        "workload.trace.share_system: this mooncake trace has no lengths of tool and system prompts"
    )
    assert error_of(path, starts={"users": 2}).startswith("workload.trace.starts.users: needs replay: think")
    (tmp_path / "a.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,4808,10\n")
    azure = str(tmp_path / "a.csv")
    assert error_of(azure, replay="think").startswith("workload.trace.replay: this azure trace has no sessions")
    assert error_of(azure, sessions="derived").startswith("workload.trace.sessions: this azure trace has no blocks")
    assert error_of(azure, sessions="recorded").endswith("Use none.")
    assert error_of(azure, block_tokens=16).startswith("a.csv: this azure trace has no blocks")


def test_a_trace_without_a_clock_needs_starts(tmp_path: Path) -> None:
    rows = [{"session_id": "a"}, {"session_id": "a", "delay": 5}, {"session_id": "b"}]
    path = write(tmp_path, rows)
    assert error_of(path) == (
        "workload.trace.starts: this mooncake trace does not record when sessions begin. "
        "Set starts: {rate: 0.2/s, arrival: poisson} or {users: 16, pause: 1s}."
    )
    steady = {"rate": "1/s", "arrival": "constant"}
    assert serve(traffic(path, starts=steady), MS) == [(0, "a", 0), (6 * MS, "a", 1), (SECOND, "b", 0)]
    users = serve(traffic(path, starts={"users": 1, "pause": "2s"}), MS)
    assert users == [(0, "a", 0), (6 * MS, "a", 1), (2 * SECOND + 7 * MS, "b", 0)]
    both = serve(traffic(path, starts={"users": 2}), MS)
    assert both == [(0, "a", 0), (0, "b", 0), (6 * MS, "a", 1)]


def test_sessions_begun_anew_keep_their_own_stamps(tmp_path: Path) -> None:
    steady = {"rate": "1/s", "arrival": "constant"}
    events = serve(traffic(write(tmp_path, TWO[:3]), replay="timestamps", starts=steady, speed=0.5), MS)
    assert events == [(0, "a", 0), (200 * MS, "a", 1), (SECOND, "b", 0)]


@pytest.mark.parametrize("how", ["think", "timestamps"])
def test_sessions_that_would_begin_beyond_the_clock_are_told_and_not_dropped(tmp_path: Path, how: str) -> None:
    rows = [{"timestamp": number, "session_id": str(number)} for number in range(20)]
    path, starts = write(tmp_path, rows), {"rate": "0.001/h", "arrival": "constant"}
    assert error_of(path, replay=how, starts=starts).startswith(
        "workload.trace.starts.rate: request 3 would arrive after 125 days; the limit is 100 days. Raise this key."
    )
    assert len(list(traffic(path, stop_ps=90 * 86400 * SECOND, replay=how, starts=starts))) == 3


def test_a_failed_turn_ends_its_session_or_is_tried_again(tmp_path: Path) -> None:
    path = write(tmp_path, TWO)
    source = traffic(path)
    assert len(serve(source, MS, fails=(0,))) == 3 and source.not_issued == 1
    source = traffic(path, retry=Retry(1, 500 * MS))
    assert (501 * MS, "a", 0) in serve(source, MS, fails=(0,)) and source.not_issued == 0
    open_loop = traffic(path, retry=Retry(1, 500 * MS), limit=3, replay="timestamps")
    assert serve(open_loop, MS, fails=(2,))[-1] == (601 * MS, "a", 1)


def test_what_clients_declare_goes_with_the_row_whatever_order_rows_come_in(tmp_path: Path) -> None:
    path = write(tmp_path, [row | {"output_length": 900} for row in TWO])
    outputs = []
    for keys in ({}, {"starts": {"rate": "1/s"}}):
        drawn = iter(range(100, 200))
        source = replay.traffic(trace_spec.parse({"path": path, **keys}), 1, "m", NO_END, lambda: next(drawn))  # noqa: B023
        requests = [
            (planned.request.session, planned.request.turn, planned.output_tokens, planned.request.max_tokens)
            for planned in source
        ]
        outputs.append(sorted(requests))
    assert outputs[0] == outputs[1]
    assert outputs[0] == [("a", 0, 100, 100), ("a", 1, 102, 102), ("b", 0, 101, 101), ("b", 1, 103, 103)]


def test_arrivals_end_with_the_duration(tmp_path: Path) -> None:
    assert len(serve(traffic(write(tmp_path, TWO), stop_ps=50 * MS), MS)) == 3
    assert len(serve(traffic(write(tmp_path, DERIVED), stop_ps=50 * MS), MS)) == 1


def test_labels_of_the_records_reach_the_requests(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,71,10,ChatGPT,472,18,490,Conversation log\n6,,1,GPT-4,5,18,23,API log\n"
    )
    for mode in ("think", "timestamps"):
        requests = [planned.request for planned in traffic(str(tmp_path / "b.csv"), replay=mode)]
        assert [(planned.model, planned.kind, planned.session) for planned in requests] == [
            ("ChatGPT", "chat", "71"),
            ("GPT-4", "completion", None),
        ]
        assert {planned.tenant for planned in requests} == {"default"}


def test_transforms_come_before_the_replay(tmp_path: Path) -> None:
    events = serve(traffic(write(tmp_path, TWO), transforms=[{"cap": {"max_turns": 1}}, {"scale": {"rate": 2}}]), MS)
    assert events == [(0, "a", 0), (5 * MS, "b", 0)]


# --- the real sessions -------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_agentic_sessions_are_replayed_whole(traces: Path) -> None:
    path = str(traces / "agentic-coding-weka" / "sessions_compact.jsonl.gz")
    assert error_of(path).startswith("workload.trace.starts: this weka trace does not record when sessions begin")
    live = 0
    most = 0
    turns: dict[str | None, int] = {}
    source = traffic(path, starts={"users": 16, "pause": "1s"}, share_system=True)
    flights: list[Planned] = []
    while source.next_ps != NEVER or flights:
        if flights and (source.next_ps == NEVER or source.next_ps > flights[0].request.arrival_ps + SECOND):
            ended = flights.pop(0)
            source.on_ended(ended.request, ended.request.arrival_ps + SECOND, True)
            live -= 1
            continue
        came = source.take()
        turns[came.request.session] = turns.get(came.request.session, 0) + 1
        flights.append(came)
        live += 1
        most = max(most, live)
        assert came.output_tokens >= 1 and came.request.kind == "agentic"
    assert (len(turns), sum(turns.values()), max(turns.values())) == (710, 49_334, 561)
    assert most >= 16 and source.not_issued == 0


def test_think_times_are_those_of_the_file(traces: Path) -> None:
    path = str(traces / "agentic-coding-weka" / "raw-sample" / "trace_0001.json.gz")
    events = serve(traffic(path, starts={"users": 1}, limit=6), SECOND)
    gaps = [later - earlier for (earlier, _, _), (later, _, _) in pairwise(events)]
    assert gaps == [(1 + think) * SECOND for think in (12, 8, 18, 112, 11)]
