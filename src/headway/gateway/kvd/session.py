"""A session serves one channel of the daemon. It replies to a request before it reads the next request."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from headway.gateway.kvd import frames
from headway.gateway.kvd.channel import FAILED, LEAST_MOVED, REFUSED, WRONG, Buffer, Channel, Closed, KvdError

if TYPE_CHECKING:
    from headway.gateway.kvd.daemon import Daemon

FREE: Final = 65_536  # requests and replies up to this size, in bytes, need no memory from the budget
ANSWER: Final = 16 << 20  # maximum total size of the blocks, in bytes, in a reply with more than one block
# If the rest of a refused request is at most this many times the frame limit, the daemon reads and drops the rest, so
# that the peer can read the reason.
PATIENCE: Final = 4
_LOG: Final = logging.getLogger("headway.kvd")


class Budget:
    """The memory for requests in flight, in bytes. If too little is free, requests wait in order of arrival."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Allocate `size` bytes, which must not exceed the limit. If too few are free, wait."""
        assert size <= self.limit
        if not self._waiting and self.used + size <= self.limit:
            self.used += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._admit()  # admit the requests that waited behind this one
            else:
                self.give(size)  # the bytes were allocated just before the cancellation, so free them
            raise

    def give(self, size: int) -> None:
        self.used -= size
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():
                if self.used + size > self.limit:
                    return
                self.used += size
                turn.set_result(None)
            self._waiting.popleft()


