"""The gateway as a process: it starts, serves until it is told to end, and lets what is under way end first."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from headway.gateway.app import App
from headway.gateway.config import Config
from headway.types import HeadwayError

DRAIN_S = 30.0


def serve(config: Config, started: Callable[[str], None], drain_s: float = DRAIN_S) -> None:
    """`started` is told the address once requests are taken. SIGTERM and Ctrl-C end it: no connection more is taken,
    and requests under way have `drain_s` to end."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(config, started, drain_s))
        return
    uvloop.run(_serve(config, started, drain_s))


async def _serve(config: Config, started: Callable[[str], None], drain_s: float) -> None:
    loop = asyncio.get_running_loop()
    app = App(loop, config)
    try:
        server = await app.start()
    except OSError as error:
        raise HeadwayError(
            f"listen: {config.host}:{config.port} cannot be listened on: {error.strerror or error}."
        ) from None
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    host, port = server.sockets[0].getsockname()[:2]
    started(f"http://{host}:{port}")
    await ended.wait()
    server.close()
    await app.drain(drain_s)
