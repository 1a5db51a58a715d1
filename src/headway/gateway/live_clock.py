"""Time and background work on the gateway's event loop."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any


class Clock:
    """The gateway's clock. `seconds` and `now_ps` are monotonic. `now_ps` starts at 0 when the clock is created."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.seconds: Callable[[], float] = loop.time
        start_ns = time.monotonic_ns()
        self.now_ps: Callable[[], int] = lambda: (time.monotonic_ns() - start_ns) * 1000
        self.call_soon, self.call_later, self.create_task = loop.call_soon, loop.call_later, loop.create_task
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that ends by itself. Keep a reference, so that the task is not garbage-collected."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