class Session:
    def __init__(self, daemon: Daemon, channel: Channel, share: Budget) -> None:
        self.busy = False  # whether a request is in flight
        self._daemon = daemon
        self._channel = channel
        self._share = share
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._moved_bytes = 0
        self._waits = False  # whether the peer waits for the daemon; a waiting peer does not count as stalled
        self._watch = self._loop.call_later(daemon.limits.stall_s, self._look)

    async def run(self) -> None:
        channel = self._channel
        try:
            while not self._daemon.ending:
                prefix = await channel.read(frames.PREFIX.size)
                self._turn(busy=True)
                await self._serve(prefix)
                self._turn(busy=False)
            channel.close()
        except Closed:
            pass
        except frames.Malformed as error:
            self._daemon.malformed += 1
            await self._refuse(error)
        except Exception:  # an exception must not end the other sessions
            _LOG.exception("a session failed")
            self._daemon.faults += 1
        finally:
            self._watch.cancel()
            if not channel.closed:
                channel.abort()

    def end(self) -> None:
        self._channel.abort()

    async def _refuse(self, error: frames.Malformed) -> None:
        """Tell the peer why its frame is invalid. Then read and drop the rest of the frame, because the peer may read
        the reply only after it has written the whole frame."""
        await self._send(frames.Failure(WRONG, f"invalid request: {error}."))
        left = error.follow
        try:
            while 0 < left <= PATIENCE * self._daemon.limits.frame:
                left -= len(await self._channel.read(min(left, FREE)))
            self._channel.close()
        except Closed:
            return

    async def _serve(self, prefix: Buffer) -> None:
        head_bytes, body_bytes = frames.lengths(prefix, self._daemon.limits.frame)
        turn_bytes = await self._take(head_bytes + body_bytes)
        try:
            request = frames.request(await self._channel.read(head_bytes), body_bytes)
            if isinstance(request, frames.Put):
                answer: frames.Reply = await self._put(request)
        finally:
            self._give(turn_bytes)
        if isinstance(request, frames.Get):
            await self._get(request.keys)
            return
        if not isinstance(request, frames.Put):
            answer = await self._answer(request)
        await self._send(answer)

    async def _put(self, request: frames.Put) -> frames.Reply:
        count = 0
        ttl_s = request.ttl_ms / 1000 if request.ttl_ms else None
        for key, size in zip(request.keys, request.sizes, strict=True):
            count += self._daemon.store.put(key, await self._channel.read(size), ttl_s)
        return frames.Count(count)

    async def _get(self, keys: list[bytes]) -> None:
        store = self._daemon.store
        keys, expected = self._fitting(keys)
        turn_bytes = await self._take(expected)
        try:
            blocks = [store.at_hand(key) for key in keys]
            waiting = [at for at, data in enumerate(blocks) if data is None and store.on_disk(keys[at])]
            store.misses += blocks.count(None) - len(waiting)
            self._waits = True
            for at, data in zip(waiting, await asyncio.gather(*(store.get(keys[at]) for at in waiting)), strict=True):
                blocks[at] = data
            self._turn(busy=True)
            # A block on disk may exceed this limit: an earlier daemon with a higher limit may have written it.
            longest = self._daemon.limits.frame
            blocks = [None if data is None or len(data) > longest else data for data in blocks]
            sizes = [0 if data is None else len(data) for data in blocks]
            head = frames.frame(frames.Blocks(sizes), sum(sizes))
            await self._channel.write(head, *(data for data in blocks if data is not None))
        finally:
            self._give(turn_bytes)

    def _fitting(self, keys: list[bytes]) -> tuple[list[bytes], int]:
        """Return the leading keys whose blocks fit together in one reply, but at least one key. Also return the total
        size of these blocks."""
        limit = min(ANSWER, self._daemon.limits.frame)
        total = 0
        for at, key in enumerate(keys):
            size = self._daemon.store.size(key) or 0
            if at and total + size > limit:
                return keys[:at], total
            total += size
        return keys, total

    async def _answer(self, request: frames.Request) -> frames.Reply:
        store = self._daemon.store
        if isinstance(request, frames.Lookup):
            return store.lookup(request.keys)
        if isinstance(request, frames.Delete):
            return frames.Count(sum(store.delete(key) for key in request.keys))
        if isinstance(request, frames.Stat):
            return frames.Figures(self._daemon.figures())
        if isinstance(request, frames.Fetch):
            return await self._fetch(request)
        return frames.Count(0)

    async def _fetch(self, request: frames.Fetch) -> frames.Reply:
        self._waits = True
        try:
            ttl_s = request.ttl_ms / 1000 if request.ttl_ms else None
            return frames.Count(await self._daemon.sources.fetch(request.keys, request.source, ttl_s))
        except KvdError as error:
            return frames.Failure(REFUSED if error.code == REFUSED else FAILED, str(error))
        finally:
            self._turn(busy=True)

    async def _send(self, answer: frames.Reply) -> None:
        try:
            await self._channel.write(frames.frame(answer))
        except Closed:
            self._channel.abort()

    async def _take(self, size: int) -> int:
        """Reserve memory for a request, both in the peer's budget and in the daemon's. Return the number of reserved
        bytes: 0 for a small request, otherwise `size`, but at most the peer's limit."""
        if size <= FREE:
            return 0
        self._waits = True
        size = min(size, self._share.limit)
        await self._share.take(size)
        try:
            await self._daemon.budget.take(size)
        except asyncio.CancelledError:
            self._share.give(size)
            raise
        self._turn(busy=True)
        return size

    def _give(self, size: int) -> None:
        if size:
            self._share.give(size)
            self._daemon.budget.give(size)

    def _turn(self, *, busy: bool) -> None:
        self.busy = busy
        self._waits = False
        self._since = self._loop.time()
        self._moved_bytes = self._channel.moved_bytes()

    def _look(self) -> None:
        """Close the channel of a peer that stalls during a request, or that is idle for too long."""
        limits = self._daemon.limits
        span = limits.stall_s if self.busy else limits.idle_s
        left = self._since + span - self._loop.time()
        if left <= 0 and not self._waits:
            moved_bytes = self._channel.moved_bytes()
            if not self.busy or moved_bytes - self._moved_bytes < LEAST_MOVED:
                self._daemon.stalled += self.busy
                self._channel.abort()
                return
            self._turn(busy=True)
            left = span
        self._watch = self._loop.call_later(max(min(left, limits.stall_s), 0.01 * span), self._look)
