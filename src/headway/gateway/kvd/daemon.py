"""The daemon. It owns the store and the listeners, and runs a session for every channel that a peer opens."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from headway.gateway.kvd import frames
from headway.gateway.kvd.block_sources import Sources
from headway.gateway.kvd.block_store import Store
from headway.gateway.kvd.channel import BUSY, Channel, Closed, Listener
from headway.gateway.kvd.disk import Disk
from headway.gateway.kvd.session import Budget, Session
from headway.gateway.kvd.settings import SHARES, Settings
from headway.gateway.kvd.transports import transport
from headway.http.event_loop import end_signal, run_loop

FLUSH_S: Final = 60.0  # time limit for writing the blocks in memory to disk when the daemon stops


class _Share(Budget):
    """The memory that the channels of one peer may use together for requests in flight."""

    sessions = 0


class Daemon:
    def __init__(self, settings: Settings) -> None:
        self.limits = settings.limits
        self.ending = False
        self.budget = Budget(self.limits.in_flight)
        self.turned_away = self.malformed = self.stalled = self.faults = 0
        self.store = Store(settings.ram, settings.held_bytes)
        self.sources = Sources(self.store, settings)
        self._settings = settings
        self._listeners: list[Listener] = []
        self._sessions: dict[Session, asyncio.Task[None]] = {}
        self._shares: dict[str, _Share] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> list[str]:
        """Start the daemon. Return the addresses on which it listens, with the actual port instead of port 0."""
        disk = self._settings.disk
        if disk is not None:
            self.store.disk = Disk(disk.folder, disk.limit, disk.unwritten)
        try:
            for address in self._settings.listen:
                listener = await transport(address, "listen").listen(
                    address, self._settings.tls, self._accept, self.limits.connections
                )
                self._listeners.append(listener)
        except BaseException:
            await self.stop(0.0)
            raise
        return [listener.address for listener in self._listeners]

    async def stop(self, drain_s: float | None = None) -> None:
        """Stop accepting requests, wait up to `drain_s` for requests in flight, and write blocks in memory to disk."""
        if self.ending:
            return
        self.ending = True
        for listener in self._listeners:
            await listener.close()
        for session in [*self._sessions]:
            if not session.busy:
                session.end()
        if self._sessions:
            await asyncio.wait(self._sessions.values(), timeout=self.limits.drain_s if drain_s is None else drain_s)
        for session in [*self._sessions]:
            session.end()
        if self._sessions:
            for task in self._sessions.values():
                task.cancel()
            await asyncio.wait(self._sessions.values())
        for listener in self._listeners:
            await listener.close_connections()
        await self.sources.close()
        if self.store.disk is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.store.flush(), FLUSH_S)
            await self.store.disk.close()

    def figures(self) -> dict[str, dict[str, int]]:
        return {
            **self.store.figures(),
            "connections": {
                "open": len(self._sessions),
                "limit": self.limits.connections,
                "in_flight_bytes": self.budget.used,
                "in_flight_limit": self.budget.limit,
                "turned_away": self.turned_away,
                "malformed": self.malformed,
                "stalled": self.stalled,
                "faults": self.faults,
                "fetched": self.sources.fetched,
            },
        }

    def _accept(self, channel: Channel) -> None:
        loop = asyncio.get_running_loop()
        if self.ending or len(self._sessions) >= self.limits.connections:
            self.turned_away += 1
            refusal = loop.create_task(_turn_away(channel))
            self._tasks.add(refusal)
            refusal.add_done_callback(self._tasks.discard)
            return
        share = self._shares.setdefault(channel.peer, _Share(self.limits.in_flight // SHARES))
        share.sessions += 1
        session = Session(self, channel, share)
        task = self._sessions[session] = loop.create_task(session.run())
        task.add_done_callback(lambda _: self._on_end(session, channel.peer))

    def _on_end(self, session: Session, peer: str) -> None:
        del self._sessions[session]
        share = self._shares[peer]
        share.sessions -= 1
        if not share.sessions:
            del self._shares[peer]


async def _turn_away(channel: Channel) -> None:
    with suppress(Closed):
        await channel.write(frames.frame(frames.Failure(BUSY, "the daemon accepts no more connections; try later.")))
    channel.close()


def serve(settings: Settings, started: Callable[[list[str]], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. When the daemon accepts requests, call `started` with its addresses."""
    logging.getLogger("quic").setLevel(logging.CRITICAL)  # the daemon counts errors of peers, but does not log them
    run_loop(_serve(settings, started))


async def _serve(settings: Settings, started: Callable[[list[str]], None]) -> None:
    ended = end_signal()
    daemon = Daemon(settings)
    started(await daemon.start())
    await ended.wait()
    await daemon.stop()
