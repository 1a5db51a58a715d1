"""Bytes that may be in memory for requests under way; who wants more than there is waits its turn."""

from __future__ import annotations

import asyncio
from collections import deque


class Budget:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """No more than the limit at once."""
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
                self._admit()  # it may have stood before others
            else:
                self.give(size)  # granted in the same moment
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
