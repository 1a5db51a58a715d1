"""TraceLab: rounds as JSONL and its replay CSV, block ids made up from prefixes, and files that are wrong."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawing import draws
from headway.errors import HeadwayError
from headway.workload.traces.blocks import shared_blocks
from headway.workload.traces.record import Options, Record
from headway.workload.traces.source import head
from headway.workload.traces.tracelab import FORMAT

REAL = "tracelab-example/round_trace.jsonl"
MS = 10**9
HEADER = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms"
OTHER = "id,input_len,output_len,arrival_time,round_idx,tool_wait_after_ms,prefix_len"


def make_round(index: int, prefix: int, append: int, *events: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {
        "session_id": "s",
        "round_index": index,
        "prefix_tokens": prefix,
        "newly_append_tokens": append,
        "input_tokens_total": prefix + append,
        "output_tokens": 7,
        "timing_events": [{"event_type": kind, "timestamp": f"2026-06-01T05:40:{at}Z"} for kind, at in events],
        **more,
    }


def write_file(folder: Path, *rounds: Any) -> Path:
    path = folder / "rounds.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in rounds))
    return path


def table(folder: Path, *lines: str) -> Path:
    path = folder / "replay.csv"
    path.write_text("\n".join(lines))
    return path


def read(path: Path, **options: Any) -> list[Record]:
    return list(FORMAT.read(path, Options(**options)).records)


def refusal(path: Path) -> str:
    with pytest.raises(HeadwayError) as error:
        read(path)
    return str(error.value)


# --- the example ------------------------------------------------------------------------------------------------


def test_the_example_has_two_sessions_and_nineteen_rounds(traces: Path) -> None:
    reader = FORMAT.read(traces / REAL, Options())
    info = reader.info
    assert (info.block_tokens, info.scope, info.clock, info.sessions) == (16, "session", "session", True)
    records = list(reader.records)
    raw = [json.loads(line) for line in (traces / REAL).read_text().splitlines()]
    assert len(records) == 19 and len({record.session for record in records}) == 2
    assert [record.prompt_tokens for record in records] == [row["input_tokens_total"] for row in raw]
    assert [record.output_tokens for record in records] == [row["output_tokens"] for row in raw]
    assert [record.turn for record in records] == [*range(10), *range(9)]
    assert records[0].at_ps == records[10].at_ps == 0


def test_in_the_example_a_tools_wait_is_the_delay(traces: Path) -> None:
    records = read(traces / REAL)
    assert [record.delay_ps for record in records[:5]] == [0, 19_291 * MS, 12_688 * MS, 21_467 * MS, 145 * MS]
    assert records[5].delay_ps == 19_913 * MS  # nobody but the person waited


def test_in_the_example_a_round_shares_its_prefix_with_the_one_before(traces: Path) -> None:
    records = read(traces / REAL)
    for before, record in pairwise(records):
        if record.session == before.session:
            shared = min(record.extra["cached_tokens"], before.prompt_tokens) // 16
            assert shared_blocks(record.blocks or (), before.blocks or ()) == shared
        assert sum(count for _, count in record.blocks or ()) == -(-record.prompt_tokens // 16)


def test_the_format_is_told_in_all_its_forms(traces: Path) -> None:
    assert FORMAT.tell(traces / REAL, head(traces / REAL))
    assert FORMAT.tell(traces / REAL, [HEADER.encode()]) and FORMAT.tell(traces / REAL, [OTHER.encode()])
    assert not FORMAT.tell(traces / REAL, [b"TIMESTAMP,ContextTokens,GeneratedTokens"])
    assert not FORMAT.tell(traces / REAL, [])


# --- blocks -----------------------------------------------------------------------------------------------------


def test_ids_are_new_beyond_the_prefix_and_for_the_block_that_was_not_full(tmp_path: Path) -> None:
    path = write_file(
        tmp_path, make_round(0, 0, 40), make_round(1, 40, 30), make_round(2, 20, 4), make_round(3, 500, 1)
    )
    assert [record.blocks for record in read(path)] == [
        [(0, 3)],
        [(0, 2), (3, 3)],
        [(0, 1), (6, 1)],
        [(0, 1), (7, 31)],  # a prefix longer than all that was sent is new as well
    ]


def test_blocks_may_be_of_another_size(tmp_path: Path) -> None:
    path = write_file(tmp_path, make_round(0, 0, 40), make_round(1, 40, 30))
    assert FORMAT.read(path, Options(block_tokens=8)).info.block_tokens == 8
    assert [record.blocks for record in read(path, block_tokens=8)] == [[(0, 5)], [(0, 5), (5, 4)]]


def test_every_session_counts_its_ids_from_the_start(tmp_path: Path) -> None:
    path = write_file(tmp_path, make_round(0, 0, 40), make_round(0, 0, 40, session_id="t"), make_round(1, 32, 1))
    assert [record.blocks for record in read(path)] == [[(0, 3)], [(0, 3)], [(0, 2), (3, 1)]]


# --- times ------------------------------------------------------------------------------------------------------


def test_a_round_begins_with_its_last_input_and_ends_with_its_last_output(tmp_path: Path) -> None:
    path = write_file(
        tmp_path,
        make_round(0, 0, 9, ("user_message", "20.000"), ("text", "21.000"), ("tool_call", "22.000")),
        make_round(1, 9, 9, ("tool_result", "22.500"), ("tool_result", "25.000"), ("text", "26.000")),
        make_round(2, 9, 9, ("user_message", "24.000")),
    )
    records = read(path)
    assert [record.at_ps for record in records] == [0, 5000 * MS, 5000 * MS]
    assert [record.delay_ps for record in records] == [0, 3000 * MS, 0]


def test_without_stamps_the_longest_tool_counts(tmp_path: Path) -> None:
    tools = [{"tool_wall_latency_ms": 5}, {"tool_wall_latency_ms": 9}, {"tool_wall_latency_ms": None}]
    records = read(write_file(tmp_path, make_round(0, 0, 9, tools=tools), make_round(1, 0, 9, timing_events=None)))
    assert [(record.at_ps, record.delay_ps) for record in records] == [(None, 0), (None, 9 * MS)]


# --- CSV --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        (HEADER, "7,0.0,0,0,40,5,250.5", "7,0.0,1,40,30,6,0", "8,1500,0,0,16,7,0"),
        (OTHER, "7,40,5,0.0,0,250.5,0", "7,30,6,0.0,1,0,40", "8,16,7,1500,0,0,0"),
    ],
)
def test_the_columns_of_the_replay_file_are_told_by_name(tmp_path: Path, lines: tuple[str, ...]) -> None:
    path = table(tmp_path, *lines)
    assert FORMAT.read(path, Options()).info.clock == "trace"
    record, two, three = read(path)
    assert [(r.session, r.turn, r.prompt_tokens, r.output_tokens) for r in (record, two, three)] == [
        ("7", 0, 40, 5),
        ("7", 1, 70, 6),  # input_len is what was appended
        ("8", 0, 16, 7),
    ]
    assert (record.at_ps, two.at_ps, three.at_ps) == (0, None, 1500 * MS)
    assert (record.delay_ps, two.delay_ps, three.delay_ps) == (0, 250_500_000_000, 0)
    assert two.blocks == [(0, 2), (3, 3)]


def test_a_replay_file_without_arrivals_has_no_clock_across_sessions(tmp_path: Path) -> None:
    path = table(tmp_path, "session_id,round_idx,prefix_len,input_len,output_len", '"a,b",0,0,4,5')
    assert FORMAT.read(path, Options()).info.clock == "session"
    (record,) = read(path)
    assert (record.session, record.at_ps, record.delay_ps) == ("a,b", None, 0)


def test_rows_with_times_of_their_own_keep_them(tmp_path: Path) -> None:
    path = table(tmp_path, HEADER, "a,0,0,0,4,5,0", "b,5,0,0,4,5,0", "a,9,1,0,4,5,0")
    assert [record.at_ps for record in read(path)] == [0, 5 * MS, 9 * MS]


# --- what is wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (make_round(1, 0, 5), "round 1 of session 's' comes after round 2. Sort the file by session and round"),
        (make_round(3, -1, 5), "prefix_tokens must lie between 0"),
        (make_round(3, 0, 0), "prefix_tokens and newly_append_tokens must lie between 1"),
        (make_round(3, 0, 5, output_tokens=-2), "output_tokens must lie between 0"),
        (make_round(3, 0, 5, output_tokens=None), "Expected `int`, got `null` - at `$.output_tokens`"),
        (
            make_round(3, 4, 5, input_tokens_total=8),
            "input_tokens_total is 8, but prefix and append tokens are 4 and 5",
        ),
        (
            make_round(3, 4, 5, ("text", "99.000")),
            "timing_events[0].timestamp '2026-06-01T05:40:99.000Z' is not a time",
        ),
        ({"round_index": 1}, "Object missing required field `session_id`"),
    ],
)
def test_a_wrong_round_is_refused_where_it_is_wrong(tmp_path: Path, wrong: Any, problem: str) -> None:
    message = refusal(write_file(tmp_path, make_round(2, 0, 5), wrong))
    assert message.startswith("rounds.jsonl line 2: ") and problem in message


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("a,0,0,0,4,5", "has 6 values, but the header has 7 columns"),
        ("a,0,x,0,4,5,0", "round_idx must be a whole number between 0"),
        ("a,0,0,0,4.5,5,0", "input_len must be a whole number between 0"),
        ("a,0,0,0,0,5,0", "prefix_len and input_len must lie between 1"),
        ("a,nan,0,0,4,5,0", "arrival_time must be a time in ms between 0 and 100 days, got 'nan'"),
        ("a,0,0,0,4,5,-1", "tool_wait_after_ms must be a time in ms"),
        ("b,2,0,0,4,5,1e999999999", "tool_wait_after_ms must be a time in ms"),
        ("b,0,0,0,4,5,0", "arrival_time 0 is earlier than that of a previous request. Sort the file by time"),
        (",2,0,0,4,5,0", "session_id is empty"),
    ],
)
def test_a_wrong_row_is_refused_where_it_is_wrong(tmp_path: Path, line: str, problem: str) -> None:
    message = refusal(table(tmp_path, HEADER, "z,1,0,0,4,5,0", line))
    assert message.startswith("replay.csv line 3: ") and problem in message


def test_a_header_without_a_column_and_an_empty_file_are_refused(tmp_path: Path) -> None:
    assert "line 1: the header has no column prefix_len" in refusal(
        table(tmp_path, "id,round_idx,input_len,output_len")
    )
    assert "line 1: the header has no column session_id" in refusal(table(tmp_path, HEADER.replace("session_id", "x")))
    assert refusal(table(tmp_path, "")) == "replay.csv: the file is empty."


LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))


@draws(60)
@given(key=st.sampled_from([*make_round(0, 1, 1), "tools", "model"]), value=JSON)
def test_any_value_anywhere_is_read_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    changed = make_round(1, 4, 5, ("user_message", "20.000"), ("text", "21.000")) | {key: value}
    path = write_file(
        tmp_path_factory.getbasetemp(), make_round(0, 0, 9), changed, make_round(2, 9, 9, ("text", "22.000"))
    )
    try:
        read(path)
    except HeadwayError as error:
        assert "rounds.jsonl" in str(error)


@draws(60)
@given(cells=st.lists(st.text(max_size=6) | st.integers().map(str) | st.floats().map(str), min_size=6, max_size=8))
def test_any_row_is_read_or_refused_in_a_sentence(tmp_path_factory: pytest.TempPathFactory, cells: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "replay.csv"
    path.write_bytes(f"{HEADER}\nz,1,0,0,4,5,0\n{','.join(cells)}\n".encode(errors="surrogatepass"))
    try:
        read(path)
    except HeadwayError as error:
        assert "replay.csv" in str(error)


@draws(60)
@given(cut=st.integers(0, 300), junk=st.binary(max_size=20), packed=st.booleans())
def test_any_bytes_are_read_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes, packed: bool
) -> None:
    text = json.dumps(make_round(0, 4, 5, ("user_message", "20.000"))).encode()
    text = text[:cut] + junk + text[cut + len(junk) :]
    path = tmp_path_factory.getbasetemp() / "bytes.jsonl"
    path.write_bytes(gzip.compress(text)[:-5] if packed else text)
    try:
        FORMAT.tell(path, head(path))
        read(path)
    except HeadwayError as error:
        assert "bytes.jsonl" in str(error)
