"""The limit of open files of a server process. Each connection is an open file."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from typing import Any, Final

from msgspec.structs import replace

from headway.http.client_limits import Limits
from headway.http.server_log import Occasional

SHORTAGES: Final = (errno.EMFILE, errno.ENFILE)  # the limit of the process, and the limit of the machine
EACH: Final = 2  # open files of a client's connection: its own socket, and the socket of an engine
OWN: Final = 128  # open files of the process itself: log, journal, records, listeners, admin API, etcd, threads
LEAST_OWN: Final = 32  # the same for a process with a very low limit, with some left to refuse further connections
SPARE: Final = 8  # with fewer files left, connections fail at times: the event loop closes those it cannot accept
PER_ENGINE: Final = 4  # open files for health checks and metrics of an engine
NO_FILES: Final = "the gateway cannot open more connections"  # message to clients
log = logging.getLogger("headway.gateway")


def raise_limit() -> None:
    """Raise the limit of open files as far as the process may. The usual limit of 1,024 is too low for a server."""
    try:
        import resource
    except ImportError:  # Windows does not have this module
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError) as error:  # some systems have a further limit
        log.warning("the limit of open files cannot be raised: %s", error)


def most_files() -> int | None:
    """Return the limit of open files of this process; None if there is none, or if it is unknown."""
    try:
        import resource
    except ImportError:
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if most == resource.RLIM_INFINITY else most


def most_connections(engines: int, files: int) -> int:
    """Return how many connections of clients a process can have that may open `files` files. `engines` is the largest
    number of engines."""
    own = max(LEAST_OWN, min(OWN + PER_ENGINE * engines, files // 4))
    return max(1, (files - own) // EACH)


def fit_connections(limits: Limits, engines: int, files: int | None) -> Limits:
    """Return limits whose number of connections the process can open, at most `files` files in all. If that is less
    than configured, log a warning. `engines` is the largest number of engines."""
    if files is None:
        return limits
    most = most_connections(engines, files)
    if limits.connections <= most:
        return limits
    log.warning(
        "limits.connections: reduced from %s to %s, because this process may open only %s files, and a connection "
        "needs %d of them. Raise the limit (ulimit -n) to %s, or set limits.connections to at most %s.",
        *(f"{number:,}" for number in (limits.connections, most, files)),
        EACH,
        f"{EACH * limits.connections + OWN + PER_ENGINE * engines:,}",
        f"{most:,}",
    )
    return replace(limits, connections=most)


class OpenFiles:
    """Tells a shortage of open files, which is the gateway's own fault, from faults of engines."""

    def __init__(self) -> None:
        self._event = Occasional(
            log,
            "open files: the process or the machine has reached its limit; connections fail, whatever their engine. "
            "Raise the limit (ulimit -n), or lower limits.connections.",
            level=logging.ERROR,
        )

    def are_short(self, error: BaseException | None = None, spare: int = 1) -> bool:
        """Return whether the process cannot open `spare` files now, or could not when `error` was raised. Log a
        shortage."""
        short = is_shortage(error) or not _can_open(spare)
        if short:
            self._event.note()
        return short

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an exception that no code of the gateway caught, such as a shortage when a client connects."""
        if is_shortage(context.get("exception")):
            self._event.note()
        else:
            loop.default_exception_handler(context)


def is_shortage(error: BaseException | None) -> bool:
    """Return whether an exception, or one that it wraps, is a shortage. Libraries may wrap the system's errors."""
    while error is not None:
        if getattr(error, "errno", None) in SHORTAGES:
            return True
        error = getattr(error, "os_error", None) or error.__cause__ or error.__context__
    return False


def _can_open(files: int) -> bool:
    """Try to open files. A failed lookup of a host name does not say that files were short, so test it."""
    opened: list[int] = []
    try:
        while len(opened) < files:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno not in SHORTAGES
    finally:
        for file in opened:
            os.close(file)
    return True
