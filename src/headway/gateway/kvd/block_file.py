"""A block on disk. Each block has one file, which is written completely or not at all, and verified when read.

    "HKB1", length of the key (1 byte), 3 zero bytes, length of the block (8 bytes), xxh3 of key and block (8 bytes),
    key, block

The file name consists of the key and a number. No number is used twice, so putting a block again creates another file.
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
    """The content of the file differs from what was written."""


class StoredFile(NamedTuple):
    changed_ns: int
    number: int
    key: bytes
    size: int  # size of the block, in bytes


def room(key: bytes, size: int) -> int:
    """Return the number of bytes that a block needs on disk, in whole pages."""
    return -(-(_HEADER.size + len(key) + size) // PAGE) * PAGE


def path(folder: Path, key: bytes, number: int) -> Path:
    return folder / _shelf(key) / f"{key.hex()}-{number}.kv"


def write(file: Path, key: bytes, data: Buffer) -> None:
    """Write a temporary file, then rename it. Skip fsync, because the checksum reveals damage after a power failure."""
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
    with file.open("rb") as stream:
        head = stream.read(_HEADER.size + len(key))
        data = bytearray(size)
        if stream.readinto(data) != size or stream.read(1):
            raise Damaged(f"{file}: wrong length")
    if head != _HEADER.pack(_MAGIC, len(key), size, _checksum(key, data)) + key:
        raise Damaged(f"{file}: wrong header or checksum")
    os.utime(file)  # mark the block as used now: a restarted daemon orders blocks by the age of their files
    return data


def remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError:
        return  # ignore the error: the daemon tries to remove the file again at its next start


def scan(folder: Path, most: int) -> list[StoredFile]:
    """Return the newest `most` blocks of a folder, oldest first. Remove the other files that a daemon left there:
    unfinished and empty files, older files of the same key, and older blocks. Keep foreign files."""
    files = list(_files(folder))
    newest = {file.key: file for file in sorted(files, key=lambda file: file.number)}
    usable = sorted(file for file in newest.values() if file.size > 0)
    usable = usable[max(0, len(usable) - most) :]
    for file in set(files).difference(usable):
        remove(path(folder, file.key, file.number))
    return usable


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
                stat = entry.stat(follow_symlinks=False)
                yield StoredFile(stat.st_mtime_ns, int(match[2]), key, stat.st_size - _HEADER.size - len(key))


def _shelf(key: bytes) -> str:
    return f"{xxhash.xxh3_64_intdigest(key) % 256:02x}"


def _checksum(key: bytes, data: Buffer) -> int:
    digest = xxhash.xxh3_64(key)
    digest.update(data)
    return digest.intdigest()
