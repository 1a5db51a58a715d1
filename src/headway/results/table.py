"""The requests of a run as a table: named columns of equal length, in order of arrival."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, KeysView, Sequence
from typing import Any

from msgspec import Struct

from headway.config.wording import suggest
from headway.display.displayed import pandas_frame, polars_frame, types_of
from headway.policies.prefix_tiers import TIERS
from headway.results.recorder import COLUMNS as NUMBERED
from headway.results.recorder import Numbers, Recorder, RequestColumns
from headway.types import OUTCOMES


class Row(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One request. The fields define the names and the order of the columns, also in files. Files omit fields with
    default values."""

    request: int
    tenant: str
    slo_class: str
    session: str
    turn: int
    kind: str
    model: str
    adapter: str
    arrival_ps: int
    admitted_ps: int
    routed_ps: int
    enqueued_ps: int
    started_ps: int
    first_token_ps: int
    finished_ps: int
    instance: int
    outcome: str
    reason: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    predicted_tokens: int
    preemptions: int
    loaded_tokens: int = 0
    prefill_instance: int = -1  # this field and the next three are -1 unless the request is disaggregated
    handed_ps: int = -1
    transfer_ps: int = -1
    transferred_ps: int = -1
    retries: int = 0
    redirects: int = 0
    priority: float = 0.0
    loaded_from: str = ""  # slowest tier below the GPU (cpu or storage) from which blocks were loaded; empty if none
    preempted_ps: int = 0
    loading_ps: int = 0
    ready_ps: int = 0
    interrupted_ps: int = 0
    joined_ps: int = -1


COLUMNS = Row.__struct_fields__
TYPES = types_of(Row)


class Coded:
    """A column of strings stored as codes. Code -1 means the last string, which is empty."""

    __slots__ = ("codes", "words")

    def __init__(self, codes: Numbers, words: Sequence[str]) -> None:
        self.codes = codes
        self.words = words

    def __len__(self) -> int:
        return len(self.codes)

    def __iter__(self) -> Iterator[str]:
        return map(self.words.__getitem__, self.codes)

    def __getitem__(self, row: int) -> str:
        return self.words[self.codes[row]]


class Table:
    """The requests of a run. `table["arrival_ps"]` is a list, `len(table)` is the number of rows, and iteration yields
    the column names, so that a data frame can be made from `dict(table)`. A time is -1 if the event never happened. The
    instance is -1 if the request was never routed."""

    __slots__ = ("_columns",)

    def __init__(self, columns: dict[str, Any]) -> None:
        lengths = {len(column) for column in columns.values()}
        if tuple(columns) != COLUMNS or len(lengths) != 1:
            raise ValueError(f"A table needs these columns, of equal length: {', '.join(COLUMNS)}.")
        self._columns = columns

    @classmethod
    def of(cls, recorder: Recorder) -> Table:
        rows = range(len(recorder))
        reasons = recorder.reasons
        special: dict[str, Any] = {
            "request": rows,
            **{name: Coded(getattr(recorder, name), [*words, ""]) for name, words in recorder.names.items()},
            "outcome": Coded(recorder.outcome, OUTCOMES),
            "loaded_from": Coded(recorder.loaded_from, [*TIERS, ""]),
            "reason": [reasons.get(row, "") for row in rows] if reasons else [""] * len(rows),
        }
        return cls({name: special[name] if name in special else getattr(recorder, name) for name in COLUMNS})

    def __getitem__(self, name: str) -> list[Any]:
        column = self._columns.get(name)
        if column is None:
            raise KeyError(f"Unknown column {name!r}.{suggest(name, COLUMNS)}")
        if isinstance(column, array | range | Coded):  # convert a compact column to a list on its first use
            column = self._columns[name] = list(column)
        return column

    def column(self, name: str) -> Sequence[Any]:
        """Return a column as it is stored: an array of numbers, a list, or a `Coded` column."""
        column: Sequence[Any] = self._columns[name]
        return column

    def keys(self) -> KeysView[str]:
        return self._columns.keys()

    def items(self) -> list[tuple[str, list[Any]]]:
        return [(name, self[name]) for name in COLUMNS]

    def values(self) -> list[list[Any]]:
        return [self[name] for name in COLUMNS]

    def __iter__(self) -> Iterator[str]:
        return iter(COLUMNS)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __len__(self) -> int:
        return len(self._columns["request"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.values() == other.values()

    __hash__ = None  # type: ignore[assignment]

    def rows(self) -> Iterator[dict[str, Any]]:
        for row in zip(*self._columns.values(), strict=True):
            yield dict(zip(COLUMNS, row, strict=True))

    def to_pandas(self) -> Any:
        return pandas_frame(dict(self), TYPES)

    def to_polars(self) -> Any:
        return polars_frame(dict(self), TYPES)

    def __repr__(self) -> str:
        return f"Table({len(self)} requests: {', '.join(COLUMNS)})"


class Columns(RequestColumns):
    """The columns of a table as numbers. A column is copied only if it is stored as plain strings."""

    def __init__(self, table: Table) -> None:
        self.names = {}
        for name in NUMBERED:
            column = table.column(name)
            if name in ("tenant", "slo_class"):
                column, self.names[name] = encode(column)
            elif name == "outcome":
                column, _ = encode(column, OUTCOMES)
            setattr(self, name, column)


def encode(column: Any, words: Sequence[str] = ()) -> tuple[Numbers, dict[str, int]]:
    """Return a column of strings as codes, and the code of each string. Strings in `words` have their index as code."""
    if isinstance(column, Coded):
        # Omit the last string if it is empty: code -1 stands for it.
        own = column.words[:-1] if list(column.words[-1:]) == [""] else column.words
        if words and list(own) != list(words):  # in a column from a file, codes are in order of occurrence
            places = [words.index(word) for word in own]
            return [places[code] for code in column.codes], {word: code for code, word in enumerate(words)}
        return column.codes, {word: code for code, word in enumerate(own)}
    known: dict[str, int] = {word: code for code, word in enumerate(words)}
    return [known.setdefault(word, len(known)) for word in column], known
