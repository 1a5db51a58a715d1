"""Somebody who asks each engine something now and then, by a task for each of them while it is here."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from headway.gateway.engines.poll import Poller

if TYPE_CHECKING:
    from headway.gateway.app import App
    from headway.gateway.engines.backend import Backend

GOLDEN: Final = 0.6180339887498949  # multiples of it, less their whole part, lie as far apart as they can


class Follower(ABC):
    def __init__(self, app: App, poller: Poller) -> None:
        self.app = app
        self._poller = poller
        self._tasks: dict[Backend, asyncio.Task[None]] = {}

    async def start(self) -> None:
        await self._poller.start()
        self.app.fleet.on_change.append(self._changed)
        for backend in self.app.fleet.members:
            self._changed(backend, "joined")

    async def stop(self) -> None:
        if self._changed in self.app.fleet.on_change:
            self.app.fleet.on_change.remove(self._changed)
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._poller.stop()

    def _changed(self, backend: Backend, what: str) -> None:
        if what == "joined" and backend not in self._tasks:
            self._begin(backend)
            self._tasks[backend] = self.app.loop.create_task(self._follow(backend))
        elif what == "left" and backend in self._tasks:
            self._tasks.pop(backend).cancel()
            self._forget(backend)

    @staticmethod
    def turn(backend: Backend) -> float:
        """Which part of an interval an engine waits at first, so that they are not asked all at once."""
        return backend.place * GOLDEN % 1.0

    @abstractmethod
    def _begin(self, backend: Backend) -> None:
        """It has joined."""

    @abstractmethod
    def _forget(self, backend: Backend) -> None:
        """It has left."""

    @abstractmethod
    async def _follow(self, backend: Backend) -> None:
        """Until it leaves."""
