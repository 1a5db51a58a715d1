"""BLIS TraceV2: header and rows, prefix groups, sessions and think times, and back byte for byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from drawing import draws
from headway.errors import HeadwayError
from headway.workload.traces import blis
from headway.workload.traces.blis_format import COLUMNS, DEFAULTS, OPTIONAL
from headway.workload.traces.record import Info, Options, Reader, Record

HEADER = """trace_version: 2
time_unit: microseconds
created_at: '2026-08-01T10:00:00Z'
mode: real
warm_up_requests: 0
workload_seed: 42
server:
  type: vllm
  model: qwen
  block_size: 32
"""
PLAIN = tuple(name for name in COLUMNS if name not in OPTIONAL)


def row(columns: tuple[str, ...] = PLAIN, **cells: object) -> str:
    known = {"input_tokens": 100, "output_tokens": 10, "arrival_time_us": 0, "request_id": 0, **cells}
    return ",".join(str(known.get(name, DEFAULTS.get(name, ""))) for name in columns) + "\n"


def trace(folder: Path, rows: list[str], columns: tuple[str, ...] = PLAIN, header: str = HEADER) -> Path:
    (folder / "t.yaml").write_text(header)
    (folder / "t.csv").write_text(",".join(columns) + "\n" + "".join(rows))
    return folder / "t.yaml"


def read(path: Path) -> Reader:
    return blis.read(path, Options())


def test_the_columns_are_the_format_s_own_in_order() -> None:
    assert len(PLAIN) == 27
    assert PLAIN[:5] == ("request_id", "client_id", "tenant_id", "slo_class", "session_id")
    assert PLAIN[-3:] == ("status", "error_message", "finish_reason")


@pytest.mark.parametrize("name", ["t.yaml", "t.csv", "t"])
def test_either_file_or_their_common_name_opens_the_trace(tmp_path: Path, name: str) -> None:
    trace(tmp_path, [row()])
    assert len(list(read(tmp_path / name).records)) == 1


def test_a_folder_with_header_and_data_is_a_trace(tmp_path: Path) -> None:
    trace(tmp_path, [row()])
    (tmp_path / "t.yaml").rename(tmp_path / "header.yaml")
    (tmp_path / "t.csv").rename(tmp_path / "data.csv")
    assert blis.tell(tmp_path, [])
    for path in (tmp_path, tmp_path / "header.yaml", tmp_path / "data.csv"):
        assert len(list(read(path).records)) == 1


def test_a_missing_half_is_named(tmp_path: Path) -> None:
    trace(tmp_path, [row()])
    (tmp_path / "t.csv").unlink()
    with pytest.raises(HeadwayError, match=r"t\.csv is missing"):
        read(tmp_path / "t.yaml")


def test_prefix_groups_come_on_top_of_the_input_and_share_their_blocks(tmp_path: Path) -> None:
    rows = [row(prefix_group="g", prefix_length=70, input_tokens=58 + 32 * at, arrival_time_us=at) for at in range(2)]
    reader = read(trace(tmp_path, rows))
    assert reader.info.block_tokens == 32 and reader.info.whole_blocks and not reader.info.sessions
    record, two = reader.records
    assert (record.prompt_tokens, two.prompt_tokens, record.shared_prefix_tokens) == (128, 160, 70)
    assert record.blocks[0] == two.blocks[0] and record.blocks[0][1] == 2  # type: ignore[index]
    assert record.blocks[1][0] != two.blocks[1][0]  # type: ignore[index]


def test_the_server_s_count_is_the_prompt_where_there_is_no_group(tmp_path: Path) -> None:
    rows = [row(server_input_tokens=117), row(server_input_tokens=117, prefix_group="g", prefix_length=5)]
    assert [record.prompt_tokens for record in read(trace(tmp_path, rows)).records] == [117, 105]


def test_sessions_turns_and_think_times_are_read(tmp_path: Path) -> None:
    columns = (*PLAIN, "think_time_us")
    rows = [
        row(columns, session_id="s", round_index=0, arrival_time_us=5),
        row(columns, session_id="s", round_index=1, arrival_time_us=900, think_time_us=250),
    ]
    reader = read(trace(tmp_path, rows, columns))
    assert reader.info.sessions and reader.info.clock == "trace"
    record, two = reader.records
    assert (record.session, record.turn, record.delay_ps) == ("s", 0, None)
    assert (two.turn, two.delay_ps) == (1, 250_000_000)


def test_where_nothing_says_the_think_time_the_measured_end_of_the_turn_before_tells_it(tmp_path: Path) -> None:
    rows = [
        row(session_id="s", round_index=0, last_chunk_time_us=600),
        row(session_id="s", round_index=1, arrival_time_us=900),
    ]
    assert [record.delay_ps for record in read(trace(tmp_path, rows)).records] == [None, 300_000_000]


def test_arrivals_that_begin_anew_count_from_their_session(tmp_path: Path) -> None:
    rows = [row(session_id=s, round_index=at, arrival_time_us=at * 50) for s in "ab" for at in range(2)]
    reader = read(trace(tmp_path, rows))
    assert reader.info.clock == "session"
    assert [record.at_ps for record in reader.records] == [0, 50_000_000, 0, 50_000_000]


ACCUMULATE = HEADER + "session_context_growth: accumulate\n"
GROWING = (*PLAIN, "input_tokens_reset")


def growing() -> list[str]:
    turns = [{"input_tokens": 100}, {"input_tokens": 54}, {"input_tokens": 0, "input_tokens_reset": 64}, {}]
    return [row(GROWING, session_id="s", round_index=at, arrival_time_us=at, **turn) for at, turn in enumerate(turns)]


def test_accumulating_sessions_count_what_each_turn_adds(tmp_path: Path) -> None:
    records = list(read(trace(tmp_path, growing(), GROWING, ACCUMULATE)).records)
    assert [record.prompt_tokens for record in records] == [100, 164, 64, 174]  # a turn has 10 tokens of output
    first, second, third, fourth = (record.blocks[0][0] for record in records)  # type: ignore[index]
    assert first == second != third == fourth


def test_what_failed_without_output_is_kept(tmp_path: Path) -> None:
    rows = [row(output_tokens=0, status="error", error_message='"no, really"')]
    (record,) = read(trace(tmp_path, rows)).records
    assert record.output_tokens == 1
    assert record.extra == {"output_tokens": 0, "status": "error", "error_message": "no, really"}


RICH = (*PLAIN[:4], "vllm_priority", *PLAIN[4:], "x_request_id", "adapter", "think_time_us")


def rich() -> list[str]:
    return [
        row(RICH, client_id="c", tenant_id="t", slo_class="critical", vllm_priority=1, model="m", adapter="lora"),
        row(RICH, request_id=1, streaming="true", text_tokens=80, image_tokens=20, reason_ratio=0.25, deadline_us=9),
        row(RICH, request_id=2, session_id="s", prefix_group="g", prefix_length=32, x_request_id="u", think_time_us=""),
        row(RICH, request_id=3, session_id="s", round_index=1, arrival_time_us=7, think_time_us=0, send_time_us=8),
        row(RICH, request_id=4, session_id="s", round_index=2, arrival_time_us=70, think_time_us=5, num_chunks=3),
        row(RICH, request_id=5, arrival_time_us=80, server_input_tokens=117, finish_reason="stop", status="timeout"),
    ]


@pytest.mark.parametrize(
    ("rows", "columns", "header"), [(rich(), RICH, HEADER), (growing(), GROWING, ACCUMULATE), ([row()], PLAIN, HEADER)]
)
def test_what_is_read_is_written_byte_for_byte(
    tmp_path: Path, rows: list[str], columns: tuple[str, ...], header: str
) -> None:
    reader = read(trace(tmp_path, rows, columns, header))
    assert blis.FORMAT.write is not None
    assert blis.FORMAT.write(tmp_path / "o.csv", reader.info, reader.records) == []
    assert (tmp_path / "o.csv").read_text() == (tmp_path / "t.csv").read_text()
    first, second = read(tmp_path / "t.csv"), read(tmp_path / "o.csv")
    assert first.info == second.info and list(first.records) == list(second.records)


def test_what_it_cannot_express_is_told_once(tmp_path: Path) -> None:
    info = Info("weka", 64, scope="session", clock="session", sessions=True, extra={"licence": "x"})
    records = [
        Record(100, 5, 1, [(1, 2)], "s", 0, "first", kind="agentic", max_tokens=9, extra={"x": 1}),
        Record(100, 5, None, [(1, 2)], "s", 3, "second", after=("first",), delay_ps=3_000_000),
        Record(100, 5, 7_000_000, [(1, 2)], "s", 4, "third", after=("first",), extra={"x": 2}),
    ]
    assert blis.FORMAT.write is not None
    lost = blis.FORMAT.write(tmp_path / "o", info, records)
    assert lost == [
        "the blocks of prompts",
        "max_tokens of clients",
        "times finer than 1 µs",
        "the ids of requests that are not numbers",
        "kinds of requests",
        "that some requests have no arrival time",
        "turn numbers that do not count up from 0",
        "which requests wait for which",
        "facts about the trace as a whole",
        "other fields of the source: x",
    ]
    again = list(read(tmp_path / "o").records)
    assert [(record.turn, record.delay_ps) for record in again] == [(0, None), (1, 3_000_000), (2, None)]


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (HEADER + "colour: red\n", r"t\.yaml\.colour: there is no such key"),
        (HEADER.replace("mode", "mood"), r"t\.yaml\.mood: .*'mode'"),
        (HEADER.replace("block_size", "blocksize"), r"t\.yaml\.server\.blocksize: .*'block_size'"),
        (HEADER.replace("microseconds", "ms"), r"t\.yaml\.time_unit: expected 'microseconds'"),
        (HEADER.replace("version: 2", "version: 7"), "trace_version: must be 2 or 3, got 7"),
        (HEADER + "network: [\n", r"t\.yaml line \d+: is not valid YAML"),
        ("a: &a [1]\nb: *a\n", "aliases"),
        ("just text", "expected a mapping"),
        ("", "expected a mapping"),
    ],
)
def test_mistakes_in_the_header_are_told_by_file_and_key(tmp_path: Path, header: str, problem: str) -> None:
    with pytest.raises(HeadwayError, match=problem):
        read(trace(tmp_path, [row()], header=header))


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ({"input_tokens": "x"}, "input_tokens must be a whole number"),
        ({"input_tokens": 0}, r"input_tokens \+ prefix_length must lie between 1"),
        ({"output_tokens": -1}, "output_tokens must be"),
        ({"arrival_time_us": ""}, "arrival_time_us must be"),
        ({"arrival_time_us": 10**17}, "arrival_time_us 100000000000000000 is too late: after"),
        ({"reason_ratio": "nan"}, "reason_ratio must be"),
        ({"streaming": "yes"}, "streaming must be true or false"),
        ({"session_id": "s", "round_index": 3}, "round_index is 3, but the next round of session 's' is 0"),
        ({"num_chunks": "1.5"}, "num_chunks must be a whole number"),
        ({"client_id": "a,b"}, "has 28 values, but the header has 27"),
    ],
)
def test_mistakes_in_the_rows_are_told_by_file_line_and_field(
    tmp_path: Path, cells: dict[str, object], problem: str
) -> None:
    with pytest.raises(HeadwayError, match=rf"t\.csv line 3: .*{problem}"):
        list(read(trace(tmp_path, [row(), row(**cells)])).records)


def test_rows_out_of_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"line 3: arrival_time_us \d+ is earlier than that of a previous request"):
        list(read(trace(tmp_path, [row(arrival_time_us=5), row(arrival_time_us=4)])).records)


def test_a_quote_that_never_ends_is_an_error_and_not_the_whole_file(tmp_path: Path) -> None:
    rows = [row(error_message='"open'), *(row(request_id=at) for at in range(5000))]
    with pytest.raises(HeadwayError, match="is not valid CSV"):
        list(read(trace(tmp_path, rows)).records)


@draws(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)), st.integers(0, 2000), st.booleans())
def test_any_bytes_give_errors_and_nothing_else(tmp_path: Path, junk: bytes, at: int, in_header: bool) -> None:
    path = trace(tmp_path, rich(), RICH)
    hurt = path if in_header else tmp_path / "t.csv"
    content = hurt.read_bytes()
    cut = random.Random(at).randrange(len(content))
    hurt.write_bytes(content[:cut] + junk + content[cut + at % 7 :])
    try:
        list(read(path).records)
    except HeadwayError as error:
        assert "t.csv" in str(error) or "t.yaml" in str(error)
