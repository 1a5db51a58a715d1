"""A cache of the figures of earlier simulation runs, by policies, scenario and seed. It is in memory and, optionally,
in a folder.

Each record is one file, which is replaced atomically. Any number of processes may share a folder: a reader sees either
a complete record or no record, and two processes that write the same record write the same bytes.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from pathlib import Path
from threading import Lock, get_ident
from typing import Final

import msgspec
from msgspec import Struct

from headway import __version__
from headway.errors import HeadwayError

FORMAT: Final = 1
MOST: Final = 50_000  # maximum number of records in memory; the oldest record is evicted first


class Key(Struct, frozen=True):
    policies: str  # the key of a bundle's policies, from `policies_key`
    scenario: str  # the key of a case
    seed: int
    scope: str = ""  # stages of the suggestions in the summary, if the search limits them

    @property
    def file(self) -> str:
        scope = f"-{self.scope}" if self.scope else ""
        return f"{self.policies[:2]}/{self.policies}-{self.scenario}-{self.seed}{scope}.json"


class Record(Struct, frozen=True, omit_defaults=True):
    """The result of a run: its figures, or the candidate's error. If a summary in words was requested, the record has
    it too."""

    figures: dict[str, float | None] = {}
    error: str | None = None
    told: str | None = None  # summary of the run in words, if it was requested

    def has(self, figures: tuple[str, ...], words: bool) -> bool:
        """Return whether the record has these figures and, if `words` is true, the summary in words. For a record with
        an error, return True."""
        if self.error is not None:
            return True
        return all(path in self.figures for path in figures) and (self.told is not None or not words)

    def merge_older(self, older: Record | None) -> Record:
        """Return this record with its missing entries copied from an older record of the same run."""
        if older is None or self.error is not None or older.error is not None:
            return self
        return Record({**older.figures, **self.figures}, None, self.told if self.told is not None else older.told)


class _File(Struct):
    format: int
    headway: str
    record: Record


class Cache:
    """A store of records by key. Several threads may use it, and several processes may share its folder."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self.hits = self.misses = 0
        self._records: OrderedDict[Key, Record] = OrderedDict()
        self._lock = Lock()
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise HeadwayError(f"{self.folder}: cannot be written ({error.strerror or error}).") from None

    def find(self, key: Key, figures: tuple[str, ...] = (), words: bool = False) -> Record | None:
        """Return the record of a run. If the record is missing, or lacks one of these figures or the summary that
        `words` requires, return None."""
        record = self._records.get(key)
        if record is None or not record.has(figures, words):
            stored = self._read(key)
            if stored is not None:
                record = stored.merge_older(record)
                self._remember(key, record)
        if record is None or not record.has(figures, words):
            self.misses += 1
            return None
        self.hits += 1
        return record

    def keep(self, key: Key, record: Record) -> None:
        record = record.merge_older(self._read(key) or self._records.get(key))
        self._remember(key, record)
        if self.folder is not None:
            content = msgspec.json.encode(_File(FORMAT, __version__, record), order="sorted")
            replace_file(self.folder / key.file, content)

    def _remember(self, key: Key, record: Record) -> None:
        with self._lock:
            self._records.pop(key, None)
            self._records[key] = record
            while len(self._records) > MOST:
                self._records.popitem(last=False)

    def _read(self, key: Key) -> Record | None:
        """Return the record in the folder. If there is no record, or another version of Headway wrote the record,
        return None."""
        if self.folder is None:
            return None
        try:
            stored = msgspec.json.decode((self.folder / key.file).read_bytes(), type=_File)
        except (OSError, msgspec.DecodeError):
            return None
        return stored.record if (stored.format, stored.headway) == (FORMAT, __version__) else None


def replace_file(file: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees the old content or the new content, never a part of it."""
    part = file.with_name(f"{file.stem}.{os.getpid()}-{get_ident()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise HeadwayError(f"{file}: cannot be written ({error.strerror or error}).") from None
