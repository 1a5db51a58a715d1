"""The gateway as a process: it starts, serves until it is told to end, and lets what is under way end first."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from pathlib import Path

from headway.errors import HeadwayError
from headway.gateway.app import App
from headway.gateway.config import Config

DRAIN_S = 30.0


def serve(source: Path, started: Callable[[str], None], workers: int = 1, drain_s: float = DRAIN_S) -> None:
    """`started` is told the address once requests are taken. SIGTERM and Ctrl-C end it: no connection more is taken,
    and requests under way have `drain_s` to end."""
    if workers == 1:
        run(Config.load(source), started, drain_s)
    else:
        from headway.gateway.workers import serve_with

        serve_with(workers, source, started, drain_s)


def open_more() -> None:
    """A stream takes two connections, and a shell's limit on open files is often 1024: as many as the system allows."""
    try:
        import resource
    except ImportError:  # not of Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def collect_seldom() -> None:
    """What a request leaves is freed as it ends, so there is little to collect, and to look through a large index for
    it holds up everybody."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


def run(config: Config, started: Callable[[str], None], drain_s: float = DRAIN_S) -> None:
    """One process."""
    open_more()
    collect_seldom()
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
    except HeadwayError:
        await app.drain(0.0)
        raise
    except OSError as error:
        await app.drain(0.0)
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
