"""A connection to an engine. What it answers is passed on as it comes: the parser only tells where an answer ends."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Final

import httptools

if TYPE_CHECKING:
    from headway.gateway.backend import Backend
    from headway.gateway.exchange import Exchange

LONGEST_HEAD: Final = 64 * 1024
MOST_FREE: Final = 256  # connections kept open to one engine


class Upstream(asyncio.Protocol):
    """Serves one exchange at a time and goes back to its backend."""

    __slots__ = (
        "backend",
        "between",
        "complete",
        "exchange",
        "fields",
        "head",
        "headed",
        "parser",
        "transport",
    )

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.exchange: Exchange | None = None
        self.transport: Any = None
        self.reset()

    def reset(self) -> None:
        self.parser: Any = httptools.HttpResponseParser(self)
        self.fields: list[tuple[bytes, bytes]] = []
        self.head = b""  # as far as it has come
        self.headed = self.complete = False
        self.between = True  # not within a chunk, so that something may follow

    # --- the transport -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, exchange: Exchange, data: list[bytes]) -> None:
        self.exchange = exchange
        self.transport.writelines(data)

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:  # nobody asked
            self.close()
            return
        headed = self.headed
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._break(exchange, "an answer that is no HTTP")
            return
        if not headed:
            data = self.head + data if self.head else data
            if not self.headed:
                self.head = data
                if len(data) > LONGEST_HEAD:
                    self._break(exchange, "an answer whose head is too long")
                return
            data = data[data.index(b"\r\n\r\n") + 4 :]
            self.head = b""
            exchange.headed(self, self.parser.get_status_code(), self.fields)
        if data:
            exchange.relayed(data)
        if self.complete:
            self._done(exchange)

    def _done(self, exchange: Exchange) -> None:
        self.exchange = None
        if self.parser.should_keep_alive() and len(self.backend.free) < MOST_FREE:
            self.reset()
            self.backend.free.append(self)
        else:
            self.close()
        exchange.answered()

    def _break(self, exchange: Exchange, why: str) -> None:
        self.exchange = None
        self.close()
        exchange.broken(self, why)

    def connection_lost(self, error: Exception | None) -> None:
        self.backend.opened -= 1
        if self in self.backend.free:
            self.backend.free.remove(self)
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        if self.headed and exchange.until_close and error is None:
            exchange.answered()
        else:
            exchange.broken(self, "the connection was lost")

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def pause_writing(self) -> None:  # a prompt is in memory already, wherever it waits
        pass

    def resume_writing(self) -> None:
        pass

    # --- the parser --------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.parser.get_status_code() >= 200:
            self.headed = True

    def on_chunk_header(self) -> None:
        self.between = False

    def on_chunk_complete(self) -> None:
        self.between = True

    def on_message_complete(self) -> None:
        if self.headed:
            self.complete = True


async def connect(loop: asyncio.AbstractEventLoop, backend: Backend, seconds: float) -> Upstream:
    address = backend.address
    backend.opened += 1
    try:
        _, upstream = await asyncio.wait_for(
            loop.create_connection(
                lambda: Upstream(backend), address.host, address.port, ssl=True if address.tls else None
            ),
            seconds,
        )
    except BaseException:
        backend.opened -= 1
        raise
    return upstream
