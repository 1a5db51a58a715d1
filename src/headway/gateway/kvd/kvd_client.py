"""The daemon's asyncio client, for the gateway and for other daemons."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from headway.gateway.kvd import frames
from headway.gateway.kvd.channel import (
    BUSY,
    FAILED,
    LEAST_MOVED,
    TIMEOUT,
    UNREACHABLE,
    WRONG,
    Buffer,
    Channel,
    Closed,
    KvdError,
    TlsFiles,
)
from headway.gateway.kvd.transports import transport

BATCH: Final = 16 << 20  # maximum size of the blocks in one put, in bytes
PAUSE_S: Final = (0.1, 5.0)  # first and maximum pause after a daemon did not answer
LOOKS: Final = 10  # number of times that a call looks at its progress within `stall_s`
Reply = TypeVar("Reply", bound=frames.Reply)
Answer = tuple[frames.Reply, list[bytearray | None]]  # a reply and the blocks that follow it


class KvdClient:
    """A client of one daemon, by its address: `unix:/run/kvd.sock` or `quic://10.0.0.8:7072`.

    Up to `channels` calls run at the same time; further calls wait. Each call may take `timeout_s` in total. With
    `stall_s`, each request may take longer, as long as 64 KiB move within `stall_s`. After a lost connection, the next
    call connects again. If the daemon does not answer, the client waits before it connects again, and calls in the
    meantime fail immediately. This pause grows with every failed attempt. Every failure is a `KvdError` with its
    `code`.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: TlsFiles | None = None,
        timeout_s: float = 5.0,
        stall_s: float | None = None,
        channels: int = 8,
        frame_bytes: int = 64 << 20,
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s if stall_s is None else stall_s
        self._stalls = stall_s is not None  # whether the time limit begins again when bytes have moved
        self._frame_bytes = frame_bytes
        self._dialler = transport(address, "kvd").dialler(address, tls)
        self._free: list[Channel] = []
        self._turns = asyncio.Semaphore(channels)
        self._pause_s = 0.0
        self._not_before = 0.0
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> KvdClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def put(
        self, blocks: Mapping[bytes, Buffer] | Iterable[tuple[bytes, Buffer]], ttl_s: float | None = None
    ) -> int:
        """Store blocks. Return how many were stored. With `ttl_s`, each block stays in memory until a client reads it
        or `ttl_s` seconds have passed."""
        count = 0
        for batch in _batches(blocks.items() if isinstance(blocks, Mapping) else blocks):
            request = frames.Put([key for key, _ in batch], [len(data) for _, data in batch], _milliseconds(ttl_s))
            count += (await self._ask(request, frames.Count, [data for _, data in batch]))[0].count
        return count

    async def get(self, keys: Sequence[bytes]) -> list[bytearray | None]:
        """Return the blocks of these keys, in the same order. A missing block is None."""
        return [data async for _, data in self.blocks(keys)]

    async def blocks(self, keys: Sequence[bytes]) -> AsyncIterator[tuple[bytes, bytearray | None]]:
        """Yield each key with its block; None if the block is missing. At most one frame of blocks is in memory."""
        at = 0
        while at < len(keys):
            some = list(keys[at : at + frames.MOST_KEYS])
            _, blocks = await self._ask(frames.Get(some), frames.Blocks)
            if not 0 < len(blocks) <= len(some):
                raise self._nonsense()
            for key, data in zip(some, blocks, strict=False):
                yield key, data
            at += len(blocks)

    async def delete(self, keys: Sequence[bytes]) -> int:
        """Delete blocks. Return how many of them existed."""
        return sum([(await self._ask(frames.Delete(part), frames.Count))[0].count for part in _parts(keys)])

    async def lookup(self, keys: Sequence[bytes]) -> int:
        """Return how many blocks the daemon has, counted from the first key to the first missing block."""
        return (await self.overlap(keys)).leading

    async def overlap(self, keys: Sequence[bytes]) -> frames.Overlap:
        """Return how many blocks the daemon has, in total and by tier, counted from the first key to the first missing
        block."""
        total = frames.Overlap(0, 0, 0)
        for part in _parts(keys):
            answer, _ = await self._ask(frames.Lookup(part), frames.Overlap)
            total = frames.Overlap(total.leading + answer.leading, total.ram + answer.ram, total.disk + answer.disk)
            if answer.leading < len(part):
                break
        return total

    async def fetch(self, keys: Sequence[bytes], source: str, ttl_s: float | None = None) -> int:
        """Make the daemon copy blocks that it lacks from the daemon at `source`, in the order of `keys`. Return how
        many blocks the daemon then has, counted from the first key to the first missing block."""
        total = 0
        for part in _parts(keys):
            answer, _ = await self._ask(frames.Fetch(part, source, _milliseconds(ttl_s)), frames.Count)
            total += answer.count
            if answer.count < len(part):
                break
        return total

    async def stats(self) -> dict[str, dict[str, int]]:
        return (await self._ask(frames.Stat(), frames.Figures))[0].figures

    async def ping(self) -> None:
        await self._ask(frames.Ping(), frames.Count)

    async def close(self) -> None:
        for channel in self._free:
            channel.abort()
        self._free.clear()
        await self._dialler.close()

    def abandon(self) -> None:
        """Close the client without waiting."""
        self._closing = asyncio.get_running_loop().create_task(self.close())

    async def _ask(
        self, request: frames.Request, kind: type[Reply], parts: Sequence[Buffer] = ()
    ) -> tuple[Reply, list[bytearray | None]]:
        """Send a request. Return the reply, which must be of type `kind`, and the reply's blocks."""
        head = frames.frame(request, sum(len(part) for part in parts))
        try:
            async with asyncio.timeout(self.timeout_s) as limit, self._turns:
                answer, blocks = await self._exchange((head, *parts), limit)
        except TimeoutError:
            self._lost()
            what = "progress" if self._stalls else "answer"
            raise KvdError(TIMEOUT, f"{self.address}: no {what} within {self.timeout_s:g} s.") from None
        if isinstance(answer, frames.Failure):
            raise KvdError(answer.code, f"{self.address}: {answer.text}")
        if not isinstance(answer, kind):
            raise self._nonsense()
        return answer, blocks

    async def _exchange(self, written: Sequence[Buffer], limit: asyncio.Timeout) -> Answer:
        while self._free:
            channel = self._free.pop()
            try:
                if not channel.closed:
                    return await self._talk(channel, written, limit)
            except Closed:
                continue  # the daemon has closed this idle channel, so try the next channel
        channel = await self._open()
        try:
            answer = await self._talk(channel, written, limit)
        except Closed:
            why = self._dialler.why()
            if why is not None:
                self._lost()
            raise KvdError(
                UNREACHABLE, f"{self.address}: the daemon closed the connection{f' ({why})' if why else ''}."
            ) from None
        self._pause_s = self._not_before = 0.0
        return answer

    async def _talk(self, channel: Channel, written: Sequence[Buffer], limit: asyncio.Timeout) -> Answer:
        progress = _Progress(channel, limit, self.timeout_s) if self._stalls else None
        try:
            await channel.write(*written)
            head, body = frames.lengths(await channel.read(frames.PREFIX.size), self._frame_bytes)
            answer = frames.reply(await channel.read(head), body)
            sizes = answer.sizes if isinstance(answer, frames.Blocks) else []
            blocks = [await channel.read(size) if size else None for size in sizes]
        except frames.Malformed as error:
            channel.abort()
            raise KvdError(FAILED, f"{self.address}: sent an invalid reply ({error}).") from None
        except BaseException:
            channel.abort()
            raise
        finally:
            if progress is not None:
                progress.end()
        if isinstance(answer, frames.Failure) and answer.code in (WRONG, BUSY):
            channel.abort()  # the daemon closes the channel too
        else:
            self._free.append(channel)
        return answer, blocks

    async def _open(self) -> Channel:
        now = asyncio.get_running_loop().time()
        if now < self._not_before:
            raise KvdError(UNREACHABLE, f"{self.address}: no daemon answers; the client waits before it tries again.")
        try:
            return await self._dialler.open()
        except KvdError:
            self._lost()
            raise

    def _lost(self) -> None:
        self._pause_s = min(max(2 * self._pause_s, PAUSE_S[0]), PAUSE_S[1])
        self._not_before = asyncio.get_running_loop().time() + self._pause_s

    def _nonsense(self) -> KvdError:
        return KvdError(WRONG, f"{self.address}: sent a reply that does not match the request.")


