"""Helpers that the writers of trace formats share: they open the file, and list the fields that a format cannot
express."""

import gzip
import io
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final, TextIO, cast

from headway.errors import HeadwayError
from headway.workload.traces.record import Info, Record
from headway.workload.traces.source import reason

FIELDS: Final = {
    "blocks": "the blocks of prompts",
    "session": "sessions",
    "after": "which requests wait for which",
    "delay_ps": "delays",
    "id": "the ids of requests",
    "model": "models",
    "tenant": "tenants",
    "slo_class": "SLO classes",
    "kind": "kinds of requests",
    "max_tokens": "max_tokens of clients",
    "shared_prefix_tokens": "declared shared prefixes",
    "extra": "other fields of the source",
}
LEVEL: Final = 6  # the default of gzip: files are about 6 % larger than with level 9, in half the time
BUFFER: Final = 1 << 16  # number of bytes to compress at once


@contextmanager
def open_text(path: pathlib.Path) -> Iterator[TextIO]:
    """Open a new text file as `open_bytes` does."""
    with open_bytes(path) as file, io.TextIOWrapper(file, "utf-8", newline="\n") as text:
        yield text


@contextmanager
def open_bytes(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Open a new file. If its name ends in .gz, compress it with gzip; the same content gives the same bytes."""
    try:
        with path.open("wb") as raw:
            if path.suffix != ".gz":
                yield raw
                return
            packed = gzip.GzipFile("", "wb", LEVEL, raw, mtime=0)
            with io.BufferedWriter(cast(io.RawIOBase, packed), BUFFER) as file:
                yield file
    except OSError as error:
        raise HeadwayError(f"{path.name}: the file cannot be written ({reason(error)}).") from None


class Losses:
    """Collects the fields that records have but that a format cannot express. `keeps` names the fields that the format
    can express."""

    def __init__(self, *keeps: str) -> None:
        self._watched = {name: phrase for name, phrase in FIELDS.items() if name not in keeps}
        self._phrases: dict[str, None] = {}
        self._records = 0

    def see(self, record: Record) -> None:
        self._records += 1
        for name in [name for name in self._watched if getattr(record, name)]:
            self._phrases[self._watched.pop(name)] = None

    def add(self, phrase: str) -> None:
        self._phrases[phrase] = None

    def stamp(self, info: Info, record: Record, path: pathlib.Path, from_first: bool = False) -> int:
        """Return the arrival time of the latest record. Raise if the record has no arrival time.

        Set `from_first` for formats in which the first request has time 0.
        """
        if record.at_ps is None or info.clock != "trace":
            wrong = f"request {self._records} of the source has no arrival time, only one within its session"
            raise HeadwayError(f"{path.name}: this format needs arrival times, but {wrong}. Choose another format.")
        if from_first and self._records == 1 and record.at_ps:
            self.add("the time before the first request")
        return record.at_ps

    def round_time(self, time_ps: int, unit_ps: int, unit: str) -> int:
        """Convert a time to whole units. Halves are rounded up."""
        units = (2 * time_ps + unit_ps) // (2 * unit_ps)
        if units * unit_ps != time_ps:
            self.add(f"times finer than {unit}")
        return units

    def phrases(self) -> list[str]:
        return list(self._phrases)
