"""Dynamo request traces: the recorded run, sessions and their children, and files that are wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawing import draws
from headway.errors import HeadwayError
from headway.workload.traces import open_trace
from headway.workload.traces.dynamo import FORMAT
from headway.workload.traces.record import Options, Record
from headway.workload.traces.source import head

REAL = "dynamo-request-trace/pi_request_trace.jsonl.gz"
SCHEMA = "dynamo.request.trace.v1"
MS = 10**9
START = 1_779_163_048_815


def end(
    name: str, at: float, took: float, session: str | None = None, parent: str | None = None, **more: Any
) -> dict[str, Any]:
    hashes = more.pop("hashes", [2**64 - 1, 7])
    event: dict[str, Any] = {"schema": SCHEMA, "event_type": "request_end", "event_time_unix_ms": START + at + took}
    if session is not None:
        event["agent_context"] = {"session_id": session}
        if parent is not None:
            event["agent_context"]["parent_session_id"] = parent
    event["request"] = {
        "request_id": name,
        "request_received_ms": START + at,
        "total_time_ms": took,
        "output_tokens": 3,
        "replay": {"trace_block_size": 16, "input_length": 20, "input_sequence_hashes": hashes},
        **more,
    }
    return event


def tool(session: str, began: float, ended: float) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "event_type": "tool_end",
        "event_time_unix_ms": START + ended,
        "agent_context": {"session_id": session},
        "tool": {"started_at_unix_ms": START + began, "ended_at_unix_ms": START + ended},
    }


def write_file(folder: Path, *events: Any) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(json.dumps(event) for event in events))
    return path


def read(path: Path, **options: Any) -> list[Record]:
    return list(open_trace(path, FORMAT.name, Options(**options)).records)


def refusal(folder: Path, *events: Any) -> str:
    with pytest.raises(HeadwayError) as error:
        read(write_file(folder, *events))
    return str(error.value)


# --- the recorded run -------------------------------------------------------------------------------------------


def test_the_recorded_run_is_read_whole_in_order_of_arrival(traces: Path) -> None:
    reader = FORMAT.read(traces / REAL, Options())
    assert (reader.info.block_tokens, reader.info.scope, reader.info.clock) == (16, "trace", "trace")
    assert reader.info.sessions
    records = list(reader.records)
    assert len(records) == 17
    stamps = [record.at_ps or 0 for record in records]
    assert stamps == sorted(stamps) and stamps[0] == 0 and stamps[-1] == 162_147 * MS
    assert all(len(record.blocks or ()) == -(-record.prompt_tokens // 16) for record in records)
    assert len({record.session for record in records}) == 2  # the warm-up, and the agent with its three children
    assert len({record.extra.get("agent") for record in records[1:]}) == 4
    first = records[0]
    assert first.blocks == [(1549729496416048079, 1)]
    assert first.extra["ttft_ms"] == 1328.418365 and first.extra["cached_tokens"] == 0
    assert first.extra["worker"]["decode_worker_id"] == 7587894923333011484


def test_in_the_recorded_run_the_parent_waits_for_its_three_children(traces: Path) -> None:
    records = {record.id: record for record in read(traces / REAL)}
    (joined,) = [record for record in records.values() if len(record.after) == 4]
    agents = {records[name].extra.get("agent") for name in joined.after}
    assert agents == {None, "ea45d969:scout:0", "ea45d969:scout:1", "ea45d969:reviewer:2"}
    assert joined.delay_ps is not None and joined.delay_ps < 50 * MS  # not the minute that the children ran


def test_the_format_is_told(traces: Path) -> None:
    assert FORMAT.tell(traces / REAL, head(traces / REAL))
    assert not FORMAT.tell(traces / REAL, [b'{"timestamp": 1}'])


# --- sessions ---------------------------------------------------------------------------------------------------


def test_requests_told_as_they_end_are_put_in_order_of_arrival(tmp_path: Path) -> None:
    path = write_file(tmp_path, end("b", 5, 1), end("c", 7, 2), end("a", 0, 100), end("d", 7, 200))
    records = read(path)
    assert [(record.id, record.at_ps) for record in records] == [
        ("a", 0),
        ("b", 5 * MS),
        ("c", 7 * MS),
        ("d", 7 * MS),
    ]
    assert [record.session for record in records] == [None] * 4
    assert not FORMAT.read(path, Options()).info.sessions


def test_hashes_keep_all_their_64_bits(tmp_path: Path) -> None:
    path = write_file(tmp_path, end("a", 0, 1, hashes=[2**64 - 1, 2**63 + 1]))
    assert read(path)[0].blocks == [(2**64 - 1, 1), (2**63 + 1, 1)]


def test_lines_may_be_wrapped(tmp_path: Path) -> None:
    bare, wrapped = end("a", 0, 1), {"timestamp": 3, "event": end("a", 0, 1)}
    assert read(write_file(tmp_path, bare)) == read(write_file(tmp_path, wrapped))


def test_a_delay_spans_the_tools_and_the_overlap_of_tools_counts_once(tmp_path: Path) -> None:
    path = write_file(
        tmp_path, end("a", 0, 10, "s"), tool("s", 12, 20), tool("s", 15, 30), tool("t", 0, 40), end("b", 50, 5, "s")
    )
    first, second = read(path)
    assert (first.delay_ps, second.delay_ps, second.after, second.turn) == (0, 40 * MS, (), 1)
    assert second.extra["tool_ms"] == 18
    assert "tool_ms" not in first.extra


def test_a_child_belongs_to_its_parents_session_and_is_waited_for(tmp_path: Path) -> None:
    path = write_file(
        tmp_path,
        end("p0", 0, 10, "p"),
        end("c0", 15, 10, "c", "p"),
        end("d0", 16, 4, "d", "c"),
        end("c1", 30, 5, "c", "p"),
        end("p1", 20, 100, "p"),
        end("p2", 130, 5, "p"),
    )
    records = {record.id: record for record in read(path)}
    assert {record.session for record in records.values()} == {"p"}
    assert records["c0"].after == () and records["c0"].delay_ps == 5 * MS
    assert records["d0"].after == () and records["d0"].delay_ps == 0  # its parent was still at it
    assert records["p1"].after == ("p0",) and records["p1"].delay_ps == 10 * MS
    assert records["c1"].after == ("c0", "d0") and records["c1"].delay_ps == 5 * MS
    assert records["p2"].after == ("p1", "c1") and records["p2"].delay_ps == 10 * MS
    assert records["c1"].extra == {"total_time_ms": 5, "agent": "c", "parent_session": "p"}


def test_a_child_without_its_parent_is_a_session_of_its_own(tmp_path: Path) -> None:
    path = write_file(tmp_path, end("a", 0, 1, "c", "nobody"), end("b", 5, 1, "d", "nobody"))
    assert [(record.session, record.after) for record in read(path)] == [("c", ()), ("d", ())]


def test_a_session_without_durations_ends_at_its_events(tmp_path: Path) -> None:
    path = write_file(tmp_path, end("a", 0, 10, "s", total_time_ms=None), end("b", 30, 1, "s"))
    assert read(path)[1].delay_ps == 20 * MS


def test_a_limit_counts_arrivals_and_not_lines(tmp_path: Path) -> None:
    assert [record.id for record in read(write_file(tmp_path, end("b", 5, 1), end("a", 0, 9)), limit=1)] == ["a"]


# --- what is wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (end("a", 0, 1, hashes=[1]), "replay.input_sequence_hashes has 1 ids, but 20 tokens are 2 blocks of 16"),
        (end("a", 0, 1, hashes=[1, -1]), "must be unsigned 64-bit numbers"),
        (end("a", 0, 1, hashes=[1, 2**64]), "must be unsigned 64-bit numbers"),
        (end("a", 0, 1, hashes=[1, 1.5]), "at `$.request.replay.input_sequence_hashes[1]`"),
        (end("a", 0, 1, output_tokens=-1), "request.output_tokens must lie between 0"),
        (end("a", 0, 1, replay=None), "Expected `object`, got `null` - at `$.request.replay`"),
        (end("a", 0, 1, request_received_ms=-5), "request.request_received_ms must be a valid number of ms, got -5"),
        (end("a", 0, 1, request_received_ms=1e300), "request.request_received_ms must be a valid number of ms"),
        (end("a", 0, -1), "request.total_time_ms must be a valid number of ms, got -1"),
        (end("a", 0, 1) | {"schema": "dynamo.other.v2"}, f"schema must be {SCHEMA}, got dynamo.other.v2"),
        (end("a", 0, 1) | {"request": None}, "request is missing"),
        (tool("s", 0, -(2**62)), "tool.ended_at_unix_ms must be a valid number of ms"),
        ([], "Expected `object`, got `array`; a line is one JSON event"),
    ],
)
def test_a_wrong_line_is_refused_where_it_is_wrong(tmp_path: Path, wrong: Any, problem: str) -> None:
    message = refusal(tmp_path, end("z", 0, 1), wrong)
    assert message.startswith("trace.jsonl line 2: ") and problem in message


def test_two_block_sizes_in_a_file_are_refused(tmp_path: Path) -> None:
    other = end("b", 0, 1)
    other["request"]["replay"] = {"trace_block_size": 32, "input_length": 20, "input_sequence_hashes": [1]}
    assert "line 2: replay.trace_block_size is 32, but 16 in earlier lines" in refusal(tmp_path, end("a", 0, 1), other)
    with pytest.raises(HeadwayError, match=r"trace_block_size is 16, not 512\. Remove block_tokens"):
        read(write_file(tmp_path, end("a", 0, 1)), block_tokens=512)


def test_a_file_of_tools_alone_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, tool("s", 0, 1)) == (
        "trace.jsonl: the file holds no requests, which are events of type request_end."
    )


def test_a_request_months_after_the_first_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, end("a", 0, 1), end("b", 200 * 86_400_000, 1))
    assert "line 2: request_received_ms " in message and "is too late: after 200 days; the limit is 100 days" in message


LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
PLACES = [
    ("schema",),
    ("event_type",),
    ("event_time_unix_ms",),
    ("agent_context",),
    ("agent_context", "session_id"),
    ("agent_context", "parent_session_id"),
    ("request",),
    ("request", "request_id"),
    ("request", "request_received_ms"),
    ("request", "total_time_ms"),
    ("request", "worker"),
    ("request", "replay", "input_length"),
    ("request", "replay", "input_sequence_hashes"),
    ("request", "replay", "trace_block_size"),
]


@draws(60)
@given(place=st.sampled_from(PLACES), value=JSON)
def test_any_value_anywhere_is_read_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, place: tuple[str, ...], value: Any
) -> None:
    event = end("b", 20, 5, "s", "p")
    inner = event
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    path = write_file(tmp_path_factory.getbasetemp(), end("a", 0, 10, "p"), event, end("c", 40, 5, "p"))
    try:
        read(path)
    except HeadwayError as error:
        assert "trace.jsonl" in str(error)


@draws(60)
@given(cut=st.integers(0, 800), junk=st.binary(max_size=20), packed=st.booleans())
def test_any_bytes_are_read_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes, packed: bool
) -> None:
    text = "\n".join(json.dumps(end(name, 0, 1, "s")) for name in "ab").encode()
    text = text[:cut] + junk + text[cut + len(junk) :]
    path = tmp_path_factory.getbasetemp() / "bytes.jsonl"
    path.write_bytes(gzip.compress(text)[:-5] if packed else text)
    try:
        FORMAT.tell(path, head(path))
        read(path)
    except HeadwayError as error:
        assert "bytes.jsonl" in str(error)
