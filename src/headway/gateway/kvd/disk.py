"""The disk tier: an index of the blocks in a folder, least recently used first. Threads read and write the files of
the blocks."""

import asyncio
import errno
import fcntl
import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headway.errors import HeadwayError
from headway.gateway.kvd import block_file
from headway.gateway.kvd.channel import Buffer

MOST_BLOCKS: Final = 1_000_000  # maximum number of blocks in a folder, because the index of all blocks is in memory
READERS: Final = 4
COUNTS: Final = ("written", "dropped", "dropped_busy", "write_failures", "damaged")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True, eq=False)
class Entry:
    number: int
    size: int
    room: int
    data: Buffer | None  # the block until it has been written to disk; then None
    reading: asyncio.Future[bytearray] | None = None


class Disk:
    """The index of the blocks on disk. Use it only on the event loop. `drop` removes a block from the index at once,
    and a thread deletes the block's file later."""

    def __init__(self, folder: Path, limit: int, unwritten_limit: int, most: int = MOST_BLOCKS) -> None:
        self.limit = limit
        self.used = 0
        self.unwritten = 0  # size of the blocks in memory that wait to be written, in bytes
        self.unwritten_limit = unwritten_limit
        self.entries: OrderedDict[bytes, Entry] = OrderedDict()
        self.written = self.dropped = self.dropped_busy = self.write_failures = self.damaged = 0
        self._folder = folder
        self._most = most
        # There is only one writing thread, so that a removal runs before the write for which it makes room.
        self._writer = ThreadPoolExecutor(1, "kvd-write")
        self._readers = ThreadPoolExecutor(READERS, "kvd-read")
        self._under_way: set[asyncio.Future[None]] = set()
        self._lock = _lock(folder)
        self._number = 0
        for file in block_file.scan(folder, most):
            self._number = max(self._number, file.number)
            self._enter(file.key, Entry(file.number, file.size, block_file.room(file.key, file.size), None))
        self._shrink(0, most)

    def figures(self) -> dict[str, int]:
        return {
            "bytes": self.used,
            "limit": self.limit,
            "blocks": len(self.entries),
            "unwritten_bytes": self.unwritten,
            **{name: getattr(self, name) for name in COUNTS},
        }

    def add(self, key: bytes, data: Buffer) -> None:
        """Add a block that does not fit in memory. It is readable immediately; a thread writes it to disk."""
        if key in self.entries:
            self.entries.move_to_end(key)  # the index has the block already, so do not write it again
            return
        room = block_file.room(key, len(data))
        if room > self.limit:
            self.dropped += 1
            return
        if self.unwritten + room > self.unwritten_limit:
            self.dropped_busy += 1
            return
        self._shrink(room, self._most - 1)
        self._number += 1
        entry = Entry(self._number, len(data), room, data)
        self._enter(key, entry)
        self.unwritten += room
        file = block_file.path(self._folder, key, entry.number)
        written = self._in_turn(block_file.write, file, key, data)
        written.add_done_callback(lambda written: self._on_written(key, entry, written))

    async def read(self, key: bytes) -> Buffer | None:
        """Return a block; None if the block is missing or damaged. Drop a damaged block."""
        entry = self.entries.get(key)
        if entry is None or entry.data is not None:
            return None if entry is None else entry.data
        if entry.reading is None:
            file = block_file.path(self._folder, key, entry.number)
            loop = asyncio.get_running_loop()
            entry.reading = loop.run_in_executor(self._readers, block_file.read, file, key, entry.size)
            entry.reading.add_done_callback(lambda reading: _forget(entry, reading))
        try:
            return await asyncio.shield(entry.reading)
        except (OSError, block_file.Damaged):
            if self.entries.get(key) is entry:
                self.damaged += 1
                self.drop(key)
            return None

    def would_wait(self, data: Buffer) -> bool:
        """Return whether this block would have to wait, because too many other blocks in memory wait to be written."""
        return self.unwritten + len(data) + 2 * block_file.PAGE > self.unwritten_limit

    def drop(self, key: bytes) -> None:
        entry = self.entries.pop(key)
        self.used -= entry.room
        if entry.data is None:
            self._remove(key, entry)

    async def settle(self) -> None:
        """Wait until all writes and removals have been carried out."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def close(self) -> None:
        await self.settle()
        self._writer.shutdown()
        self._readers.shutdown()
        os.close(self._lock)

    def _enter(self, key: bytes, entry: Entry) -> None:
        self.entries[key] = entry
        self.used += entry.room

    def _shrink(self, room: int, blocks: int) -> None:
        """Drop the oldest blocks until `room` bytes are free and at most `blocks` blocks remain."""
        while self.entries and (self.used + room > self.limit or len(self.entries) > blocks):
            self.dropped += 1
            self.drop(next(iter(self.entries)))

    def _on_written(self, key: bytes, entry: Entry, written: asyncio.Future[None]) -> None:
        entry.data = None
        self.unwritten -= entry.room
        error = written.exception()
        current = self.entries.get(key) is entry
        if error is None:
            self.written += 1
            if not current:
                self._remove(key, entry)
            return
        self.write_failures += 1
        if current:
            del self.entries[key]
            self.used -= entry.room
        if isinstance(error, OSError) and error.errno in _FULL:
            self._free(entry.room)

    def _free(self, room: int) -> None:
        """Drop the oldest written blocks to free `room` bytes, because the disk is full before the limit is reached."""
        target = self.used - room
        for key in [key for key, entry in self.entries.items() if entry.data is None]:
            if self.used <= target:
                return
            self.dropped += 1
            self.drop(key)

    def _remove(self, key: bytes, entry: Entry) -> None:
        self._in_turn(block_file.remove, block_file.path(self._folder, key, entry.number))

    def _in_turn(self, work: Callable[..., None], *arguments: object) -> asyncio.Future[None]:
        task = asyncio.get_running_loop().run_in_executor(self._writer, work, *arguments)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task


def _forget(entry: Entry, reading: asyncio.Future[bytearray]) -> None:
    entry.reading = None
    if not reading.cancelled():
        reading.exception()  # marks the exception as retrieved; waiting callers of `read` get it too


def _lock(folder: Path) -> int:
    """Lock a folder for this daemon. The lock lasts until the process ends."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise HeadwayError(f"disk.folder: {folder} cannot be used ({error.strerror}).") from None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        raise HeadwayError(
            f"disk.folder: {folder} is in use by another daemon; give each daemon its own folder."
        ) from None
    return opened
