"""A block on disk: one file that is there whole or not at all, and is checked when it is read.

    "HKB1", length of the key (1 byte), 3 zero bytes, length of the block (8 bytes), xxh3 of key and block (8 bytes),
    key, block

A file is called after its key and a number that is never used twice, so that a block put anew is another file.
"""

from __future__ import annotations

import heapq
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import xxhash

from headway.gateway.kvd.channel import Buffer
from headway.gateway.kvd.frames import LONGEST_KEY

_HEADER: Final = struct.Struct(">4sB3xQQ")
_MAGIC: Final = b"HKB1"
_NAME: Final = re.compile(rf"((?:[0-9a-f]{{2}}){{1,{LONGEST_KEY}}})-([0-9]{{1,18}})(\.kv|\.part)")
_UNFINISHED: Final = ".part"
PAGE: Final = 4096


class Damaged(Exception):
    """A file that is not what was written."""


class Found(NamedTuple):
    changed_ns: int
    number: int
    key: bytes
    file_bytes: int


def room(key: bytes, size: int) -> int:
    """Bytes that a block takes on disk: whole pages."""
    return -(-(_HEADER.size + len(key) + size) // PAGE) * PAGE


def size_of(key: bytes, file_bytes: int) -> int:
    """Of the block in a file of so many bytes; below 1 if it holds none."""
    return file_bytes - _HEADER.size - len(key)


def path(folder: Path, key: bytes, number: int) -> Path:
    return folder / _shelf(key) / f"{key.hex()}-{number}.kv"


def write(file: Path, key: bytes, data: Buffer) -> None:
    """Under another name first. Not synced: after a power cut, the checksum tells what did not arrive."""
    unfinished = file.with_suffix(_UNFINISHED)
    head = _HEADER.pack(_MAGIC, len(key), len(data), _checksum(key, data)) + key
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        opened = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write_all(opened, head)
            _write_all(opened, data)
        finally:
            os.close(opened)
        unfinished.replace(file)
    except OSError:
        remove(unfinished)
        raise


def _write_all(opened: int, data: Buffer) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(opened, left) :]


def read(file: Path, key: bytes, size: int) -> bytearray:
    with file.open("rb", buffering=0) as stream:
        head = stream.read(_HEADER.size + len(key))
        data = bytearray(size)
        view, filled = memoryview(data), 0
        while filled < size and (count := stream.readinto(view[filled:])):
            filled += count
        end = stream.read(1)
    if len(head) != _HEADER.size + len(key) or filled != size or end:
        raise Damaged(f"{file}: has another length than was written")
    if head != _HEADER.pack(_MAGIC, len(key), size, _checksum(key, data)) + key:
        raise Damaged(f"{file}: its checksum is wrong")
    os.utime(file)  # a daemon that starts anew goes by the age of files
    return data


def remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError:
        return  # a file that cannot be removed is found again at the next start


def scan(folder: Path, most: int) -> list[Found]:
    """The blocks of a folder, oldest first: the newest `most` of them. What else of ours lies there is removed: files
    that were never finished, older files of a key, blocks beyond that number. Files of others are let be."""
    newest: dict[bytes, Found] = {}
    for found in _files(folder):
        known = newest.get(found.key)
        older = found if known is None or found.number < known.number else known
        if known is not None:
            remove(path(folder, older.key, older.number))
        if known is None or older is known:
            newest[found.key] = found
    kept = heapq.nlargest(most, newest.values())
    if len(kept) < len(newest):
        names = {found.key for found in kept}
        for found in newest.values():
            if found.key not in names:
                remove(path(folder, found.key, found.number))
    return kept[::-1]


def _files(folder: Path) -> Iterator[Found]:
    for shelf in (f"{number:02x}" for number in range(256)):
        try:
            entries = os.scandir(folder / shelf)
        except FileNotFoundError:
            continue
        with entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is None or not entry.is_file(follow_symlinks=False):
                    continue
                key = bytes.fromhex(match[1])
                if _shelf(key) != shelf:
                    continue
                if match[3] == _UNFINISHED:
                    remove(Path(entry.path))
                    continue
                about = entry.stat(follow_symlinks=False)
                yield Found(about.st_mtime_ns, int(match[2]), key, about.st_size)


def _shelf(key: bytes) -> str:
    return f"{xxhash.xxh3_64_intdigest(key) % 256:02x}"


def _checksum(key: bytes, data: Buffer) -> int:
    digest = xxhash.xxh3_64(key)
    digest.update(data)
    return digest.intdigest()
