"""Sort the rows of a trace with a temporary file, so that memory stays bounded."""

import heapq
import pickle
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import IO, Any, Final

ROWS: Final = 200_000  # maximum number of rows that are sorted in memory
BLOCK: Final = 256  # number of rows of each sorted part that are in memory while the parts are merged

Part = tuple[int, int]  # where a sorted part begins and ends in the temporary file


class Sorter:
    """Sorts rows by their first two values: the arrival, and the position in the file, which is unique."""

    def __init__(self) -> None:
        self._rows: list[Any] = []  # rows that are not in the file yet
        self._parts: list[Part] = []
        self._file: IO[bytes] | None = None

    def extend(self, rows: Iterable[Any]) -> None:
        """Add rows."""
        source = iter(rows)
        while more := list(islice(source, ROWS - len(self._rows))):
            self._rows += more
            if len(self._rows) == ROWS:
                self._save()

    def _save(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="headway-")  # noqa: SIM115, until the rows are read
        rows = self._in_order()
        start = self._file.tell()
        for first in range(0, len(rows), BLOCK):
            pickle.dump(rows[first : first + BLOCK], self._file, pickle.HIGHEST_PROTOCOL)
        self._parts.append((start, self._file.tell()))
        self._rows = []

    def _in_order(self) -> list[Any]:
        # Rows are mostly sorted already, so two sorts by one value are faster than one sort by a pair of values.
        self._rows.sort(key=itemgetter(1))
        self._rows.sort(key=itemgetter(0))
        return self._rows

    def sorted(self) -> Iterator[Any]:
        """Yield all rows in order."""
        if self._file is None:
            yield from self._in_order()
            return
        self._save()
        yield from heapq.merge(*(_load(part, self._file) for part in self._parts))

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()  # also deletes the temporary file


def sort_rows(rows: Iterable[Any]) -> Iterator[Any]:
    """Yield rows in the order of a `Sorter`."""
    sorter = Sorter()
    sorter.extend(rows)
    yield from sorter.sorted()


def _load(part: Part, file: IO[bytes]) -> Iterator[Any]:
    at, end = part
    while at < end:
        file.seek(at)  # needed each time, because reads of other parts move the position
        block = pickle.load(file)
        at = file.tell()
        yield from block
