"""Mooncake JSONL and its dialects: names, sessions, delays, waits; and block sizes that are never guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.workload.traces import FORMATS, open_trace, read_trace
from headway.workload.traces.record import LOCAL, Info, Options, Record

MS = 10**9


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(at: float | None, tokens: int = 600, **more: Any) -> dict[str, Any]:
    records = {"input_length": tokens, "output_length": 3, "hash_ids": list(range(-(-tokens // 512)))} | more
    return records if at is None else {"timestamp": at} | records


def records(path: Path, **options: Any) -> list[Record]:
    return list(open_trace(path, "mooncake", Options(**options)).records)


def error_of(path: Path, **options: Any) -> str:
    with pytest.raises(HeadwayError) as caught:
        records(path, **options)
    return str(caught.value)


def test_ids_come_as_runs(tmp_path: Path) -> None:
    path = write(tmp_path, row(0, 3000, hash_ids=[0, 1, 2, 9, 10, 4]))
    assert records(path)[0].blocks == [(0, 3), (9, 2), (4, 1)]


def test_a_file_may_have_no_ids_for_partly_filled_blocks(tmp_path: Path) -> None:
    path = write(
        tmp_path, row(0, 64, hash_ids=[1, 2, 3, 4]), row(1, 70, hash_ids=[1, 2, 3, 4]), row(2, 20, hash_ids=[1])
    )
    assert open_trace(path, "mooncake", Options(block_tokens=16)).info.whole_blocks
    assert [record.blocks for record in records(path, block_tokens=16)] == [[(1, 4)], [(1, 4)], [(1, 1)]]
    assert "40 tokens are 3 blocks" in error_of(
        write(tmp_path, row(0, 70, hash_ids=[1, 2, 3, 4]), row(1, 40, hash_ids=[1])), block_tokens=16
    )


def test_other_names_of_the_first_fields_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, {"created_time": 1.5, "input_tokens": 600, "output_tokens": 7, "hash_ids": [1, 2]})
    record = records(path)[0]
    assert (record.at_ps, record.prompt_tokens, record.output_tokens) == (1_500_000_000, 600, 7)


def test_sessions_have_turns_that_come_after_a_delay(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        row(0, session_id="a"),
        row(None, session_id="a", delay=250),
        row(40.25, session_id=7),
        row(None, session_id=7, delay_ms=0.5),
    )
    reader = open_trace(path)
    assert reader.info.sessions and reader.info.clock == "trace"
    records = list(reader.records)
    assert [(record.session, record.at_ps, record.delay_ps) for record in records] == [
        ("a", 0, None),
        ("a", None, 250 * MS),
        ("7", 40_250_000_000, None),
        ("7", None, MS // 2),
    ]


def test_a_file_without_stamps_leaves_open_when_sessions_begin(tmp_path: Path) -> None:
    reader = open_trace(write(tmp_path, row(None, session_id="a"), row(None, session_id="a", delay=1)))
    assert reader.info.clock == "session"
    assert [record.at_ps for record in reader.records] == [None, None]


def test_a_file_without_hash_ids_says_nothing_of_content(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 5, "output_length": 1}
    reader = open_trace(write(tmp_path, line, line | {"timestamp": 1}), "mooncake")
    assert reader.info.block_tokens is None
    assert [record.blocks for record in reader.records] == [None, None]
    assert "has hash_ids, but the first line has none" in error_of(write(tmp_path, line, line | {"hash_ids": [1]}))


def test_agentic_requests_wait_for_those_they_name(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        row(0, session_id="s", request_id="a", branches=["b"]),
        row(5, session_id="s", request_id="b", wait_for=["a"], delay=10, tool_wait_ms=30, prefix_reset=True),
        row(6, session_id="s", request_id="c", wait_for=["a", "b"]),
        row(7, session_id="s", request_id="d"),
    )
    a, b, c, d = records(path)
    assert (a.after, a.id, a.extra) == ((), "a", {"branches": ["b"]})
    assert (b.after, b.delay_ps, b.extra) == (("a",), 40 * MS, {"prefix_reset": True})
    assert (c.after, c.delay_ps) == (("a", "b"), 0)
    assert d.session != "s"  # it waits for nothing, as only the first of a session does


def test_waiting_for_what_is_not_there_is_told_at_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, row(0, request_id="a"), row(1, request_id="b", wait_for=["x"]))
    assert error_of(path) == "t.jsonl line 2: wait_for names 'x', but no earlier line has that request_id."


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"delay": -1}, "delay must be a time in ms between 0 and 100 days, got -1."),
        ({"delay": "soon"}, "Expected `int | float | null`, got `str` - at `$.delay`"),
        ({"tool_wait_ms": 1e300}, "tool_wait_ms must be a time in ms"),
        ({"session_id": [1]}, "Expected `int | str | null`, got `array` - at `$.session_id`"),
        ({"wait_for": "a"}, "Expected `array`, got `str` - at `$.wait_for`"),
    ],
)
def test_a_bad_field_of_a_dialect_is_told_by_its_name(tmp_path: Path, more: dict[str, Any], what: str) -> None:
    assert error_of(write(tmp_path, row(0), row(1, **more))).startswith(f"t.jsonl line 2: {what}")


# --- the size of blocks ------------------------------------------------------------------------------------------


def write_sized(folder: Path, size: int, lengths: list[int]) -> Path:
    rows = [row(at, n, hash_ids=[at * 10_000 + k for k in range(-(-n // size))]) for at, n in enumerate(lengths)]
    return write(folder, *rows)


@pytest.mark.parametrize("size", [16, 32, 64, 128, 1024])
def test_a_file_of_other_blocks_is_refused_with_the_size_that_fits(tmp_path: Path, size: int) -> None:
    path = write_sized(tmp_path, size, [10, 3000, 5000])
    assert error_of(path).endswith(
        f"Blocks of {size} tokens fit all rows so far: if that is their size, set block_tokens to {size}."
    )
    assert len(records(path, block_tokens=size)) == 3


def test_a_mooncake_file_read_with_16_token_blocks_is_refused(tmp_path: Path) -> None:
    path = write_sized(tmp_path, 512, [2000, 3000])
    start = "t.jsonl line 1: hash_ids has 4 entries, but 2000 tokens are 125 blocks of 16. Blocks of 512 tokens"
    assert error_of(path, block_tokens=16).startswith(start)


def test_unusual_sizes_are_named_only_where_no_other_fits(tmp_path: Path) -> None:
    assert ". Blocks of 100 to 102 tokens fit all rows so far" in error_of(write_sized(tmp_path, 100, [5000]))
    assert ". Blocks of 100 tokens fit all rows so far" in error_of(write_sized(tmp_path, 100, [9901]))
    one_bad_line = write(tmp_path, row(0, 5000), row(1, 5000, hash_ids=[1]))
    assert error_of(one_bad_line).endswith(". No block size fits all rows so far.")


# --- writing -----------------------------------------------------------------------------------------------------


def rewritten(folder: Path, info: Info, source: list[Record]) -> tuple[list[str], Path]:
    path = folder / "out.jsonl.gz"
    writer = FORMATS["mooncake"].write
    assert writer is not None
    return writer(path, info, source), path


def test_a_dialect_reads_back_as_it_was_written(tmp_path: Path) -> None:
    source = write(
        tmp_path,
        row(0.125, session_id="s", request_id="a", branches=["b"]),
        row(5, session_id="s", request_id="b", wait_for=["a"], delay=10.5, priority=3),
        row(None, session_id="s", delay=0),
    )
    first = open_trace(source)
    section = list(first.records)
    lost, path = rewritten(tmp_path, first.info, section)
    assert lost == []
    again = open_trace(path)
    assert (list(again.records), again.info) == (section, first.info)


def test_local_ids_and_whole_blocks_become_what_the_format_means_by_ids(tmp_path: Path) -> None:
    info = Info("weka", 64, whole_blocks=True, scope=LOCAL, clock="session", sessions=True)
    source = [
        Record(130, 5, 0, [(1, 2)], session="a"),
        Record(200, 0, 9, [(1, 3)], session="a", delay_ps=7 * MS),
        Record(130, 5, 0, [(1, 2)], session="b"),
    ]
    lost, path = rewritten(tmp_path, info, source)
    assert lost == [
        "the size of blocks (to read the file again, set block_tokens to 64)",
        "requests without any output (1 token is written)",
    ]
    again = read_trace(path, block_tokens=64)
    paths = [again.paths()(number) for number in range(3)]
    assert paths[0].keys[0] == paths[1].keys[0] and paths[0].ends[0] == 128
    assert not set(paths[0].keys) & set(paths[2].keys)
    assert len({record.keys[-1] for record in paths}) == 3
