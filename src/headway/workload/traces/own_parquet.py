"""Headway's own format as Parquet. It is read and written one row group at a time, with the library `polars` or
`pyarrow`, whichever is installed."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from headway.config.wording import one_line
from headway.errors import HeadwayError, missing_extra
from headway.workload.traces.blocks import IDS
from headway.workload.traces.record import Record
from headway.workload.traces.source import reason

MAGIC: Final = b"PAR1"
ROWS: Final = 1 << 16  # number of rows in a row group
TAIL: Final = 1 << 20  # number of bytes at the end of the file that are searched for the footer
COLUMNS: Final = Record.__struct_fields__
UNREADABLE: Final = "is not a readable Parquet file"
UNWRITABLE: Final = "the Parquet file cannot be written"
WHOLE: Final = ("prompt_tokens", "output_tokens", "at_ps", "turn", "delay_ps", "max_tokens", "shared_prefix_tokens")

Column = Sequence[Any]


def _peek(path: pathlib.Path, size: int, from_end: bool = False) -> bytes:
    try:
        with path.open("rb") as file:
            if from_end:
                file.seek(max(0, file.seek(0, 2) - size))
            return file.read(size)
    except OSError:
        return b""


def is_parquet(path: pathlib.Path) -> bool:
    return _peek(path, len(MAGIC)) == MAGIC


def is_own(path: pathlib.Path, mark: str) -> bool:
    """Return whether the footer of a Parquet file contains Headway's header."""
    return mark.encode() in _peek(path, TAIL, from_end=True)


def header(path: pathlib.Path, mark: str) -> bytes:
    text = _backend(path).metadata(path).get(mark)
    if text is None:
        raise HeadwayError(f"{path.name}: is not a Headway trace: its metadata has no {mark}.")
    return text.encode()


def records(path: pathlib.Path) -> Iterator[tuple[str, Record]]:
    at = 0
    for columns in _backend(path).groups(path):
        for values in zip(*columns, strict=True):
            at += 1
            place = f"{path.name} row {at}"
            yield place, _record(dict(zip(COLUMNS, values, strict=True)), place)


def _record(values: dict[str, Any], place: str) -> Record:
    if values["blocks"] is not None:
        values["blocks"] = [(run["first"], run["count"]) for run in values["blocks"]]
    values["after"] = tuple(values["after"] or ())
    try:
        values["extra"] = msgspec.json.decode(values["extra"] or "{}")
        return msgspec.convert(values, Record)
    except (msgspec.DecodeError, RecursionError, TypeError) as error:
        raise HeadwayError(f"{place}: {one_line(error, kind=False)}; a row is one request.") from None


def column_names(path: pathlib.Path) -> list[str]:
    """Return the names of the columns of any Parquet file."""
    return _backend(path).names(path)


def groups(path: pathlib.Path, names: Sequence[str]) -> Iterator[list[Column]]:
    """Yield the values of these columns of any Parquet file, for some rows at a time."""
    return _backend(path).any_groups(path, names)


def write(path: pathlib.Path, mark: str, head: bytes, records: Iterable[Record]) -> None:
    def groups() -> Iterator[list[Column]]:
        source = iter(records)
        while rows := list(islice(source, ROWS)):
            yield list(zip(*map(_values, rows), strict=True))

    _backend(path).write(path, {mark: head.decode()}, groups())


def _values(record: Record) -> tuple[Any, ...]:
    values = dict(zip(COLUMNS, astuple(record), strict=True))
    if record.blocks is not None:
        values["blocks"] = [{"first": first % IDS, "count": count} for first, count in record.blocks]
    values["after"] = list(record.after)
    values["extra"] = msgspec.json.encode(record.extra, order="sorted").decode()
    return tuple(values.values())


def _backend(path: pathlib.Path) -> _Polars | _Arrow:
    try:
        return _Polars(import_module("polars"))
    except ImportError:
        pass
    try:
        return _Arrow(import_module("pyarrow"), import_module("pyarrow.parquet"))
    except ImportError:
        raise missing_extra(path.name, "polars or pyarrow", "data", "use JSONL instead of Parquet") from None


@contextmanager
def _failing_as(wrong: str, path: pathlib.Path, errors: tuple[type[BaseException], ...]) -> Iterator[None]:
    """Convert errors of the library to a HeadwayError that names the file."""
    try:
        yield
    except (HeadwayError, GeneratorExit):
        raise
    except errors as error:
        why = reason(error) if isinstance(error, OSError) else one_line(error)
        raise HeadwayError(f"{path.name}: {wrong} ({why}).") from None


