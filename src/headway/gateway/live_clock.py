"""Time and background work on the gateway's event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any


class Clock:
    """`seconds` and `now_ps` are monotonic; `now_ps` counts picoseconds since the gateway was built."""

    __slots__ = ("_tasks", "call_later", "call_soon", "loop", "now_ps", "seconds")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.seconds: Callable[[], float] = loop.time
        self.now_ps = count_picoseconds()
        self.call_soon, self.call_later = loop.call_soon, loop.call_later
        self._tasks: set[asyncio.Task[None]] = set()

    def create_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that the caller keeps and cancels."""
        return self.loop.create_task(work)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that ends by itself."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def count_picoseconds() -> Callable[[], int]:
    """Return a monotonic clock that counts picoseconds since this call."""
    start = time.monotonic_ns()
    return lambda: (time.monotonic_ns() - start) * 1000
