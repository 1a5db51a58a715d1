"""The rows of a user's own table in any of its forms: CSV, TSV, JSONL or Parquet. They are read in batches."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final

import msgspec
from msgspec import Struct

from headway.errors import HeadwayError
from headway.workload.traces import own_parquet
from headway.workload.traces.csv_table import open_table
from headway.workload.traces.source import head, lines

BATCH: Final = 256  # number of rows in a batch; they may contain long texts in other columns
LINE_BREAK: Final = re.compile(r"\r\n?|\n")

Row = Mapping[str, Any]


class Batch(Struct):
    """Consecutive rows of a table, by column and by row. A caller reads only one of the two."""

    # The values of each column; a value that is missing in JSON is None. If a row is invalid, `columns` itself is None.
    columns: Mapping[str, Sequence[Any]] | None
    # (location for errors, values by column) of each row. For an invalid row, the second element is the reason.
    rows: Iterator[tuple[str, Row | str]]


def is_json(first: list[bytes]) -> bool:
    """Return whether a file with these first lines has a JSON object in each line."""
    return bool(first) and first[0].startswith(b"{")


def read_names(path: pathlib.Path) -> list[str]:
    """Return the names of a table's columns. The names of nested JSON values contain dots."""
    if own_parquet.is_parquet(path):
        return own_parquet.column_names(path)
    first = head(path)
    if is_json(first):
        return list(_flatten(_decode(first[0], f"{path.name} line 1")))
    if first and first[0].startswith(b"["):
        raise HeadwayError(f"{path.name}: is a JSON array. Write one object per line, for example with: jq -c '.[]'.")
    with open_table(path) as table:
        return table.names


def file_batches(path: pathlib.Path, names: list[str]) -> Iterator[Batch]:
    """Yield all rows, with the values of the columns `names`. There must be at least two names."""
    if own_parquet.is_parquet(path):
        return _parquet_batches(path, names)
    return _json_batches(path, names) if is_json(head(path)) else _csv_batches(path, names)


def _parquet_batches(path: pathlib.Path, names: list[str]) -> Iterator[Batch]:
    first = 1
    for columns in own_parquet.groups(path, names):
        numbered = enumerate(zip(*columns, strict=True), first)
        rows = ((f"row {number}", dict(zip(names, values, strict=True))) for number, values in numbered)
        yield Batch(dict(zip(names, columns, strict=True)), rows)
        first += len(columns[0])


def _csv_batches(path: pathlib.Path, names: list[str]) -> Iterator[Batch]:
    with open_table(path) as table:
        width = len(table.names)
        places = {name: place for place, name in enumerate(table.names)}
        pick = itemgetter(*(places[name] for name in names))
        while True:
            line = table.rows.line_num + 1
            rows = list(islice(table.rows, BATCH))
            if not rows:
                return
            columns = None
            if set(map(len, rows)) == {width}:
                columns = dict(zip(names, zip(*map(pick, rows), strict=True), strict=True))
            yield Batch(columns, _csv_rows(rows, line, table.names))


def _csv_rows(rows: list[list[str]], line: int, names: list[str]) -> Iterator[tuple[str, Row | str]]:
    """Yield consecutive rows with their locations. The first row begins in this line. Blank rows are skipped."""
    for values in rows:
        if len(values) == len(names):
            yield f"line {line}", dict(zip(names, values, strict=True))
        elif any(value.strip() for value in values):
            yield f"line {line}", f"has {len(values)} values, but the header has {len(names)} columns"
        line += 1 + sum(len(LINE_BREAK.findall(value)) for value in values)


def _json_batches(path: pathlib.Path, names: list[str]) -> Iterator[Batch]:
    numbered = _objects(path)
    while batch := list(islice(numbered, BATCH)):
        rows = [row for _, row in batch]
        columns = None if str in map(type, rows) else {name: [row.get(name) for row in rows] for name in names}
        yield Batch(columns, ((f"line {number}", row) for number, row in batch))


def _objects(path: pathlib.Path) -> Iterator[tuple[int, Any]]:
    for number, line in lines(path):
        place = f"line {number}"
        try:
            yield number, _flatten(_decode(line, place))
        except HeadwayError as error:
            yield number, str(error).removeprefix(f"{place}: ").rstrip(".")


def _decode(line: bytes, place: str) -> Any:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise HeadwayError(f"{place}: is not JSON.") from None
    if not isinstance(value, dict):
        raise HeadwayError(f"{place}: is not a JSON object.")
    return value


def _flatten(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        if isinstance(inner, dict):
            flat |= _flatten(inner, f"{before}{name}.")
        else:
            flat[f"{before}{name}"] = inner
    return flat


def has_decimal_commas(path: pathlib.Path) -> bool:
    """Return whether a comma in a number can only separate decimal places, because another delimiter is in use."""
    if own_parquet.is_parquet(path) or is_json(head(path)):
        return False
    with open_table(path) as table:
        return table.delimiter != ","
