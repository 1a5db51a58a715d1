"""The rows of a user's own table as fields of requests.

Rows are parsed in batches, column by column, because that costs a fraction of parsing them one by one. If a batch has a
bad row, its rows are parsed one by one, as batches of one row, to learn which of them are bad and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from headway.workload.traces.cell_columns import Cells, read_present, read_texts, read_times, read_token_counts
from headway.workload.traces.cells import DATED_PS, BadRow
from headway.workload.traces.columns import REQUIRED, Columns
from headway.workload.traces.limits import LAST_PS
from headway.workload.traces.table_files import Batch

TEXTS: Final = ("session", "tenant", "class", "model", "prefix", "id")
NUMBERS: Final = {"turn": 0, "prefix_tokens": 0, "max_tokens": 1}  # optional numbers, with their minimum
# The values of a row, in this order. A row has None for a field that is empty or has no column.
FIELDS: Final = ("arrival", "prompt", "output", *TEXTS, *NUMBERS, "duration")

Fields = Sequence[Sequence[Any]]  # the values of rows by field, in the order of FIELDS


class RowParser:
    """Parses the rows of one table."""

    def __init__(self, columns: Columns, decimal_comma: bool) -> None:
        self._names = {field: column.name for field, column in columns.items()}
        self.dated: bool | None = None  # whether times count from 1970; the first valid row determines it
        optional: dict[str, Callable[[Cells], Sequence[Any]]] = {
            **dict.fromkeys(TEXTS, read_texts),
            **{field: _present(read_token_counts, least=least) for field, least in NUMBERS.items()},
        }
        readers: dict[str, Callable[[Cells], Sequence[Any]]] = {  # in the order in which errors are reported
            "arrival": partial(_read_arrivals, unit=columns["arrival"].unit, decimal_comma=decimal_comma),
            **{field: read for field, read in optional.items() if field in columns},
            "prompt": partial(read_token_counts, least=1),
            "output": partial(read_token_counts, least=1),
        }
        if "duration" in columns:
            unit = columns["duration"].unit or "s"
            readers["duration"] = _present(_read_durations, unit=unit, decimal_comma=decimal_comma)
        self._readers = readers

    def parse(self, batch: Batch, reject: Callable[[str, BadRow], None]) -> Fields:
        """Return the values of the valid rows. For each invalid row, call `reject` with its place and its error."""
        if batch.columns is not None:
            try:
                return self._fields(batch.columns)
            except BadRow:
                pass  # the loop below finds the invalid rows
        rows: list[tuple[Any, ...]] = []
        for place, row in batch.rows:
            try:
                if isinstance(row, str):
                    raise BadRow(row)
                rows += zip(*self._fields({name: (value,) for name, value in row.items()}), strict=True)
            except BadRow as problem:
                reject(place, problem)
        return list(zip(*rows, strict=True)) or [()] * len(FIELDS)

    def _fields(self, columns: Mapping[str, Cells]) -> Fields:
        for field in REQUIRED:
            if self._names[field] not in columns:
                raise BadRow(f"{field} ({self._names[field]}) is missing")
        values: dict[str, Sequence[Any]] = {}
        for field, read in self._readers.items():
            name = self._names[field]
            if name not in columns:
                continue
            try:
                values[field] = read(columns[name])
            except BadRow as problem:
                raise BadRow(f"{field} ({name}) {problem}") from None
        self._check_times(values["arrival"])
        nothing = [None] * len(values["arrival"])
        return [values.get(field, nothing) for field in FIELDS]

    def _check_times(self, arrivals: Sequence[int]) -> None:
        """Reject a relative time in a table of dates, and a date in a table of relative times."""
        dated = arrivals[0] >= DATED_PS if self.dated is None else self.dated
        if dated != (min(arrivals) >= DATED_PS) or dated != (max(arrivals) >= DATED_PS):
            raise BadRow("arrival is a date in some rows, and a time from 0 in others")
        self.dated = dated


def _present(read: Callable[..., Sequence[int]], **options: Any) -> Callable[[Cells], Sequence[Any]]:
    return partial(read_present, read=partial(read, **options))


def _read_arrivals(cells: Cells, unit: str | None, decimal_comma: bool) -> Sequence[int]:
    arrivals = read_times(cells, unit, decimal_comma)
    if min(arrivals) < 0:
        raise BadRow("is negative")
    return arrivals


def _read_durations(cells: Cells, unit: str, decimal_comma: bool) -> Sequence[int]:
    durations = read_times(cells, unit, decimal_comma)
    if not all(0 <= duration_ps <= LAST_PS for duration_ps in durations):
        raise BadRow("is not between 0 and 106 days")
    return durations
