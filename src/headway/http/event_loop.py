"""Runs and stops the event loop of a server."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on uvloop if uvloop is installed, otherwise on asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


async def cancel(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel tasks and wait until they have ended."""
    started = [task for task in tasks if task is not None]
    for task in started:
        task.cancel()
    await asyncio.gather(*started, return_exceptions=True)


def end_signal() -> asyncio.Event:
    """Return an event that SIGTERM and Ctrl-C set."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended


@contextmanager
def hangup_pending() -> Iterator[None]:
    """Keep SIGHUP pending until the process can handle it and calls `accept_hangup`. Without a handler, SIGHUP would
    end the process. Child processes inherit this state."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def accept_hangup() -> None:
    """Let the handler of SIGHUP run, now for a pending SIGHUP, and for each later one."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
