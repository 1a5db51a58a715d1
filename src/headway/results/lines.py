"""JSON lines of a run folder, written and read in batches to limit memory."""

from __future__ import annotations

import mmap
import os
import re
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice, starmap
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import structs

from headway.errors import HeadwayError
from headway.results.decisions import Decision
from headway.results.table import COLUMNS, Coded, Row, Table

BATCH: Final = 4096  # number of lines that are encoded at a time
STRETCH: Final = 1 << 23  # approximate number of bytes that are read at a time
Line = TypeVar("Line")
KINDS: Final = {"int": "q", "float": "d"}  # type of a field -> type code of the array for its column


def clean(value: Any) -> Any:
    """Replace invalid Unicode (such as in a file name of another encoding) with `?`, in strings at any depth."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def write_lines(file: Path, lines: Iterable[msgspec.Struct]) -> None:
    encoder = msgspec.json.Encoder()
    rest = iter(lines)
    with file.open("wb") as out:
        while batch := list(islice(rest, BATCH)):
            try:
                out.write(encoder.encode_lines(batch))
            except UnicodeEncodeError:  # a string, such as a policy's reason, is not valid Unicode
                out.write(encoder.encode_lines([clean(msgspec.to_builtins(line)) for line in batch]))


def write_requests(file: Path, table: Table) -> None:
    write_lines(file, starmap(Row, zip(*map(table.column, COLUMNS), strict=True)))


def read_requests(file: Path) -> Table:
    decoder = msgspec.json.Decoder(Row)
    numbers: dict[str, array[Any]] = {}
    words: dict[str, dict[str, int]] = {}
    for field in structs.fields(Row):
        kind = KINDS.get(field.type.__name__)
        numbers[field.name] = array(kind or "i")
        if kind is None:
            words[field.name] = {}
    for stretch in _stretches(file):
        rows = decoder.decode_lines(stretch)
        for name, column in numbers.items():
            values = [getattr(row, name) for row in rows]
            if name in words:
                known = words[name]
                values = [known.setdefault(word, len(known)) for word in values]
            column.fromlist(values)
    columns: dict[str, Any] = {name: numbers[name] for name in COLUMNS}
    columns.update({name: Coded(numbers[name], list(known)) for name, known in words.items()})
    return Table(columns)


def _stretches(file: Path) -> Iterator[bytes]:
    """Yield a file in pieces of some megabytes. Each piece consists of complete lines."""
    with file.open("rb") as source:
        while lines := source.readlines(STRETCH):
            yield b"".join(lines)


class Choice(msgspec.Struct, gc=False):
    """The fields of a decision's line that `DecisionFile.choices` reads."""

    request: int
    candidates: list[int]


class DecisionFile:
    """The decisions in a file. A decision is decoded on access."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with file.open("rb") as source:
            empty = not os.fstat(source.fileno()).st_size  # an empty file cannot be mapped
            self.bytes = b"" if empty else mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
        self.starts = array("q", [0])
        self.starts.extend(newline.end() for newline in re.finditer(b"\n", self.bytes))
        self.decoder = msgspec.json.Decoder(Decision)
        self.choice = msgspec.json.Decoder(Choice)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, place: int, /) -> Decision:
        return self._read(place, self.decoder)

    def __iter__(self) -> Iterator[Decision]:
        return map(self.__getitem__, range(len(self)))

    def choices(self) -> Iterator[tuple[int, int]]:
        for place in range(len(self)):
            choice = self._read(place, self.choice)
            yield choice.request, len(choice.candidates)

    def _read(self, place: int, decoder: msgspec.json.Decoder[Line]) -> Line:
        try:
            return decoder.decode(self.bytes[self.starts[place] : self.starts[place + 1] - 1])
        except msgspec.DecodeError as error:
            raise HeadwayError(f"{self.file}: line {place + 1} is not a decision: {error}.") from None
