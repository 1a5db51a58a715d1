"""A block on disk: one file, written as a whole or not at all, and checked when it is read.

    "HKB1", length of the key (1 byte), 3 zero bytes, length of the block (8 bytes), xxh3 of key and block (8 bytes),
    key, block

A file's name is its key and a number that is never used twice, so a block that is put again is another file.
"""

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
    """A file that differs from what was written."""


class StoredFile(NamedTuple):
    changed_ns: int
    number: int
    key: bytes
    file_bytes: int


def room(key: bytes, size: int) -> int:
    """Return the bytes that a block takes on disk: whole pages."""
    return -(-(_HEADER.size + len(key) + size) // PAGE) * PAGE


def size_of(key: bytes, file_bytes: int) -> int:
    """Return the size of the block in a file of so many bytes; below 1 if it holds none."""
    return file_bytes - _HEADER.size - len(key)


def path(folder: Path, key: bytes, number: int) -> Path:
    return folder / _shelf(key) / f"{key.hex()}-{number}.kv"


def write(file: Path, key: bytes, data: Buffer) -> None:
    """Write under another name, then rename. Not synced: after a power cut, the checksum shows a damaged file."""
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
    os.utime(file)  # a restarted daemon orders blocks by the age of their files
    return data


def remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError:
        return  # the next start finds it again


def scan(folder: Path, most: int) -> list[StoredFile]:
    """Return the newest `most` blocks of a folder, oldest first, and remove what else a daemon left there: unfinished
    files, older files of a key, blocks beyond that number. Files of others stay."""
    newest: dict[bytes, StoredFile] = {}
    for file in _files(folder):
        older, newer = sorted((newest.get(file.key, file), file), key=lambda each: each.number)
        newest[file.key] = newer
        if older is not newer:
            remove(path(folder, older.key, older.number))
    files = sorted(newest.values())
    surplus = max(0, len(files) - most)
    for file in files[:surplus]:
        remove(path(folder, file.key, file.number))
    return files[surplus:]


def _files(folder: Path) -> Iterator[StoredFile]:
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
                yield StoredFile(about.st_mtime_ns, int(match[2]), key, about.st_size)


def _shelf(key: bytes) -> str:
    return f"{xxhash.xxh3_64_intdigest(key) % 256:02x}"


def _checksum(key: bytes, data: Buffer) -> int:
    digest = xxhash.xxh3_64(key)
    digest.update(data)
    return digest.intdigest()
