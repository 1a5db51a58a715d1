"""Daemons and clients for tests: started in the test's own event loop, ended with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headway.gateway.kvd.daemon import Daemon
from headway.gateway.kvd.kvd_client import KvdClient
from headway.gateway.kvd.settings import Settings

HANGS_S = 60.0  # a test that takes so long has failed


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, HANGS_S))


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def block(number: int, size: int = 1000) -> bytes:
    return (number.to_bytes(4, "big") * (size // 4 + 1))[:size]


@asynccontextmanager
async def daemon(folder: Path, **settings: Any) -> AsyncIterator[tuple[Daemon, list[str]]]:
    made = Daemon(Settings.load({"listen": f"unix:{folder}/kvd.sock", "ram": "8MiB", **settings}))
    addresses = await made.start()
    try:
        yield made, addresses
    finally:
        await made.stop(1.0)


@asynccontextmanager
async def served(folder: Path, **settings: Any) -> AsyncIterator[tuple[Daemon, KvdClient]]:
    """A daemon, and a client on its first address."""
    async with daemon(folder, **settings) as (made, addresses), KvdClient(addresses[0], timeout_s=HANGS_S) as client:
        yield made, client


async def until(holds: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    while True:
        found = holds()
        if found if isinstance(found, bool) else await found:
            return
        await asyncio.sleep(0.01)
