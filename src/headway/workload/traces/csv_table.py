"""A user's own table as CSV or TSV: the header, and the rows with their line numbers.

Finds the delimiter and the encoding, and limits the length of lines and cells, so that no file fills the memory.
"""

from __future__ import annotations

import csv
import io
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final, cast

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.workload.traces.source import MAX_LINE, open_unpacked

DELIMITERS: Final = ",;\t|"
UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
MAX_CELL: Final = 1 << 24  # maximum number of characters; a longer cell is a quote that is never closed
HINT: Final = "sep="  # Excel may write a first line that names the delimiter


class Header:
    """The header of a table, and a CSV reader that continues below it."""

    def __init__(self, source: IO[bytes], path: pathlib.Path) -> None:
        self.path = path
        start = cast(io.BufferedReader, source).peek(2)[:2]
        encoding = "utf-16" if start in UTF16 else "utf-8-sig"
        self.lines = self._bounded(io.TextIOWrapper(source, encoding=encoding, newline=""))
        skipped, first = self._first_line()
        self.delimiter = first[len(HINT)] if first.startswith(HINT) and len(first.strip()) == len(HINT) + 1 else ""
        if self.delimiter:
            skipped, first = [*skipped, "\n"], next(self.lines, "")
        if "\0" in first:
            raise HeadwayError(f"{path.name}: is not text. A table is CSV, TSV, JSONL or Parquet.")
        self.delimiter = self.delimiter or max(DELIMITERS, key=lambda mark: len(_split(first, mark)))
        csv.field_size_limit(MAX_CELL)
        self.rows = csv.reader(self._rest(skipped, first), delimiter=self.delimiter, skipinitialspace=True, strict=True)
        for _ in skipped:
            next(self.rows)
        self.names = [name.strip() for name in next(self.rows, [])]
        if len(self.names) < 2:
            raise HeadwayError(f"{path.name} line 1: expected a header with columns, got {shown(first.strip())}.")

    def _bounded(self, text: io.TextIOWrapper) -> Iterator[str]:
        while line := text.readline(MAX_LINE):
            if len(line) == MAX_LINE:
                raise HeadwayError(f"{self.path.name}: has a line of more than {MAX_LINE >> 20} MiB.")
            yield line

    def _first_line(self) -> tuple[list[str], str]:
        """Return the blank lines at the start, and the first line that is not blank."""
        blank: list[str] = []
        for line in self.lines:
            if line.strip():
                return blank, line
            blank.append("\n")
        raise HeadwayError(f"{self.path.name}: the file is empty.")

    def _rest(self, skipped: list[str], first: str) -> Iterator[str]:
        yield from skipped
        yield first
        yield from self.lines


def _split(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter), [])


@contextmanager
def open_table(path: pathlib.Path) -> Iterator[Header]:
    """Open a table below its header. Errors in encoding and quotes become a HeadwayError that names the file."""
    header: Header | None = None
    with open_unpacked(path, lambda: f"{path.name} line {1 if header is None else header.rows.line_num + 1}") as source:
        try:
            header = Header(source, path)
            yield header
        except UnicodeDecodeError:
            remedy = "Convert it, for example with: iconv -f LATIN1 -t UTF-8"
            raise HeadwayError(f"{path.name}: is not text in UTF-8. {remedy}.") from None
        except csv.Error as error:
            line = "" if header is None else f" line {header.rows.line_num}"
            raise HeadwayError(f"{path.name}{line}: the quotes do not match ({error}).") from None
