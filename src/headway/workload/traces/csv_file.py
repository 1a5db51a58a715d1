"""A trace file as rows of CSV under a header."""

import csv
import pathlib
from collections.abc import Callable, Iterator

from headway.errors import HeadwayError
from headway.workload.traces.limits import LAST_PS, MAX_LENGTH, check_order, too_late, whole_number
from headway.workload.traces.source import Numbered, lines

Row = dict[str, str]


def has_columns(first: list[bytes], names: tuple[str, ...]) -> bool:
    """Whether the first line of a file is a header with these columns."""
    return bool(first) and set(names) <= {name.strip(b' "').decode(errors="replace") for name in first[0].split(b",")}


def cells(line: bytes, place: str) -> list[str]:
    """The cells of a line; a quoted one may hold commas, but does not run on into the next line."""
    try:
        text = line.decode()
        values = next(csv.reader((text,), strict=True, skipinitialspace=True)) if '"' in text else text.split(",")
    except UnicodeDecodeError:
        raise HeadwayError(f"{place}: this is not text in UTF-8.") from None
    except csv.Error as error:
        raise HeadwayError(f"{place}: the quotes of this line do not match ({error}).") from None
    return [value.strip() for value in values]


def rows_below(header: list[str], path: pathlib.Path, source: Iterator[Numbered]) -> Iterator[tuple[str, Row]]:
    """The rows that follow a header, by column, each with its place."""
    for number, line in source:
        place = f"{path.name} line {number}"
        values = cells(line, place)
        if len(values) != len(header):
            raise HeadwayError(f"{place}: {len(values)} values where the header names {len(header)} columns.")
        yield place, dict(zip(header, values, strict=True))


def stamped_rows(
    path: pathlib.Path, names: tuple[str, ...], parse_ps: Callable[[str, str], int]
) -> Iterator[tuple[str, Row, int]]:
    """The rows of a file with these columns, each with its place and its time since the first row. The first of the
    columns has the times, of which `parse_ps` makes picoseconds; they never fall."""
    source = lines(path)
    number, line = next(source, (0, b""))
    if not number:
        return
    header = cells(line, f"{path.name} line {number}")
    for name in names:
        if name not in header:
            wrong = f"the header has no column {name}; expected {','.join(names)}"
            raise HeadwayError(f"{path.name} line {number}: {wrong}.")
    first_ps: int | None = None
    last_ps = 0
    for place, row in rows_below(header, path, source):
        stamp = row[names[0]]
        at_ps = parse_ps(stamp, place)
        if first_ps is None:
            first_ps = last_ps = at_ps
        check_order(at_ps, last_ps, names[0], stamp, place)
        if at_ps - first_ps > LAST_PS:
            raise HeadwayError(f"{place}: {names[0]} {stamp} is too late, {too_late(at_ps - first_ps)}.")
        last_ps = at_ps
        yield place, row, at_ps - first_ps


def parse_length(row: Row, name: str, place: str, least: int = 1) -> int:
    """A cell as a number of tokens."""
    length = whole_number(row[name])
    if length is None or not least <= length <= MAX_LENGTH:
        wrong = f"must be a whole number between {least} and {MAX_LENGTH}"
        raise HeadwayError(f"{place}: {name} {wrong}, got {row[name][:40]!r}.")
    return length
