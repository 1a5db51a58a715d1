"""Connections that are open and used before the first request needs one: to make one takes longer than to send."""

from __future__ import annotations

import asyncio
from typing import Final

from headway.load.line import Endpoint, Line

ASKED: Final = b"GET /health HTTP/1.1\r\n%b\r\n\r\n"  # whatever is answered will do


class Greeting:
    def __init__(self, over: asyncio.Future[None]) -> None:
        self.over = over

    def content(self, count: int, events: bytes, at_ns: int) -> None:
        """Nobody waits for any."""

    def answered(self, line: Line, at_ns: int) -> None:
        self.over.set_result(None)

    def broken(self, line: Line, at_ns: int) -> None:
        self.over.set_result(None)


async def greet(endpoint: Endpoint, count: int) -> None:
    """So many connections, free."""
    lines = [await endpoint.new() for _ in range(count)]
    waits: list[asyncio.Future[None]] = []
    for line in lines:
        waits.append(endpoint.loop.create_future())
        line.send(Greeting(waits[-1]), ASKED % endpoint.address.host_line)
    await asyncio.gather(*waits)
