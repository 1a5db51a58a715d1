"""The rows of a table of one's own, in each of its forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.workload.traces import table_files
from headway.workload.traces.table_files import Row, file_batches, has_decimal_commas, read_names


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def file_rows(file: Path, names: list[str]) -> list[tuple[str, Row | str]]:
    return [row for batch in file_batches(file, names) for row in batch.rows]


def test_the_rows_of_a_table_have_their_lines_and_values(tmp_path: Path) -> None:
    file = write(tmp_path, "my.csv", "ts,in\n1,2\n3\n\n5,6\n")
    assert read_names(file) == ["ts", "in"]
    rows = file_rows(file, ["ts", "in"])
    assert [place for place, _ in rows] == ["line 2", "line 3", "line 5"]
    assert rows[0][1] == {"ts": "1", "in": "2"}
    assert isinstance(rows[1][1], str)  # why the row is bad


def test_valid_rows_are_columns_too(tmp_path: Path) -> None:
    table = write(tmp_path, "my.csv", "ts,text,in\n1,x,2\n3,y,4\n")
    objects = write(tmp_path, "my.jsonl", '{"ts": 1, "in": 2}\n{"ts": 3}\n')
    assert [batch.columns for batch in file_batches(table, ["ts", "in"])] == [{"ts": ("1", "3"), "in": ("2", "4")}]
    assert [batch.columns for batch in file_batches(objects, ["ts", "in"])] == [{"ts": [1, 3], "in": [2, None]}]
    for file in (table, objects):
        with file.open("a", encoding="utf-8") as more:
            more.write("5\n")
        assert [batch.columns for batch in file_batches(file, ["ts", "in"])] == [None]


def test_lines_are_counted_over_batches_and_over_line_breaks_in_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "BATCH", 2)
    text = 'ts,in\n1,"a\nb\r\nc\rd"\n\n2,b\n3,"\n"\n4,d\n'
    file = tmp_path / "my.csv"
    file.write_bytes(text.encode())
    assert [place for place, _ in file_rows(file, ["ts", "in"])] == ["line 2", "line 7", "line 8", "line 10"]


def test_nested_values_have_names_with_dots(tmp_path: Path) -> None:
    file = write(tmp_path, "my.jsonl", '{"t": 1, "usage": {"in": 2, "more": {"x": 3}}}\n[]\n{"t"\n')
    assert read_names(file) == ["t", "usage.in", "usage.more.x"]
    assert [row for _, row in file_rows(file, [])] == [
        {"t": 1, "usage.in": 2, "usage.more.x": 3},
        "is not a JSON object",
        "is not JSON",
    ]


def test_a_json_array_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"is a JSON array\. Write one object per line"):
        read_names(write(tmp_path, "my.json", '[{"t": 1}]\n'))


@pytest.mark.parametrize(
    ("name", "text", "commas"),
    [("my.csv", "a;b\n1,5;2\n", True), ("my.csv", "a,b\n1,2\n", False), ("my.jsonl", '{"a": "1,5"}\n', False)],
)
def test_a_comma_is_decimal_only_beside_another_delimiter(tmp_path: Path, name: str, text: str, commas: bool) -> None:
    assert has_decimal_commas(write(tmp_path, name, text)) is commas
