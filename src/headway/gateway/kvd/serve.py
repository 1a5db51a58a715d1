"""The daemon as a process: it starts, serves until it is told to end, and keeps what it has on disk."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from headway.gateway.kvd.daemon import Daemon
from headway.gateway.kvd.settings import Settings


def serve(settings: Settings, started: Callable[[list[str]], None]) -> None:
    """`started` is told the addresses once requests are taken. SIGTERM and Ctrl-C end it."""
    logging.getLogger("quic").setLevel(logging.CRITICAL)  # what a peer does wrong is counted, not written
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(settings, started))
        return
    uvloop.run(_serve(settings, started))


async def _serve(settings: Settings, started: Callable[[list[str]], None]) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    daemon = Daemon(settings)
    started(await daemon.start())
    await ended.wait()
    await daemon.stop()
