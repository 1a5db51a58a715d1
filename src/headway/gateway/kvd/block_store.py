"""The blocks of a daemon. Recently used blocks are in memory, and older blocks on disk. The oldest blocks are dropped.

A block with a time to live is *held*: it stays in memory until a client reads it or the time has passed. After that it
is an ordinary block. Held blocks may use only a part of the memory. If that part is full, the store refuses further
held blocks.
"""

import heapq
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from headway.gateway.kvd.channel import Buffer
from headway.gateway.kvd.disk import Disk
from headway.gateway.kvd.frames import Overlap

OVERHEAD: Final = 256  # memory that each block needs in addition to its data, in bytes
COUNTS: Final = ("puts", "refused", "hits_ram", "hits_disk", "misses", "dropped", "holds_expired")


def cost(data: Buffer) -> int:
    return len(data) + OVERHEAD


class Store:
    def __init__(
        self, ram_limit: int, held_limit: int, disk: Disk | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.ram_limit = ram_limit
        self.held_limit = min(held_limit, ram_limit)
        self.ram_used = 0  # memory in use by all blocks, including held blocks, in bytes
        self.held_used = 0
        self.disk = disk
        self._clock = clock
        self._ram: OrderedDict[bytes, Buffer] = OrderedDict()
        self._held: dict[bytes, tuple[Buffer, float]] = {}
        self._ends: list[tuple[float, bytes]] = []  # heap of (end time, key); some keys are no longer held
        self.puts = self.refused = self.hits_ram = self.hits_disk = self.misses = self.dropped = self.holds_expired = 0

    def put(self, key: bytes, data: Buffer, ttl_s: float | None = None) -> bool:
        """Store a block, and return whether it was accepted. If the key is held already, the new block is held too."""
        now = self._clock()
        self._expire(now)
        old, end = self._held.get(key, (b"", 0.0))
        end = max(end, now + ttl_s) if ttl_s is not None else end
        freed = cost(old) if key in self._held else 0
        held = self.held_used - freed + (cost(data) if end else 0)
        ordinary = 0 if end else cost(data)
        if held > self.held_limit or held + ordinary > self.ram_limit:
            self.refused += 1
            return False
        self.puts += 1
        self._remove(key)
        self._make_room(cost(data))
        if end:
            self._hold(key, data, end)
        else:
            self._ram[key] = data
        self.ram_used += cost(data)
        return True

    def at_hand(self, key: bytes) -> Buffer | None:
        """If a block is in memory, return it and count it as read. Otherwise return None."""
        self._expire(self._clock())
        if key in self._held:
            data, _ = self._held.pop(key)
            self.held_used -= cost(data)
            self._ram[key] = data
        elif key in self._ram:
            data = self._ram[key]
            self._ram.move_to_end(key)
        else:
            return None
        self.hits_ram += 1
        return data

    async def get(self, key: bytes) -> Buffer | None:
        """Return a block from memory or disk; None if it is missing. A block from disk is copied to memory."""
        data = self.at_hand(key)
        if data is not None:
            return data
        entry = self.disk.entries.get(key) if self.disk else None
        data = await self.disk.read(key) if self.disk and entry else None
        if data is None:
            self.misses += 1
            return None
        self.hits_disk += 1
        if self.disk and self.disk.entries.get(key) is entry and not self._in_memory(key):
            self.disk.entries.move_to_end(key)
            if self.held_used + cost(data) <= self.ram_limit:
                self._make_room(cost(data))
                self._ram[key] = data
                self.ram_used += cost(data)
        return data

    def delete(self, key: bytes) -> bool:
        there = self.size(key) is not None
        self._remove(key)
        return there

    def lookup(self, keys: Iterable[bytes]) -> Overlap:
        """Return how many blocks the store has, counted from the first key to the first missing block. A lookup does
        not count as a use of the blocks."""
        ram = disk = 0
        entries = self.disk.entries if self.disk else {}
        for key in keys:
            if self._in_memory(key):
                ram += 1
            elif key in entries:
                disk += 1
            else:
                break
        return Overlap(ram + disk, ram, disk)

    def size(self, key: bytes) -> int | None:
        """Return the size of a block. If the block is missing, return None."""
        if key in self._held:
            return len(self._held[key][0])
        if key in self._ram:
            return len(self._ram[key])
        entry = self.disk.entries.get(key) if self.disk else None
        return None if entry is None else entry.size

    def on_disk(self, key: bytes) -> bool:
        return self.disk is not None and key in self.disk.entries

    async def flush(self) -> None:
        """Write the blocks in memory to disk, oldest first, so that the daemon has them at its next start."""
        if self.disk is None:
            return
        for key, data in [*self._ram.items(), *((key, data) for key, (data, _) in self._held.items())]:
            if self.disk.would_wait(data):
                await self.disk.settle()
            self.disk.add(key, data)
        await self.disk.settle()

    def figures(self) -> dict[str, dict[str, int]]:
        self._expire(self._clock())
        return {
            "ram": {
                "bytes": self.ram_used,
                "limit": self.ram_limit,
                "blocks": len(self._ram) + len(self._held),
                "held_bytes": self.held_used,
                "held_limit": self.held_limit,
                "held_blocks": len(self._held),
            },
            "blocks": {name: getattr(self, name) for name in COUNTS},
            **({} if self.disk is None else {"disk": self.disk.figures()}),
        }

    def _in_memory(self, key: bytes) -> bool:
        return key in self._ram or key in self._held

    def _hold(self, key: bytes, data: Buffer, end: float) -> None:
        self._held[key] = (data, end)
        self.held_used += cost(data)
        heapq.heappush(self._ends, (end, key))
        if len(self._ends) > 2 * len(self._held) + 64:
            self._ends = [(end, key) for key, (_, end) in self._held.items()]
            heapq.heapify(self._ends)

    def _expire(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            end, key = heapq.heappop(self._ends)
            data, held_until = self._held.get(key, (b"", 0.0))
            if held_until != end:
                continue
            del self._held[key]
            self.held_used -= cost(data)
            self.holds_expired += 1
            self._ram[key] = data
            self._ram.move_to_end(key, last=False)  # no client read the block in time, so it will be evicted first

    def _make_room(self, size: int) -> None:
        while self.ram_used + size > self.ram_limit:
            key, data = self._ram.popitem(last=False)
            self.ram_used -= cost(data)
            if self.disk is None:
                self.dropped += 1
            else:
                self.disk.add(key, data)

    def _remove(self, key: bytes) -> None:
        data = self._ram.pop(key, None)
        if key in self._held:
            data, _ = self._held.pop(key)
            self.held_used -= cost(data)
        if data is not None:
            self.ram_used -= cost(data)
        if self.disk and key in self.disk.entries:
            self.disk.drop(key)
