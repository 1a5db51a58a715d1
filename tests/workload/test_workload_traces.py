"""Reading traces: content decides what a file is, stamps are exact, harmless variants of a format are accepted."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from headway.workload.traces import detect, read_trace
from headway.workload.traces.objects import stamp_ps

LINE = b'{"timestamp": 12.5, "input_length": 513, "output_length": 3, "hash_ids": [4, 9], "session_id": "x"}\n'
CSV = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319601,3180,8"
)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf", b"\n"])
def test_content_tells_the_format_and_the_packing(tmp_path: Path, packed: bool, prefix: bytes) -> None:
    for content, format in ((LINE, "mooncake"), (CSV, "azure"), (CSV.replace(b"\n", b"\r\n"), "azure")):
        path = tmp_path / "named-misleadingly.txt"
        path.write_bytes(gzip.compress(prefix + content, mtime=0) if packed else prefix + content)
        assert detect(path) == format
        assert len(read_trace(path)) == (1 if format == "mooncake" else 2)


def test_fractions_of_a_millisecond_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(LINE + LINE.replace(b"12.5", b"12.6") + LINE.replace(b"12.5", b"4503599627.3"))
    assert list(read_trace(path).arrival_ps) == [12_500_000_000, 12_600_000_000, 4_503_599_627_300_000_000]


def test_azure_stamps_are_exact_and_count_from_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(CSV)
    trace = read_trace(path)
    assert list(trace.arrival_ps) == [0, 52_000_100_000]
    assert list(trace.prompt_tokens) == [4808, 3180] and list(trace.output_tokens) == [10, 8]
    assert trace.paths()(0).keys != trace.paths()(1).keys


def test_azure_columns_are_found_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('Id,GeneratedTokens,"TIMESTAMP",ContextTokens\n1,7,2024-05-10 00:00:00.009930+00:00,50\n')
    trace = read_trace(path)
    assert (trace.prompt_tokens[0], trace.output_tokens[0]) == (50, 7)


def test_stamps_with_and_without_zones_mean_the_same() -> None:
    plain = stamp_ps("2024-05-10 00:00:00.009930")
    assert plain is not None
    assert plain % 10**12 == 9_930_000_000
    for text in ("2024-05-10 00:00:00.009930+00:00", "2024-05-10T00:00:00.0099300Z", "2024-05-10 02:00:00.00993+02:00"):
        assert stamp_ps(text) == plain
    assert stamp_ps("2024-05-10 00:00:00") == plain - 9_930_000_000


def test_other_block_sizes_are_read_where_they_are_said(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 40, "output_length": 3, "hash_ids": [1, 2, 3]}\n')
    assert read_trace(path, block_tokens=16).paths()(0).ends == (40,)
