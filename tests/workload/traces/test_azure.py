"""Azure CSV: what is written reads back, and what the format cannot hold is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.workload.traces import FORMATS, open_trace
from headway.workload.traces.record import Info, Record

AZURE = FORMATS["azure"]


def test_stamps_of_2024_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:00.017335+00:00,2399,6\n"
    )
    assert [record.at_ps for record in open_trace(path).records] == [0, 7_405_000_000]


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    source = [Record(5, 6, 0), Record(7, 8, 52_000_100_000), Record(9, 1, 86_400_000_000_000_000 + 100_000)]
    assert AZURE.write is not None
    assert AZURE.write(tmp_path / "a.csv", Info("azure"), source) == []
    assert list(open_trace(tmp_path / "a.csv").records) == source


def test_what_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    source = [Record(5, 6, number * 10_000 + 1, [(1, 1)], session="a", model="m") for number in range(3)]
    assert AZURE.write is not None
    assert AZURE.write(tmp_path / "a.csv", Info("x", 16, sessions=True), source) == [
        "the blocks of prompts",
        "sessions",
        "models",
        "the time before the first request",
        "times finer than 0.1 µs",
    ]


def test_requests_without_a_time_cannot_be_written(tmp_path: Path) -> None:
    assert AZURE.write is not None
    with pytest.raises(HeadwayError, match="request 1 of the source has no arrival time"):
        AZURE.write(tmp_path / "a.csv", Info("weka", clock="session"), [Record(5, 6, 0)])
    with pytest.raises(HeadwayError, match=r"^a\.csv: the file cannot be written \(No such file"):
        AZURE.write(tmp_path / "none" / "a.csv", Info("x"), [])
