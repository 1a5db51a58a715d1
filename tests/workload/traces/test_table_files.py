"""The rows of a table of one's own, in each of its forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.workload.traces.table_files import file_rows, has_decimal_commas, read_names


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_the_rows_of_a_table_have_their_lines_and_values(tmp_path: Path) -> None:
    file = write(tmp_path, "my.csv", "ts,in\n1,2\n3\n\n5,6\n")
    assert read_names(file) == ["ts", "in"]
    rows = list(file_rows(file, ["ts", "in"]))
    assert [place for place, _ in rows] == ["line 2", "line 3", "line 5"]
    assert rows[0][1] == {"ts": "1", "in": "2"}
    assert isinstance(rows[1][1], str)  # why the row is bad


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