class _Polars:
    def __init__(self, library: Any) -> None:
        self._pl = library
        self._errors = (Exception, library.exceptions.PanicException)
        text, whole = library.String, library.Int64
        runs = library.List(library.Struct({"first": library.UInt64, "count": whole}))
        others = {"blocks": runs, "after": library.List(text)}
        self._schema = {name: others.get(name, whole if name in WHOLE else text) for name in COLUMNS}

    def metadata(self, path: pathlib.Path) -> dict[str, str]:
        with _failing_as(UNREADABLE, path, self._errors):
            return dict(self._pl.read_parquet_metadata(path))

    def names(self, path: pathlib.Path) -> list[str]:
        with _failing_as(UNREADABLE, path, self._errors):
            return list(self._pl.read_parquet_schema(path))

    def groups(self, path: pathlib.Path) -> Iterator[list[Column]]:
        return self.any_groups(path, COLUMNS, self._schema)

    def any_groups(self, path: pathlib.Path, names: Sequence[str], schema: Any = None) -> Iterator[list[Column]]:
        at = 0
        while True:
            with _failing_as(UNREADABLE, path, self._errors):
                piece = self._pl.scan_parquet(path).slice(at, ROWS).select(list(dict.fromkeys(names)))
                frame = (piece if schema is None else piece.cast(schema)).collect()
                columns = [frame[name].to_list() for name in names]
            if not columns[0]:
                return
            yield columns
            at += len(columns[0])

    def write(self, path: pathlib.Path, metadata: dict[str, str], groups: Iterator[list[Column]]) -> None:
        """Write one temporary file per row group, and then merge the files, because polars streams only from files."""
        pl = self._pl
        parts = []
        with (
            tempfile.TemporaryDirectory(prefix="headway-") as folder,
            _failing_as(UNWRITABLE, path, self._errors),
        ):
            for number, columns in enumerate(groups):
                parts.append(pathlib.Path(folder) / f"{number:08d}.parquet")
                frame = pl.DataFrame(dict(zip(COLUMNS, columns, strict=True)), schema=self._schema)
                frame.write_parquet(parts[-1])
            if parts:
                pl.scan_parquet(parts).sink_parquet(path, metadata=metadata, row_group_size=ROWS)
            else:
                pl.DataFrame(schema=self._schema).write_parquet(path, metadata=metadata)


class _Arrow:
    def __init__(self, library: Any, parquet: Any) -> None:
        self._pa = library
        self._parquet = parquet
        text, whole = library.string(), library.int64()
        runs = library.list_(library.struct([("first", library.uint64()), ("count", whole)]))
        others = {"blocks": runs, "after": library.list_(text)}
        self._schema = library.schema([(name, others.get(name, whole if name in WHOLE else text)) for name in COLUMNS])

    def metadata(self, path: pathlib.Path) -> dict[str, str]:
        with _failing_as(UNREADABLE, path, (Exception,)):
            metadata = self._parquet.read_schema(path).metadata or {}
            return {name.decode(): value.decode() for name, value in metadata.items()}

    def names(self, path: pathlib.Path) -> list[str]:
        with _failing_as(UNREADABLE, path, (Exception,)):
            return list(self._parquet.read_schema(path).names)

    def groups(self, path: pathlib.Path) -> Iterator[list[Column]]:
        return self.any_groups(path, COLUMNS, self._schema)

    def any_groups(self, path: pathlib.Path, names: Sequence[str], schema: Any = None) -> Iterator[list[Column]]:
        with _failing_as(UNREADABLE, path, (Exception,)), self._parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS, columns=list(dict.fromkeys(names))):
                columns = {name: batch.column(name) for name in names}
                if schema is not None:
                    columns = {name: column.cast(schema.field(name).type) for name, column in columns.items()}
                yield [columns[name].to_pylist() for name in names]

    def write(self, path: pathlib.Path, metadata: dict[str, str], groups: Iterator[list[Column]]) -> None:
        schema = self._schema.with_metadata(metadata)
        with (
            _failing_as(UNWRITABLE, path, (Exception,)),
            self._parquet.ParquetWriter(path, schema) as file,
        ):
            for columns in groups:
                arrays = [self._pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
                file.write_table(self._pa.Table.from_arrays(arrays, schema=schema), row_group_size=ROWS)
