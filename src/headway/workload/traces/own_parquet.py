"""Headway's own format as Parquet, by `polars` or `pyarrow`, whichever is installed; a row group at a time."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from headway.config.wording import one_line
from headway.errors import HeadwayError
from headway.workload.traces.record import Record
from headway.workload.traces.source import reason

MAGIC: Final = b"PAR1"
ROWS: Final = 1 << 16  # of a row group
TAIL: Final = 1 << 20  # bytes in which a footer is looked for
COLUMNS: Final = Record.__struct_fields__
MISSING: Final = "Parquet needs polars or pyarrow; install headway[data], or use .jsonl.gz, which needs nothing"
WHOLE: Final = ("prompt_tokens", "output_tokens", "at_ps", "turn", "delay_ps", "max_tokens", "shared_prefix_tokens")

IDS: Final = 1 << 64  # ids are folded into that many, as they are wherever they are used

Column = Sequence[Any]


def is_parquet(path: pathlib.Path) -> bool:
    """By content."""
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError:
        return False


def is_own(path: pathlib.Path, mark: str) -> bool:
    """Whether the footer names our header."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            return mark.encode() in file.read()
    except OSError:
        return False


def header(path: pathlib.Path, mark: str) -> bytes:
    found = _backend(path).metadata(path).get(mark)
    if found is None:
        raise HeadwayError(f"{path.name}: this Parquet file has no {mark} in its metadata, so it is none of Headway's.")
    return found.encode()


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


def write(path: pathlib.Path, mark: str, head: bytes, found: Iterable[Record]) -> None:
    backend = _backend(path)

    def groups() -> Iterator[list[Column]]:
        source = iter(found)
        while rows := list(islice(source, ROWS)):
            yield list(zip(*map(_values, rows), strict=True))

    backend.write(path, {mark: head.decode()}, groups())


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
        raise HeadwayError(f"{path.name}: {MISSING}.") from None


def _unreadable(path: pathlib.Path, error: BaseException) -> HeadwayError:
    why = reason(error) if isinstance(error, OSError) else one_line(error)
    return HeadwayError(f"{path.name}: this is not a Parquet file that can be read ({why}).")


def _unwritable(path: pathlib.Path, error: BaseException) -> HeadwayError:
    why = reason(error) if isinstance(error, OSError) else one_line(error)
    return HeadwayError(f"{path.name}: the Parquet file cannot be written ({why}).")


class _Polars:
    """The library, and how it reads and writes."""

    def __init__(self, library: Any) -> None:
        self._pl = library
        self._errors = (Exception, library.exceptions.PanicException)
        text, whole = library.String, library.Int64
        runs = library.List(library.Struct({"first": library.UInt64, "count": whole}))
        others = {"blocks": runs, "after": library.List(text)}
        self._schema = {name: others.get(name, whole if name in WHOLE else text) for name in COLUMNS}

    def metadata(self, path: pathlib.Path) -> dict[str, str]:
        try:
            return dict(self._pl.read_parquet_metadata(path))
        except self._errors as error:
            raise _unreadable(path, error) from None

    def groups(self, path: pathlib.Path) -> Iterator[list[Column]]:
        at = 0
        while True:
            try:
                frame = self._pl.scan_parquet(path).slice(at, ROWS).select(COLUMNS).cast(self._schema).collect()
                columns = [frame[name].to_list() for name in COLUMNS]
            except self._errors as error:
                raise _unreadable(path, error) from None
            if not columns[0]:
                return
            yield columns
            at += len(columns[0])

    def write(self, path: pathlib.Path, metadata: dict[str, str], groups: Iterator[list[Column]]) -> None:
        """A file a row group first: polars has no writer that is fed, but one that streams from files."""
        pl = self._pl
        with tempfile.TemporaryDirectory(prefix="headway-") as folder:
            parts = []
            try:
                for number, columns in enumerate(groups):
                    parts.append(pathlib.Path(folder) / f"{number:08d}.parquet")
                    frame = pl.DataFrame(dict(zip(COLUMNS, columns, strict=True)), schema=self._schema)
                    frame.write_parquet(parts[-1])
                if not parts:
                    pl.DataFrame(schema=self._schema).write_parquet(path, metadata=metadata)
                    return
                pl.scan_parquet(parts).sink_parquet(path, metadata=metadata, row_group_size=ROWS)
            except HeadwayError:
                raise
            except self._errors as error:
                raise _unwritable(path, error) from None


class _Arrow:
    """As `_Polars`."""

    def __init__(self, library: Any, parquet: Any) -> None:
        self._pa = library
        self._parquet = parquet
        text, whole = library.string(), library.int64()
        runs = library.list_(library.struct([("first", library.uint64()), ("count", whole)]))
        others = {"blocks": runs, "after": library.list_(text)}
        self._schema = library.schema([(name, others.get(name, whole if name in WHOLE else text)) for name in COLUMNS])

    def metadata(self, path: pathlib.Path) -> dict[str, str]:
        try:
            found = self._parquet.read_schema(path).metadata or {}
            return {name.decode(): value.decode() for name, value in found.items()}
        except Exception as error:
            raise _unreadable(path, error) from None

    def groups(self, path: pathlib.Path) -> Iterator[list[Column]]:
        try:
            with self._parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(ROWS, columns=list(COLUMNS)):
                    yield [batch.column(name).cast(self._schema.field(name).type).to_pylist() for name in COLUMNS]
        except (HeadwayError, GeneratorExit):
            raise
        except Exception as error:
            raise _unreadable(path, error) from None

    def write(self, path: pathlib.Path, metadata: dict[str, str], groups: Iterator[list[Column]]) -> None:
        schema = self._schema.with_metadata(metadata)
        try:
            with self._parquet.ParquetWriter(path, schema) as file:
                for columns in groups:
                    arrays = [self._pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
                    file.write_table(self._pa.Table.from_arrays(arrays, schema=schema), row_group_size=ROWS)
        except HeadwayError:
            raise
        except Exception as error:
            raise _unwritable(path, error) from None
