"""Read a trace file in CSV with a header."""

import csv
import pathlib
from collections.abc import Callable, Collection, Iterator

from headway.errors import HeadwayError
from headway.workload.traces.limits import MAX_LENGTH, check_order, whole_number
from headway.workload.traces.source import Numbered, lines

Row = dict[str, str]


def has_columns(first: list[bytes], names: tuple[str, ...]) -> bool:
    """Return whether the first line of a file is a header with these columns."""
    return bool(first) and set(names) <= {name.strip(b' "').decode(errors="replace") for name in first[0].split(b",")}


def check_columns(columns: Collection[str], names: Collection[str], place: str) -> None:
    for name in names:
        if name not in columns:
            raise HeadwayError(f"{place}: the header has no column {name}. The file needs {', '.join(names)}.")


def cells(line: bytes, place: str) -> list[str]:
    """Split a line into cells. A quoted cell may contain commas, but no line break."""
    try:
        text = line.decode()
        values = next(csv.reader((text,), strict=True, skipinitialspace=True)) if '"' in text else text.split(",")
    except UnicodeDecodeError:
        raise HeadwayError(f"{place}: is not text in UTF-8.") from None
    except csv.Error as error:
        raise HeadwayError(f"{place}: the quotes of this line do not match ({error}).") from None
    return [value.strip() for value in values]


def rows_below(header: list[str], path: pathlib.Path, source: Iterator[Numbered]) -> Iterator[tuple[str, Row]]:
    """Yield each row below a header as a mapping by column, with its location for errors."""
    for number, line in source:
        place = f"{path.name} line {number}"
        values = cells(line, place)
        if len(values) != len(header):
            raise HeadwayError(f"{place}: has {len(values)} values, but the header has {len(header)} columns.")
        yield place, dict(zip(header, values, strict=True))


def stamped_rows(
    path: pathlib.Path, names: tuple[str, ...], parse_ps: Callable[[str, str], int]
) -> Iterator[tuple[str, Row, int]]:
    """Yield each row of a file that has these columns, with its location for errors and its time since the first row.

    The first of these columns contains the times, in ascending order. `parse_ps` converts them to picoseconds.
    """
    source = lines(path)
    number, line = next(source, (0, b""))
    if not number:
        return
    header = cells(line, f"{path.name} line {number}")
    check_columns(header, names, f"{path.name} line {number}")
    first_ps: int | None = None
    last_ps = 0
    for place, row in rows_below(header, path, source):
        stamp = row[names[0]]
        at_ps = parse_ps(stamp, place)
        first_ps = at_ps if first_ps is None else first_ps
        at_ps -= first_ps
        check_order(at_ps, last_ps, names[0], stamp, place)
        last_ps = at_ps
        yield place, row, at_ps


def parse_length(row: Row, name: str, place: str, least: int = 1) -> int:
    """Return a cell as a number of tokens. Raise unless it is a whole number of at least `least`."""
    length = whole_number(row[name])
    if length is None or not least <= length <= MAX_LENGTH:
        wrong = f"must be a whole number between {least} and {MAX_LENGTH}"
        raise HeadwayError(f"{place}: {name} {wrong}, got {row[name][:40]!r}.")
    return length
