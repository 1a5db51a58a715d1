"""Qwen-Bailian JSONL: chats and their parents, seconds, blocks of 16 tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.workload.traces import detect, open_trace


def row(chat: int, parent: int = -1, at: float = 0, tokens: int = 40, **more: Any) -> dict[str, Any]:
    records = {"chat_id": chat, "parent_chat_id": parent, "timestamp": at, "input_length": tokens, "output_length": 5}
    return records | {"type": "text", "turn": 1, "hash_ids": [chat * 100 + k for k in range(-(-tokens // 16))]} | more


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "q.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in rows))
    return path


def test_a_session_is_named_by_the_root_of_its_chats(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        row(1, at=0.5),
        row(2, at=1),
        row(3, 1, at=2.25, turn=2, type="search"),
        row(4, 3, at=3, turn=3),
        row(5, 1, at=4, turn=2),
        row(6, 99, at=5, turn=7),
        row(7, 99, at=6, turn=8),
    )
    assert detect(path) == "bailian"
    reader = open_trace(path)
    assert reader.info.block_tokens == 16 and reader.info.sessions
    records = list(reader.records)
    assert [record.session for record in records] == ["1", "2", "1", "1", "1", "99", "99"]
    assert [record.after for record in records] == [(), (), (), (), ("1",), (), ()]  # 5 goes on from 1, not from 4
    assert [record.turn for record in records] == [0, 0, 1, 2, 1, 6, 7]
    assert records[2].at_ps == 2_250_000_000_000 and records[2].extra == {"type": "search"}


def test_a_last_block_may_go_without_an_id(tmp_path: Path) -> None:
    (record,) = open_trace(write(tmp_path, row(1, tokens=40, hash_ids=[5, 6]))).records
    assert record.blocks == [(5, 2)]


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (row(2, at=-1), "timestamp must be a time in seconds since the start between 0 and 100 days, got -1"),
        (
            row(2, at=1e9),
            "timestamp must be a time in seconds since the start between 0 and 100 days, got 1000000000.0",
        ),
        (row(2, at=1, tokens=0), "input_length must lie between 1"),
        (row(2, at=1, output_length=0), "output_length must lie between 1"),
        (row(2, at=1, turn=0), "turn counts from 1, got 0."),
        (row(1, at=1), "chat_id 1 is already used by an earlier line."),
        (row(2, at=0.25), "timestamp 0.25 is earlier than that of a previous request"),
        (row(2, at=1, tokens=1000, hash_ids=[1, 2]), "hash_ids has 2 entries, but 1000 tokens are 63 blocks of 16"),
        (row(2, at=1, chat_id="x"), "Expected `int`, got `str` - at `$.chat_id`"),
    ],
)
def test_a_bad_line_is_told_by_line_and_field(tmp_path: Path, bad: dict[str, Any], what: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        list(open_trace(write(tmp_path, row(1, at=0.5), bad), "bailian").records)
    assert str(caught.value).startswith(f"q.jsonl line 2: {what}")
