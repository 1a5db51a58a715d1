"""A task for each engine while it is a member: for those who ask each engine something now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headway.gateway.clock import Clock
    from headway.gateway.engines.backend import Backend
    from headway.gateway.engines.fleet import Fleet
    from headway.gateway.engines.poll import Poller

GOLDEN: Final = 0.6180339887498949  # multiples of it, less their whole part, lie as far apart as they can


class Follower:
    """Calls `begin` for each engine that joins, runs `follow` until it leaves, and then calls `forget`."""

    def __init__(
        self,
        clock: Clock,
        fleet: Fleet,
        poller: Poller,
        begin: Callable[[Backend], None],
        follow: Callable[[Backend], Coroutine[Any, Any, None]],
        forget: Callable[[Backend], None],
    ) -> None:
        self.clock, self.fleet, self.poller = clock, fleet, poller
        self.begin, self.follow, self.forget = begin, follow, forget
        self._tasks: dict[Backend, asyncio.Task[None]] = {}

    async def start(self) -> None:
        await self.poller.start()
        self.fleet.on_change.append(self._changed)
        for backend in self.fleet.members:
            self._changed(backend, "joined")

    async def stop(self) -> None:
        if self._changed in self.fleet.on_change:
            self.fleet.on_change.remove(self._changed)
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.poller.stop()

    def _changed(self, backend: Backend, what: str) -> None:
        if what == "joined" and backend not in self._tasks:
            self.begin(backend)
            self._tasks[backend] = self.clock.create_task(self.follow(backend))
        elif what == "left" and backend in self._tasks:
            self._tasks.pop(backend).cancel()
            self.forget(backend)


def turn(backend: Backend) -> float:
    """Which part of an interval an engine waits at first, so that they are not asked all at once."""
    return backend.place * GOLDEN % 1.0
