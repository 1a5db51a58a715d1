"""The daemon's client, for whoever has an event loop: the gateway, an agent, another daemon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final

from headway.gateway.kvd import frames
from headway.gateway.kvd.channel import (
    BUSY,
    FAILED,
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

BATCH: Final = 16 << 20  # bytes of blocks that are put together
PAUSE_S: Final = (0.1, 5.0)  # after a daemon that does not answer, the first and the longest


class KvdClient:
    """Of one daemon, by `unix:/run/kvd.sock` or `quic://10.0.0.8:7072`.

    Calls may run at the same time, up to `channels` of them; the others wait. Each has `timeout_s` in all. A daemon
    that was lost is dialled again at the next call; while it stays away, calls fail at once for a growing while. Every
    failure is a `KvdError` that tells its `code`.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: TlsFiles | None = None,
        timeout_s: float = 5.0,
        channels: int = 8,
        frame_bytes: int = 64 << 20,
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._frame_bytes = frame_bytes
        self._dialler = transport(address, "kvd").dialler(address, tls)
        self._free: list[Channel] = []
        self._turns = asyncio.Semaphore(channels)
        self._pause_s = 0.0
        self._not_before = 0.0
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> KvdClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def put(
        self, blocks: Mapping[bytes, Buffer] | Iterable[tuple[bytes, Buffer]], ttl_s: float | None = None
    ) -> int:
        """How many were kept. With a time to live, a block that was kept stays until it is read or that has passed."""
        kept = 0
        ttl_ms = 0 if ttl_s is None else max(1, round(ttl_s * 1000))
        for batch in _batches(blocks.items() if isinstance(blocks, Mapping) else blocks):
            asked = frames.Put([key for key, _ in batch], [len(data) for _, data in batch], ttl_ms)
            kept += await self._count(asked, [data for _, data in batch])
        return kept

    async def get(self, keys: Sequence[bytes]) -> list[bytearray | None]:
        """The blocks of these keys, None for each that is not there."""
        return [data async for _, data in self.blocks(keys)]

    async def blocks(self, keys: Sequence[bytes]) -> AsyncIterator[tuple[bytes, bytearray | None]]:
        """The same one after another, a frame of them in memory at a time."""
        at = 0
        while at < len(keys):
            some = list(keys[at : at + frames.MOST_KEYS])
            answer, found = await self._ask(frames.Get(some))
            if not isinstance(answer, frames.Blocks) or not 0 < len(found) <= len(some):
                raise self._nonsense()
            for key, data in zip(some, found, strict=False):
                yield key, data
            at += len(found)

    async def delete(self, keys: Sequence[bytes]) -> int:
        """How many were there."""
        found = 0
        for part in _parts(keys):
            found += await self._count(frames.Delete(part))
        return found

    async def lookup(self, keys: Sequence[bytes]) -> int:
        """How many leading blocks of a chain are there."""
        return (await self.overlap(keys)).leading

    async def overlap(self, keys: Sequence[bytes]) -> frames.Overlap:
        """The same, with their tiers."""
        total = frames.Overlap(0, 0, 0)
        for part in _parts(keys):
            answer, _ = await self._ask(frames.Lookup(part))
            if not isinstance(answer, frames.Held):
                raise self._nonsense()
            total = frames.Overlap(total.leading + answer.leading, total.ram + answer.ram, total.disk + answer.disk)
            if answer.leading < len(part):
                break
        return total

    async def fetch(self, keys: Sequence[bytes], source: str, ttl_s: float | None = None) -> int:
        """Has the daemon take the leading blocks that it lacks from another one; how many leading ones it has then."""
        ttl_ms = 0 if ttl_s is None else max(1, round(ttl_s * 1000))
        total = 0
        for part in _parts(keys):
            found = await self._count(frames.Fetch(part, source, ttl_ms))
            total += found
            if found < len(part):
                break
        return total

    async def stats(self) -> dict[str, dict[str, int]]:
        answer, _ = await self._ask(frames.Stat())
        if not isinstance(answer, frames.Figures):
            raise self._nonsense()
        return answer.figures

    async def ping(self) -> None:
        await self._count(frames.Ping())

    async def close(self) -> None:
        for channel in self._free:
            channel.abort()
        self._free.clear()
        await self._dialler.close()

    def abandon(self) -> None:
        """Closes it without waiting."""
        self._closing = asyncio.get_running_loop().create_task(self.close())

    async def _count(self, asked: frames.Request, parts: Sequence[Buffer] = ()) -> int:
        answer, _ = await self._ask(asked, parts)
        if not isinstance(answer, frames.Count):
            raise self._nonsense()
        return answer.count

    async def _ask(
        self, asked: frames.Request, parts: Sequence[Buffer] = ()
    ) -> tuple[frames.Reply, list[bytearray | None]]:
        head = frames.frame(asked, sum(len(part) for part in parts))
        try:
            async with asyncio.timeout(self.timeout_s), self._turns:
                answer, found = await self._exchange((head, *parts))
        except TimeoutError:
            self._lost()
            raise KvdError(TIMEOUT, f"{self.address}: no answer within {self.timeout_s:g} s.") from None
        if isinstance(answer, frames.Failure):
            raise KvdError(answer.code, f"{self.address}: {answer.text}")
        return answer, found

    async def _exchange(self, written: Sequence[Buffer]) -> tuple[frames.Reply, list[bytearray | None]]:
        while (channel := self._kept()) is not None:
            try:
                return await self._talk(channel, written)
            except Closed:
                continue  # the daemon let go of it while nobody talked
        channel = await self._open()
        try:
            found = await self._talk(channel, written)
        except Closed:
            why = self._dialler.why()
            if why is not None:
                self._lost()
            raise KvdError(
                UNREACHABLE, f"{self.address}: the daemon ended the connection{f' ({why})' if why else ''}."
            ) from None
        self._pause_s = self._not_before = 0.0
        return found

    async def _talk(self, channel: Channel, written: Sequence[Buffer]) -> tuple[frames.Reply, list[bytearray | None]]:
        try:
            await channel.write(*written)
            head, body = frames.lengths(await channel.read(frames.PREFIX.size), self._frame_bytes)
            answer = frames.reply(await channel.read(head), body)
            sizes = answer.sizes if isinstance(answer, frames.Blocks) else []
            found = [await channel.read(size) if size else None for size in sizes]
        except frames.Malformed as error:
            channel.abort()
            raise KvdError(FAILED, f"{self.address}: does not answer as a daemon would ({error}).") from None
        except BaseException:
            channel.abort()
            raise
        if isinstance(answer, frames.Failure) and answer.code in (WRONG, BUSY):
            channel.abort()  # as the daemon does
        else:
            self._free.append(channel)
        return answer, found

    def _kept(self) -> Channel | None:
        while self._free:
            channel = self._free.pop()
            if not channel.closed:
                return channel
        return None

    async def _open(self) -> Channel:
        now = asyncio.get_running_loop().time()
        if now < self._not_before:
            raise KvdError(UNREACHABLE, f"{self.address}: no daemon answers; it is tried again in a moment.")
        try:
            return await self._dialler.open()
        except KvdError:
            self._lost()
            raise

    def _lost(self) -> None:
        self._pause_s = min(max(2 * self._pause_s, PAUSE_S[0]), PAUSE_S[1])
        self._not_before = asyncio.get_running_loop().time() + self._pause_s

    def _nonsense(self) -> KvdError:
        return KvdError(WRONG, f"{self.address}: answered something else than was asked.")


def _parts(keys: Sequence[bytes]) -> list[list[bytes]]:
    return [list(keys[at : at + frames.MOST_KEYS]) for at in range(0, len(keys), frames.MOST_KEYS)]


def _batches(blocks: Iterable[tuple[bytes, Buffer]]) -> list[list[tuple[bytes, Buffer]]]:
    """Of as many blocks as go into a frame together; a long one goes alone."""
    found: list[list[tuple[bytes, Buffer]]] = []
    total = 0
    for key, data in blocks:
        if not found or total + len(data) > BATCH or len(found[-1]) == frames.MOST_KEYS:
            found.append([])
            total = 0
        found[-1].append((key, data))
        total += len(data)
    return found
