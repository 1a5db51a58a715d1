"""Sort the rows of a trace with temporary files, so that memory stays bounded."""

import heapq
import pathlib
import pickle
import tempfile
from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any, Final

ROWS: Final = 200_000  # number of rows in one temporary file
FILES: Final = 64  # number of temporary files that are merged at a time, because a process can open only a few files


def sort_rows(rows: Iterator[Any]) -> Iterator[Any]:
    """Yield rows in order of their first two values: the arrival, and the position in the file."""
    with tempfile.TemporaryDirectory(prefix="headway-") as folder:
        names = map(pathlib.Path(folder).joinpath, map(str, count()))
        parts: list[pathlib.Path] = []
        merged: list[pathlib.Path] = []
        while part := sorted(islice(rows, ROWS), key=_order):
            parts.append(_save(part, next(names)))
            if len(parts) == FILES:
                merged.append(_save(_merge(parts), next(names)))
                parts = []
        yield from _merge([*merged, *parts])


def _order(row: Any) -> Any:
    return row[:2]


def _merge(parts: list[pathlib.Path]) -> Iterator[Any]:
    yield from heapq.merge(*map(_load, parts), key=_order)
    for part in parts:
        part.unlink()


def _save(rows: Iterable[Any], target: pathlib.Path) -> pathlib.Path:
    with target.open("wb") as file:
        for row in rows:
            pickle.dump(row, file, pickle.HIGHEST_PROTOCOL)
    return target


def _load(part: pathlib.Path) -> Iterator[Any]:
    with part.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return
