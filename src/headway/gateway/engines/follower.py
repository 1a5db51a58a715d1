"""Polling of engines: one background task for each engine, and GET requests with limits on time and size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from headway.http.client import HttpClient, NoAnswer, TooLong, load_aiohttp

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Backend, Fleet
    from headway.gateway.live_clock import Clock

State = TypeVar("State")
GOLDEN: Final = 0.6180339887498949  # golden ratio minus 1: its multiples, modulo 1, are spread evenly over 0 to 1


class PollFailed(Exception):
    """The engine gave no usable answer. The message is the reason."""


class Poller:
    """Sends GET requests to engines. It reuses its connections, and follows no redirects."""

    def __init__(self, timeout_s: float, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.client = HttpClient(timeout_s, per_host=2, redirects=False)

    async def status(self, backend: Backend, path: str) -> int:
        """Return the status of a GET, without reading the body."""
        try:
            return await self.client.get_status(*_url_and_headers(backend, path), backend.address)
        except NoAnswer as error:
            raise PollFailed(str(error)) from error.error

    async def text(self, backend: Backend, path: str) -> str:
        try:
            answer = await self.client.get(*_url_and_headers(backend, path), self.most_bytes, backend.address)
        except TooLong:
            raise PollFailed(f"the page has more than {self.most_bytes:,} bytes") from None
        except NoAnswer as error:
            raise PollFailed(str(error)) from None
        if answer.status != 200:
            raise PollFailed(f"status {answer.status}")
        return answer.body.decode("utf-8", "replace")


def _url_and_headers(backend: Backend, path: str) -> tuple[str, dict[str, str]]:
    fields = {"accept": "text/plain, */*"}
    if backend.key:
        fields["authorization"] = f"Bearer {backend.key.decode('latin-1')}"
    return backend.address.url + (path if path.startswith("/") else f"/{path}"), fields


class Follower(Generic[State]):
    """Runs a task `follow` for each engine and keeps a state for it, from the time the engine joins until it leaves."""

    def __init__(
        self,
        clock: Clock,
        fleet: Fleet,
        poller: Poller,
        follow: Callable[[Backend], Coroutine[Any, Any, None]],
        new_state: Callable[[], State],
    ) -> None:
        self.clock, self.fleet, self.poller = clock, fleet, poller
        self.follow, self.new_state = follow, new_state
        self.states: dict[Backend, State] = {}
        self._tasks: dict[Backend, asyncio.Task[None]] = {}

    async def start(self) -> None:
        load_aiohttp()
        self.fleet.on_change.append(self._on_change)
        for backend in self.fleet.members:
            self._on_change(backend, "joined")

    async def stop(self) -> None:
        if self._on_change in self.fleet.on_change:
            self.fleet.on_change.remove(self._on_change)
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.poller.client.close()

    def _on_change(self, backend: Backend, what: str) -> None:
        if what == "joined" and backend not in self._tasks:
            self.states[backend] = self.new_state()
            self._tasks[backend] = self.clock.create_task(self.follow(backend))
        elif what == "left" and backend in self._tasks:
            self._tasks.pop(backend).cancel()
            self.states.pop(backend, None)


def turn(backend: Backend) -> float:
    """Return how long to wait before an engine's first poll, as a fraction of the polling interval. The fraction
    depends on the engine's place, so that the polls of all engines are spread over the interval."""
    return backend.place * GOLDEN % 1.0
