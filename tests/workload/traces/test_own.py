"""Headway's own format: nothing is lost, the same trace gives the same bytes, damage is told at its place."""

from __future__ import annotations

import gzip
import random
import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from conftest import ROOT
from drawing import draws
from headway.errors import HeadwayError
from headway.workload.traces import open_trace, own, own_parquet
from headway.workload.traces.own import Header
from headway.workload.traces.record import Info, Options, Reader, Record
from headway.workload.traces.source import head

INFO = Info("mooncake", 16, False, sessions=True, extra={"title": "a trace", "deep": {"list": [1, 2.5, None]}})
FULL = Record(
    40,
    7,
    5_000_001,
    [(3, 2), (9, 1)],
    "s-1",
    4,
    "r-9",
    ("r-7", "r-8"),
    123_456,
    "a/model",
    "tenant é",
    "critical",
    "agentic",
    512,
    16,
    {"status": "ok", "times": [1, 2], "ratio": 0.1},
)
BARE = Record(1, 1, 6_000_000)


def open_own(path: Path) -> Reader:
    return own.read(path, Options())


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_every_field_survives(tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("polars")
    path = tmp_path / name
    assert own.write(path, INFO, iter([FULL, BARE])) == []
    assert own.tell(path, head(path))
    reader = open_own(path)
    info = reader.info
    assert (info.format, info.block_tokens, info.sessions) == ("headway", 16, True)
    assert info.extra == {**INFO.extra, "origin": "mooncake"}
    assert list(reader.records) == [FULL, BARE]


@pytest.mark.parametrize("name", ["t.jsonl.gz", "t.parquet"])
def test_what_was_written_from_it_again_is_the_same_bytes(tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("polars")
    first, second = tmp_path / name, tmp_path / f"again-{name}"
    own.write(first, INFO, [FULL, BARE])
    reader = open_own(first)
    own.write(second, reader.info, reader.records)
    assert first.read_bytes() == second.read_bytes()


def test_a_parquet_file_is_read_a_row_group_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("polars")
    monkeypatch.setattr(own_parquet, "ROWS", 7)
    path = tmp_path / "t.parquet"
    records = [Record(number, 1, number * 10) for number in range(1, 51)]
    own.write(path, Info("azure"), iter(records))
    assert list(open_own(path).records) == records


def test_ids_of_any_64_bits_fit_into_parquet(tmp_path: Path) -> None:
    pytest.importorskip("polars")
    path = tmp_path / "t.parquet"
    own.write(path, INFO, [Record(16, 1, 0, [(2**64 - 2, 1)]), Record(16, 1, 0, [(-1, 1)])])
    assert [record.blocks for record in open_own(path).records] == [[(2**64 - 2, 1)], [(2**64 - 1, 1)]]


def test_pyarrow_serves_where_polars_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setitem(sys.modules, "polars", None)
    path = tmp_path / "t.parquet"
    own.write(path, INFO, [FULL, BARE])
    assert list(open_own(path).records) == [FULL, BARE]


def test_without_a_library_for_parquet_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("polars", "pyarrow"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(HeadwayError, match=r"pip install 'headway\[data\]'"):
        own.write(tmp_path / "t.parquet", INFO, [FULL])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: text.replace('"headway_trace":1', '"headway_trace":9'), "line 1: headway_trace must be 1, got 9"),
        (
            lambda text: text.replace('"clock":"trace"', '"clock":"wall"'),
            "line 1: is not the header of a Headway trace",
        ),
        (lambda text: text.replace('"clock"', '"klock"'), "line 1: .*klock"),
        (lambda text: text.replace('"prompt_tokens":40', '"prompt_tokens":"40"'), r"line 2: .*prompt_tokens"),
        (lambda text: text.replace('"prompt_tokens":40', '"promt_tokens":40'), r"line 2: .*promt_tokens"),
        (lambda text: text.replace('"prompt_tokens":40', '"prompt_tokens":400'), r"line 2: blocks has 3 ids, but 400"),
        (lambda text: text.replace('"at_ps":5000001', '"at_ps":-1'), "line 2: at_ps must lie between 0"),
        (
            lambda text: text.replace('"at_ps":5000001', '"at_ps":6000001'),
            "line 3: at_ps 6000000 is earlier than that of a previous request",
        ),
        (lambda text: text.replace('"at_ps":6000000', '"at_ps":null'), "line 3: at_ps is missing"),
        (lambda text: text[:-30], "line 3"),
    ],
)
def test_mistakes_are_told_by_file_line_and_field(tmp_path: Path, change: object, problem: str) -> None:
    path = tmp_path / "t.jsonl"
    own.write(path, INFO, [FULL, BARE])
    path.write_text(change(path.read_text()))  # type: ignore[operator]
    with pytest.raises(HeadwayError, match=problem) as caught:
        list(open_own(path).records)
    assert "t.jsonl" in str(caught.value)


def test_a_block_size_other_than_the_file_s_own_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    own.write(path, INFO, [FULL])
    with pytest.raises(HeadwayError, match="16 tokens, not 512"):
        own.read(path, Options(block_tokens=512))


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_damaged_files_give_errors_and_nothing_else(tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("polars")
    path = tmp_path / name
    own.write(path, INFO, [FULL, BARE] * 1)
    whole = path.read_bytes()
    rng = random.Random(5)
    for _ in range(60):
        damaged = bytearray(whole[: rng.randrange(1, len(whole) + 1)])
        for _ in range(rng.randrange(4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            list(open_own(path).records)
        except HeadwayError as error:
            assert name in str(error)


@draws(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_after_a_header_give_errors_and_nothing_else(tmp_path: Path, junk: bytes, packed: bool) -> None:
    path = tmp_path / "junk.jsonl"
    content = b'{"headway_trace":1,"origin":"x"}\n' + junk
    path.write_bytes(gzip.compress(content) if packed else content)
    try:
        list(open_own(path).records)
    except HeadwayError as error:
        assert "junk.jsonl" in str(error)


def test_the_page_names_every_field_and_its_example_reads() -> None:
    page = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")
    section = page.split("## Headway's format")[1].split("\n## ")[0]
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert named == {*Record.__struct_fields__, *Header.__struct_fields__}
    example = ROOT / "examples" / "08_native.headway.jsonl"
    records = list(open_trace(example).records)
    assert len(records) == 9 and records[6].after == ("r6",)
    assert example.read_text(encoding="utf-8").startswith(section.split("```json\n")[1].split("```")[0])