class _Progress:
    """Begins the time limit of a call again whenever enough bytes have moved."""

    def __init__(self, channel: Channel, limit: asyncio.Timeout, stall_s: float) -> None:
        self._channel, self._limit, self._stall_s = channel, limit, stall_s
        self._loop = asyncio.get_running_loop()
        self._moved_bytes = channel.moved_bytes()
        self._watch = self._loop.call_later(stall_s / LOOKS, self._look)

    def _look(self) -> None:
        if self._limit.expired():
            return
        moved_bytes = self._channel.moved_bytes()
        if moved_bytes - self._moved_bytes >= LEAST_MOVED:
            self._moved_bytes = moved_bytes
            self._limit.reschedule(self._loop.time() + self._stall_s)
        self._watch = self._loop.call_later(self._stall_s / LOOKS, self._look)

    def end(self) -> None:
        self._watch.cancel()


def _parts(keys: Sequence[bytes]) -> list[list[bytes]]:
    return [list(keys[at : at + frames.MOST_KEYS]) for at in range(0, len(keys), frames.MOST_KEYS)]


def _batches(blocks: Iterable[tuple[bytes, Buffer]]) -> list[list[tuple[bytes, Buffer]]]:
    """Group blocks into batches of one frame each. A large block gets a separate batch."""
    batches: list[list[tuple[bytes, Buffer]]] = []
    total = 0
    for key, data in blocks:
        if not batches or total + len(data) > BATCH or len(batches[-1]) == frames.MOST_KEYS:
            batches.append([])
            total = 0
        batches[-1].append((key, data))
        total += len(data)
    return batches


def _milliseconds(ttl_s: float | None) -> int:
    return 0 if ttl_s is None else max(1, round(ttl_s * 1000))
