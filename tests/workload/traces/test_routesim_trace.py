"""RouteSim's compact JSONL: prefixes by name become shared blocks, and what it cannot hold is told once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from drawing import draws
from headway.errors import HeadwayError
from headway.workload.traces import routesim
from headway.workload.traces.record import Info, Options, Record

LINES = """# a comment
{"ts": 1000, "prompt_tokens": 512, "gen_tokens": 128, "prefix_hash": "abc", "prefix_len": 250, "priority": 3}

{"ts": 1050.5, "prompt_tokens": 100, "gen_tokens": 64, "prefix_hash": "abc", "prefix_len": 250}
{"ts": 1200, "prompt_tokens": 128, "gen_tokens": 256, "prefix_hash": null, "conversation_id": "c", "lora_adapter": "a"}
"""


def read(path: Path, text: str) -> tuple[Info, list[Record]]:
    path.write_text(text)
    reader = routesim.read(path, Options())
    return reader.info, list(reader.records)


def test_times_lengths_and_names_are_read(tmp_path: Path) -> None:
    info, (row, two, three) = read(tmp_path / "t.jsonl", LINES)
    assert info.sessions and info.block_tokens == 16 and info.whole_blocks
    assert [record.at_ps for record in (row, two, three)] == [10**12, 1_050_500_000_000, 1_200_000_000_000]
    assert (row.prompt_tokens, row.output_tokens, row.shared_prefix_tokens) == (512, 128, 250)
    assert two.shared_prefix_tokens == 100 and two.extra == {"prefix_group": "abc", "prefix_len": 250}
    assert (three.session, three.extra) == ("c", {"adapter": "a"})


def test_requests_of_one_prefix_share_its_full_blocks_and_nothing_else(tmp_path: Path) -> None:
    _, (record, two, three) = read(tmp_path / "t.jsonl", LINES)
    assert record.blocks is not None and two.blocks is not None and three.blocks is not None
    (prefix, own), (other,), (alone,) = record.blocks, two.blocks, three.blocks
    assert prefix == (other[0], 15) and other[1] == 6  # 250 // 16 and 100 // 16
    assert own[1] == 32 - 15 and alone[1] == 8
    ids = [set(range(first, first + count)) for first, count in (prefix, own, alone)]
    assert not ids[0] & ids[1] and not ids[0] & ids[2] and not ids[1] & ids[2]


def test_a_file_without_conversations_records_no_sessions(tmp_path: Path) -> None:
    info, _ = read(tmp_path / "t.jsonl", '{"ts": 0, "prompt_tokens": 1, "gen_tokens": 1, "conversation_id": null}\n')
    assert not info.sessions


def test_what_is_written_reads_back_the_same(tmp_path: Path) -> None:
    info, records = read(tmp_path / "t.jsonl", LINES.replace("1050.5", "1050"))
    assert routesim.write(tmp_path / "o.jsonl", info, records) == []
    again = routesim.read(tmp_path / "o.jsonl", Options())
    assert again.info == info and list(again.records) == records


def test_what_it_cannot_express_is_told_once(tmp_path: Path) -> None:
    info = Info("mooncake", 512)
    records = [Record(600, 5, 1, [(1, 2)], tenant="t"), Record(600, 5, 2, [(1, 2)], tenant="t", extra={"x": 1})]
    lost = routesim.write(tmp_path / "o.jsonl", info, records)
    assert lost == ["the blocks of prompts", "tenants", "times finer than 1 ms", "other fields of the source: x"]


def test_a_declared_prefix_without_a_name_is_named_by_its_last_block(tmp_path: Path) -> None:
    records = [Record(64, 5, 0, [(7, 3), (99 + at, 1)], shared_prefix_tokens=48) for at in range(2)]
    routesim.write(tmp_path / "o.jsonl", Info("x", 16), records)
    again = list(routesim.read(tmp_path / "o.jsonl", Options()).records)
    assert [record.extra["prefix_group"] for record in again] == ["block-9", "block-9"]
    assert again[0].blocks[0] == again[1].blocks[0] != again[1].blocks[1]  # type: ignore[index]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            '{"ts": -1, "prompt_tokens": 5, "gen_tokens": 5}',
            "ts must be a time in ms since the start between 0 and 100 days",
        ),
        (
            '{"ts": 1e300, "prompt_tokens": 5, "gen_tokens": 5}',
            "ts must be a time in ms since the start between 0 and 100 days",
        ),
        ('{"ts": 0, "prompt_tokens": 0, "gen_tokens": 5}', "prompt_tokens must lie"),
        ('{"ts": 0, "prompt_tokens": "5", "gen_tokens": 5}', "prompt_tokens"),
        ('{"ts": 0, "gen_tokens": 5}', "prompt_tokens"),
        ('{"ts": 0, "prompt_tokens": 5, "gen_tokens": 5, "prefix_hash": "a", "prefix_len": -1}', "prefix_len must"),
        ('{"ts": 0, "prompt_tokens": 5, "gen_tokens": 5, "priority": 256}', "priority must lie"),
        ('{"ts": 0, "prompt_tokens": 5, "gen_tok', "truncated"),
    ],
)
def test_mistakes_are_told_by_file_line_and_field(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(HeadwayError, match=f"t.jsonl line 2: .*{problem}"):
        read(tmp_path / "t.jsonl", f"# first\n{line}\n")


def test_a_file_out_of_order_is_refused(tmp_path: Path) -> None:
    row = '{{"ts": {}, "prompt_tokens": 5, "gen_tokens": 5}}\n'
    with pytest.raises(HeadwayError, match="line 2: ts 4 is earlier than that of a previous request"):
        read(tmp_path / "t.jsonl", row.format(5) + row.format(4))


@draws(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=100), st.text(max_size=100).map(str.encode)), st.integers(0, len(LINES)))
def test_any_bytes_give_errors_and_nothing_else(tmp_path: Path, junk: bytes, at: int) -> None:
    path = tmp_path / "junk.jsonl"
    content = LINES.encode()
    path.write_bytes(content[:at] + junk + content[at:])
    try:
        list(routesim.read(path, Options()).records)
    except HeadwayError as error:
        assert "junk.jsonl" in str(error)
