"""A connection to an engine. What it answers is passed on as it comes: the parser only tells where an answer ends."""

from __future__ import annotations

import asyncio
import re
import socket
from typing import TYPE_CHECKING, Any, Final, Protocol

import httptools

if TYPE_CHECKING:
    from headway.gateway.engines.backend import Backend
    from headway.gateway.wire import Fields

LONGEST_HEAD: Final = 64 * 1024
MOST_FREE: Final = 256  # connections kept open to one engine
CHUNK: Final = re.compile(rb"([1-9a-fA-F][0-9a-fA-F]{0,6})\r\n")  # how one begins that is not the last
CRLF: Final = b"\r\n"


class Asker(Protocol):
    """Who has sent a request: an exchange with a client, or a part of one."""

    until_close: bool  # whether the end of the connection ends the answer

    def headed(self, upstream: Upstream, status: int, fields: Fields) -> None: ...

    def relayed(self, data: bytes) -> None: ...

    def answered(self) -> None: ...

    def broken(self, upstream: Upstream | None, why: str) -> None: ...


class Upstream(asyncio.Protocol):
    """Serves one exchange at a time and goes back to its backend."""

    __slots__ = (
        "backend",
        "between",
        "chunked",
        "complete",
        "exchange",
        "fields",
        "head",
        "headed",
        "keep",
        "more",
        "parser",
        "plain",
        "transport",
    )

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.exchange: Asker | None = None
        self.transport: Any = None
        self.parser: Any = httptools.HttpResponseParser(self)
        self.reset()

    def reset(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.head = b""  # as far as it has come
        self.headed = self.complete = self.keep = False
        self.more = False  # whether something of the body came with the head
        self.between = True  # what came ends with the head or with a chunk, so that something may follow
        self.chunked = False  # whether there was a chunk
        self.plain = False  # whether the parser can do without a chunk that comes whole

    # --- the transport -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, exchange: Asker, data: list[bytes]) -> None:
        self.exchange = exchange
        self.transport.writelines(data)

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:  # nobody asked
            self.close()
            return
        if self.plain and is_chunk(data):  # as most of a stream; to the parser it would be as if nothing had come
            exchange.relayed(data)
            return
        headed = self.headed
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._break(exchange, "an answer that is no HTTP")
            return
        if self.between and self.headed:  # by the last chunk that ended; some of the next one's head may have come
            self.between = data.endswith(CRLF)
            self.plain = self.between and self.chunked
        else:
            self.plain = False
        if not headed:
            data = self.head + data if self.head else data
            if not self.headed:
                self.head = data
                if len(data) > LONGEST_HEAD:
                    self._break(exchange, "an answer whose head is too long")
                return
            data = data[end_of_head(data) :]
            self.head = b""
            self.more = bool(data)
            exchange.headed(self, self.parser.get_status_code(), self.fields)
        if data:
            exchange.relayed(data)
        if self.complete:
            self._done(exchange)

    def _done(self, exchange: Asker) -> None:
        self.exchange = None
        if self.keep and len(self.backend.free) < MOST_FREE:
            self.reset()
            if not self.transport.is_reading():  # its last client was slow
                self.transport.resume_reading()
            self.backend.free.append(self)
        else:
            self.close()
        exchange.answered()

    def _break(self, exchange: Asker, why: str) -> None:
        self.exchange = None
        self.close()
        exchange.broken(self, why)

    def connection_lost(self, error: Exception | None) -> None:
        self.backend.opened -= 1
        self.parser = None  # which knows this object
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
        if self.complete:  # not even the beginning of one may be left in the parser
            raise ValueError("an answer that nobody asked for")
        self.fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.parser.get_status_code() >= 200:
            self.headed = True

    def on_chunk_header(self) -> None:
        self.between, self.chunked = False, True

    def on_chunk_complete(self) -> None:
        self.between = True

    def on_message_complete(self) -> None:
        if self.headed:
            self.complete = True
            self.keep = self.parser.should_keep_alive()  # the parser knows it here alone


def is_chunk(data: bytes) -> bool:
    """Whether it is one whole chunk that is not the last."""
    head = CHUNK.match(data)
    return head is not None and head.end() + int(head[1], 16) + 2 == len(data) and data.endswith(CRLF)


def end_of_head(data: bytes) -> int:
    """Where the body begins, after any number of heads that only say that the answer is to come."""
    start = 0
    while True:
        end = data.index(b"\r\n\r\n", start) + 4
        if data[start + 9 : start + 10] != b"1":  # as in HTTP/1.1 100
            return end
        start = end


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
