"""Sort the rows of a trace with temporary files, so that memory stays bounded."""

import heapq
import pathlib
import pickle
import tempfile
from collections.abc import Iterator
from itertools import count, islice
from typing import Any, Final

ROWS: Final = 200_000  # number of rows in one temporary file


def sort_rows(rows: Iterator[Any]) -> Iterator[Any]:
    """Yield rows in order of their first two values: the arrival, and the position in the file."""
    with tempfile.TemporaryDirectory(prefix="headway-") as folder:
        parts = []
        for number in count():
            part = sorted(islice(rows, ROWS), key=lambda row: row[:2])
            if not part:
                break
            parts.append(pathlib.Path(folder) / str(number))
            with parts[-1].open("wb") as file:
                for row in part:
                    pickle.dump(row, file, pickle.HIGHEST_PROTOCOL)
        yield from heapq.merge(*map(_load, parts), key=lambda row: row[:2])


def _load(part: pathlib.Path) -> Iterator[Any]:
    with part.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return
