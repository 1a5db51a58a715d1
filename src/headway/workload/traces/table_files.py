"""The rows of a user's own table in any of its forms: CSV, TSV, JSONL or Parquet."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headway.errors import HeadwayError
from headway.workload.traces import own_parquet
from headway.workload.traces.csv_table import open_table, table_rows
from headway.workload.traces.source import head, lines

Row = Mapping[str, Any]


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


def file_rows(path: pathlib.Path, names: list[str]) -> Iterator[tuple[str, Row | str]]:
    """Yield the location of each row for errors, and its values by column. For an invalid row, yield a string with the
    reason instead of the values."""
    if own_parquet.is_parquet(path):
        for number, values in enumerate(own_parquet.rows(path, names), 1):
            yield f"row {number}", dict(zip(names, values, strict=True))
    elif is_json(head(path)):
        for number, line in lines(path):
            place = f"line {number}"
            try:
                yield place, _flatten(_decode(line, place))
            except HeadwayError as error:
                yield place, str(error).removeprefix(f"{place}: ").rstrip(".")
    else:
        yield from table_rows(path)


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
