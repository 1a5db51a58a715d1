"""Channels over a Unix socket. Each channel is a connection. Only the user that runs the daemon may connect."""

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

from headway.errors import HeadwayError
from headway.gateway.kvd.channel import UNREACHABLE, Buffer, Channel, Closed, Dialler, KvdError, Listener, TlsFiles

LONGEST_PATH: Final = 107  # maximum length of a path in bytes, set by the kernel
AHEAD: Final = 65_536  # maximum number of bytes that a channel buffers while no `read` waits for them
SOCKET_BUFFER: Final = 1 << 20


class UnixChannel(asyncio.BufferedProtocol):
    """A channel over a Unix socket. It receives bytes directly into the buffer of the `read` call that waits for
    them."""

    _transport: asyncio.Transport  # set in `connection_made`, before any other method is called

    def __init__(self, peer: str, accept: Callable[[Channel], None] | None = None) -> None:
        self.peer = peer
        self.closed = False
        self._accept = accept
        self._ahead = bytearray()
        self._scratch = memoryview(bytearray(AHEAD))
        self._target: memoryview | None = None
        self._filled = 0
        self._reading: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._full = False
        self._received = self._sent = 0

    async def read(self, size: int) -> bytearray:
        data = bytearray(size)
        ready = min(size, len(self._ahead))
        data[:ready] = self._ahead[:ready]
        del self._ahead[:ready]
        if ready == size:
            self._resume()
            return data
        if self.closed:
            raise Closed
        self._target, self._filled = memoryview(data), ready
        self._reading = asyncio.get_running_loop().create_future()
        self._resume()
        try:
            await self._reading
        finally:
            self._target = self._reading = None
        return data

    async def write(self, *parts: Buffer) -> None:
        for part in parts:
            if self.closed:
                raise Closed
            self._transport.write(part)
            self._sent += len(part)
            if self._full:
                self._writing = asyncio.get_running_loop().create_future()
                await self._writing

    def moved_bytes(self) -> int:
        return self._received + self._sent - self._transport.get_write_buffer_size()

    def close(self) -> None:
        self._transport.close()
        self.closed = True

    def abort(self) -> None:
        self._transport.abort()
        self.connection_lost(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        opened = transport.get_extra_info("socket")
        if opened is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
        if self._accept is not None:
            self._accept(self)

    def get_buffer(self, sizehint: int) -> Any:
        return self._scratch if self._target is None else self._target[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._received += nbytes
        if self._target is None:
            self._ahead += self._scratch[:nbytes]
            if len(self._ahead) >= AHEAD:
                self._transport.pause_reading()
            return
        self._filled += nbytes
        if self._filled == len(self._target):
            self._target = None
            if self._reading is not None and not self._reading.done():
                self._reading.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        for waiting in (self._reading, self._writing):
            if waiting is not None and not waiting.done():
                waiting.set_exception(Closed())

    def eof_received(self) -> bool:
        return False  # close the channel, because a half-closed channel is useless

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._writing is not None and not self._writing.done():
            self._writing.set_result(None)

    def _resume(self) -> None:
        if not self.closed and len(self._ahead) < AHEAD:
            self._transport.resume_reading()


class UnixListener:
    def __init__(self, server: asyncio.Server, path: Path) -> None:
        self.address = f"unix:{path}"
        self._server = server
        self._path = path
        self._inode = path.stat().st_ino

    async def close(self) -> None:
        self._server.close()
        try:
            if self._path.stat().st_ino == self._inode:  # otherwise the socket belongs to a daemon that started later
                self._path.unlink()
        except FileNotFoundError:
            return

    async def close_connections(self) -> None:
        return


class UnixDialler:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def open(self) -> Channel:
        try:
            _, channel = await asyncio.get_running_loop().create_unix_connection(
                lambda: UnixChannel(f"unix:{self._path}"), str(self._path)
            )
        except OSError as error:
            raise KvdError(UNREACHABLE, f"unix:{self._path}: no daemon answers ({error.strerror or error}).") from None
        return channel

    def why(self) -> str | None:
        return None

    async def close(self) -> None:
        return


class UnixTransport:
    async def listen(
        self, address: str, tls: TlsFiles | None, accept: Callable[[Channel], None], most: int
    ) -> Listener:
        path = _path(address)
        opened = await asyncio.to_thread(_bind, path)
        peers = count()
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: UnixChannel(f"unix:{next(peers)}", accept), sock=opened
        )
        return UnixListener(server, path)

    def dialler(self, address: str, tls: TlsFiles | None) -> Dialler:
        return UnixDialler(_path(address))


def _path(address: str) -> Path:
    path = Path(address.removeprefix("unix:").removeprefix("//")).expanduser()
    if path.name in ("", "..") or len(os.fsencode(path.absolute())) > LONGEST_PATH:
        raise HeadwayError(f"{address}: expected a socket path of at most {LONGEST_PATH} bytes.")
    return path.absolute()


def _bind(path: Path) -> socket.socket:
    """Return a bound socket that only its user may open. Replace an existing unused socket, but no other file."""
    if path.is_symlink() or (path.exists() and not stat.S_ISSOCK(path.stat().st_mode)):
        raise HeadwayError(f"unix:{path}: exists and is not a socket; choose another path.")
    if path.exists():
        if _answers(path):
            raise HeadwayError(f"unix:{path}: another daemon listens there; stop it, or choose another path.")
        path.unlink()
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        opened.bind(str(path))
    except OSError as error:
        opened.close()
        raise HeadwayError(f"unix:{path}: cannot listen on this address ({error.strerror or error}).") from None
    finally:
        os.umask(before)
    opened.setblocking(False)
    return opened


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # the socket is in use: its queue is full, or it belongs to another user
    return True
