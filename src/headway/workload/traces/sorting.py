"""Sort the rows of a trace with a temporary file, so that memory stays bounded."""

import heapq
import pickle
import tempfile
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import IO, Any, Final

ROWS: Final = 200_000  # maximum number of rows that are sorted in memory
BLOCK: Final = 256  # number of rows of each sorted part that are in memory while the parts are merged

Part = tuple[int, int]  # where a sorted part begins and ends in the temporary file


def sort_rows(rows: Iterator[Any]) -> Iterator[Any]:
    """Yield rows in order of their first two values: the arrival, and the position in the file, which is unique."""
    part = _next_part(rows)
    if len(part) < ROWS:
        yield from part
        return
    with tempfile.TemporaryFile(prefix="headway-") as file:
        parts: list[Part] = []
        while part:
            parts.append(_save(part, file))
            part = _next_part(rows)
        yield from heapq.merge(*(_load(part, file) for part in parts))


def _next_part(rows: Iterator[Any]) -> list[Any]:
    part = list(islice(rows, ROWS))
    part.sort(key=itemgetter(1))  # usually in order already; two sorts by a number cost less than one sort by both
    part.sort(key=itemgetter(0))
    return part


def _save(rows: list[Any], file: IO[bytes]) -> Part:
    start = file.tell()
    for first in range(0, len(rows), BLOCK):
        pickle.dump(rows[first : first + BLOCK], file, pickle.HIGHEST_PROTOCOL)
    return start, file.tell()


def _load(part: Part, file: IO[bytes]) -> Iterator[Any]:
    at, end = part
    while at < end:
        file.seek(at)  # other parts are read in between
        block = pickle.load(file)
        at = file.tell()
        yield from block
