"""Connections to engines. They forward an answer's bytes unchanged; the parser only finds the ends of the answer and of
its chunks. An incomplete chunk is held back, so that an error event can follow if the engine fails."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import httptools

from headway.http.address import send_at_once
from headway.http.answer_tally import EVENT, TOKEN_COUNT, AnswerTally
from headway.http.forwarding import FRAMING, OK
from headway.http.known_heads import Fields, KnownHead, learn_head

if TYPE_CHECKING:
    from headway.http.address import Address

LONGEST_HEAD: Final = 64 * 1024
MOST_FREE: Final = 256  # maximum number of idle connections to one engine
MOST_HELD: Final = 64 * 1024  # a longer piece of a chunk is forwarded before the chunk is complete
PHRASE: Final = len("HTTP/1.1 200 ")  # offset of the reason phrase in a status line
INVALID: Final = (httptools.HttpParserError, httptools.HttpParserUpgrade)  # no request asks for another protocol
INVALID_HTTP: Final = "invalid HTTP response"


class Server(Protocol):
    """A server with a pool of connections."""

    @property
    def address(self) -> Address: ...

    @property
    def free(self) -> deque[Upstream]: ...

    opened: int  # number of open connections, idle or in use
    known: KnownHead | None  # head of the last answer with status 200 that arrived in one piece


class Asker(Protocol):
    """The sender of a request: an exchange with a client, or a part of an exchange. The connection calls the asker's
    methods as the answer arrives."""

    until_close: bool  # whether the engine ends the answer by closing the connection

    def on_head(self, upstream: Upstream, status: int, fields: Fields) -> None: ...

    def on_data(self, data: bytes) -> None: ...

    def on_complete(self) -> None: ...

    def on_broken(self, upstream: Upstream | None, why: str) -> None: ...


class Upstream(asyncio.Protocol):
    """A connection that handles one request at a time. Between requests, it is in its server's pool (`free`)."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.exchange: Asker | None = None
        self.transport: Any = None
        self.parser: Any = httptools.HttpResponseParser(self)
        self.tally = AnswerTally(True)
        self.reset()

    def reset(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.head = b""  # the part of the answer's head that has arrived
        self.has_head = self.complete = self.keep = False
        self.known: KnownHead | None = None  # the known head to which `fields` belong; None: they were parsed
        self.length = b""  # value of Content-Length, if `known` is set
        self.more = False  # whether a part of the body arrived together with the head
        self.phrase = b""  # reason phrase of the status line, such as b"OK"
        self.active = False  # whether data was forwarded since the last check for a silent engine
        self.write: Callable[[bytes], None] | None = None  # if set, forwards data directly to the client
        self.chunked = False  # whether the answer has chunks
        self.in_chunk = False  # whether the data so far ends within a chunk
        self.held = b""  # data that is held back until its last chunk is complete
        self.torn = False  # whether the data that was forwarded ends within a chunk

    # --- the transport -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        send_at_once(transport)

    def send(self, exchange: Asker, data: list[bytes]) -> None:
        self.exchange = exchange
        self.transport.writelines(data)

    def pass_on(self, write: Callable[[bytes], None], tally: AnswerTally) -> None:
        """Write the rest of a stream directly to the client, and call the asker only at the end. This saves two calls
        per piece, which is 5 % of the cost of a stream."""
        self.write, self.tally = write, tally

    def leave(self) -> None:
        """Drop the request and close the connection, which tells the engine to stop."""
        self.exchange = self.write = None
        self.close()

    def data_received(self, data: bytes) -> None:
        write = self.write
        if write is None:
            self._deliver(data)
            return
        try:
            self.parser.feed_data(data)
        except INVALID:
            self._break(INVALID_HTTP)
            return
        if self.chunked and (self.in_chunk or self.held or self.torn or data[-2:] != b"\r\n"):
            data = self._whole_chunks(data)
        write(data)
        tally = self.tally
        tally.events += data.count(EVENT)  # the code of `AnswerTally.count`, inlined to save a call
        if data.find(TOKEN_COUNT) >= 0:
            tally.tail = data
        self.active = True
        if self.complete:
            self._complete()

    def _deliver(self, data: bytes) -> None:
        """Give the asker the answer's head once the head is complete, and then each piece of the body."""
        exchange = self.exchange
        if exchange is None:  # data arrived without a request
            self.close()
            return
        had_head, first = self.has_head, not self.head
        if first and not had_head and self.server.known is not None and self._take_known(exchange, data):
            return
        try:
            self.parser.feed_data(data)
        except INVALID:
            self._break(INVALID_HTTP)
            return
        if not had_head:
            data = self.head + data if self.head else data
            if not self.has_head:
                self.head = data
                if len(data) > LONGEST_HEAD:
                    self._break("the head of the answer is too long")
                return
            start, end = find_head(data)
            if first and not start and self.keep and self.parser.get_status_code() == OK:
                self._learn(data, len(data) - end)
            self.phrase = data[start + PHRASE : data.index(b"\r\n", start)]
            data = data[end:]
            self.head = b""
            self.more = bool(data)
            exchange.on_head(self, self.parser.get_status_code(), self.fields)
        if self.chunked:
            data = self._whole_chunks(data)
        if data:
            exchange.on_data(data)
        if self.complete:
            self._complete()

    def _take_known(self, exchange: Asker, data: bytes) -> bool:
        """If the data are one complete answer with the server's known head, deliver it without the parser."""
        known = self.server.known
        parts = None if known is None else known.split(data)
        if known is None or parts is None:
            return False
        length, body = parts
        self.known, self.length, self.phrase = known, length, known.start
        self.fields = known.fields_with(length)
        self.has_head = self.complete = self.keep = True
        self.more = bool(body)
        exchange.on_head(self, OK, self.fields)
        if body:
            exchange.on_data(body)
        self._complete()
        return True

    def _learn(self, data: bytes, size: int) -> None:
        known = learn_head(data, self.fields, dict(self.fields), size)
        if known is not None:
            known.start = data[PHRASE : data.index(b"\r\n")]
            self.server.known = known

    def _complete(self) -> None:
        exchange, self.exchange = self.exchange, None
        # An answer may come before the whole request is sent. The engine may then never read the rest.
        if self.keep and len(self.server.free) < MOST_FREE and not self.transport.get_write_buffer_size():
            self.reset()
            if not self.transport.is_reading():  # reading was paused because the last client was slow
                self.transport.resume_reading()
            self.server.free.append(self)
        else:
            self.close()
        if exchange is not None:
            exchange.on_complete()

    def _break(self, why: str) -> None:
        exchange = self.exchange
        self.leave()
        if exchange is not None:
            exchange.on_broken(self, why)

    def connection_lost(self, error: Exception | None) -> None:
        self.server.opened -= 1
        if self in self.server.free:
            self.server.free.remove(self)
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            if self.has_head and exchange.until_close and error is None:
                exchange.on_complete()
            else:
                exchange.on_broken(self, "the connection was lost")
        self.parser = None  # break the reference cycle between connection and parser

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _whole_chunks(self, data: bytes) -> bytes:
        """Return the data that may be forwarded: nothing while the last chunk is incomplete, unless it is long."""
        data = self.held + data
        torn = self.in_chunk or data[-2:] != b"\r\n"  # the line before a chunk may be incomplete too
        if torn and len(data) < MOST_HELD and not self.torn:
            self.held = data
            return b""
        self.held, self.torn = b"", torn
        return data

    # --- the parser --------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:  # the engine sends without a request: reject this before the parser stores any data
            raise ValueError("an answer without a request")
        self.fields, self.chunked = [], False  # after a 1xx head, another head follows

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.fields.append((name, value))
        if name == b"transfer-encoding":
            if value.strip().lower() != b"chunked":  # the end of the answer would be unknown
                raise ValueError("a transfer coding other than chunked")
            self.chunked = True

    def on_headers_complete(self) -> None:
        if self.parser.get_status_code() >= 200:
            self.has_head = True

    def on_chunk_header(self) -> None:
        self.in_chunk = True

    def on_chunk_complete(self) -> None:
        self.in_chunk = False

    def on_message_complete(self) -> None:
        if self.has_head:
            self.complete = True
            self.keep = self.parser.should_keep_alive()  # valid only inside this callback


def find_head(data: bytes) -> tuple[int, int]:
    """Return the offsets at which the final head begins and ends. Skip 1xx heads before it."""
    start = 0
    while True:
        end = data.index(b"\r\n\r\n", start) + 4
        if data[start + 9 : start + 10] != b"1":  # the status is not 1xx, such as 100, so this is the final head
            return start, end
        start = end


def take_free(server: Server) -> Upstream | None:
    """Take an idle connection that is still open from the pool, and return it; None if the pool has none."""
    free = server.free
    while free:
        upstream = free.pop()
        if not upstream.transport.is_closing():
            return upstream
    return None


async def connect(loop: asyncio.AbstractEventLoop, server: Server, seconds: float) -> Upstream:
    address = server.address
    server.opened += 1
    try:
        _, upstream = await asyncio.wait_for(
            loop.create_connection(
                lambda: Upstream(server),
                address.host,
                address.port,
                ssl=(address.context or True) if address.tls else None,
                server_hostname=address.server_name,
            ),
            seconds,
        )
    except BaseException:
        server.opened -= 1
        raise
    if upstream.transport.is_closing():  # the server has reset it already; writing to it would raise an error
        raise ConnectionResetError("The server has reset the connection.")
    return upstream


class Payload:
    """Removes the framing from the body of an answer."""

    __slots__ = ("_parser", "_pieces")

    def __init__(self, fields: Fields) -> None:
        self._pieces: list[bytes] = []
        self._parser: Any = httptools.HttpResponseParser(self)
        head = [b"%b: %b\r\n" % field for field in fields if field[0] in FRAMING]
        self._parser.feed_data(b"HTTP/1.1 200 OK\r\n" + b"".join(head) + b"\r\n")

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def read(self, data: bytes) -> bytes:
        """Return the body bytes within a piece of the answer. The connection has already checked the framing."""
        self._parser.feed_data(data)
        pieces = self._pieces
        if len(pieces) == 1:
            return pieces.pop()
        data = b"".join(pieces)
        pieces.clear()
        return data


def is_framed(fields: Fields) -> bool:
    """Return whether the header fields determine the end of an answer. If False, the end of the connection does."""
    return any(name in FRAMING for name, _ in fields)
