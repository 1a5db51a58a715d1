"""A client's connection: HTTP/1.1 by hand on asyncio's transport, bounded in every direction."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import httptools
from msgspec import Struct

from headway.gateway.answers import error_body, head_of

if TYPE_CHECKING:
    from headway.gateway.app import App
    from headway.gateway.exchange import Exchange

Fields = list[tuple[bytes, bytes]]
PIPELINED: Final = 4  # requests that may wait on one connection; then it is not read


class Limits(Struct, frozen=True):
    """Of one client."""

    head_bytes: int = 32 * 1024
    fields: int = 100
    body_bytes: int = 32 * 1024 * 1024
    head_s: float = 10.0  # to send a head, from its first byte on, or from the connection's beginning
    body_s: float = 60.0
    idle_s: float = 75.0  # between requests
    unsent_bytes: int = 256 * 1024  # of an answer that a slow client has not taken


class Incoming(Struct):
    """A request as it came."""

    method: bytes
    target: bytes
    fields: Fields
    body: bytes
    keep_alive: bool
    version: str


class Client(asyncio.Protocol):
    __slots__ = (
        "app",
        "body",
        "closing",
        "exchange",
        "fields",
        "head_bytes",
        "parser",
        "paused",
        "since",
        "stage",
        "target",
        "transport",
        "waiting",
    )

    def __init__(self, app: App) -> None:
        self.app = app
        self.exchange: Exchange | None = None
        self.waiting: deque[Incoming] = deque()
        self.parser: Any = httptools.HttpRequestParser(self)
        self.stage = "idle"  # idle, head or body: what is being waited for
        self.since = 0.0
        self.paused = self.closing = False
        self.transport: Any = None
        self.head_bytes = 0
        self.fields: Fields = []
        self.target = b""
        self.body: list[bytes] = []

    # --- the transport -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=self.app.limits.unsent_bytes)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.since = self.app.seconds()
        self.stage = "head"
        self.app.clients[self] = None

    def connection_lost(self, error: Exception | None) -> None:
        self.app.clients.pop(self, None)
        self.waiting.clear()
        if self.exchange is not None:
            self.exchange.client_gone()

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        if self.stage == "idle":
            self.stage, self.since = "head", self.app.seconds()
        if self.stage == "head":
            self.head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.refuse(400, "the connection cannot be upgraded")
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, Refused):
                raise
            self.refuse(error.__context__.status, str(error.__context__))
        except httptools.HttpParserError:
            self.refuse(400, "the request is no HTTP/1.1")
        if self.stage == "head" and self.head_bytes > self.app.limits.head_bytes:
            self.refuse(431, "the head of the request is too long")

    def eof_received(self) -> bool:
        return False  # who sends no more does not read on either, for all that clients of this kind do

    def pause_writing(self) -> None:
        self.paused = True
        if self.exchange is not None:
            self.exchange.hold()

    def resume_writing(self) -> None:
        self.paused = False
        if self.exchange is not None:
            self.exchange.go_on()

    def refuse(self, status: int, why: str) -> None:
        """The connection ends with this answer, unless one is under way."""
        if self.closing:
            return
        self.closing = True
        if self.exchange is None:
            body = error_body(status, why)
            self.transport.writelines([head_of(status, len(body), close=True), body])
            self.app.metrics.refused(status)
            self.transport.close()
        else:
            self.transport.abort()

    # --- the parser --------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.fields, self.target, self.body = [], b"", []

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.fields) >= self.app.limits.fields:
            raise Refused(431, "the request has too many header fields")
        self.fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        limits = self.app.limits
        if self.head_bytes > limits.head_bytes and sum(len(a) + len(b) for a, b in self.fields) > limits.head_bytes:
            raise Refused(431, "the head of the request is too long")
        for name, value in self.fields:
            if name == b"upgrade":
                raise Refused(400, "the connection cannot be upgraded")
            if name == b"content-length" and value.isdigit() and int(value) > limits.body_bytes:
                raise Refused(413, f"a body has at most {limits.body_bytes:,} bytes")
            if name == b"expect" and value.lower() == b"100-continue" and self.exchange is None:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.stage, self.since, self.head_bytes = "body", self.app.seconds(), 0

    def on_body(self, data: bytes) -> None:
        self.body.append(data)
        self.head_bytes += len(data)
        if self.head_bytes > self.app.limits.body_bytes:
            raise Refused(413, f"a body has at most {self.app.limits.body_bytes:,} bytes")

    def on_message_complete(self) -> None:
        parser = self.parser
        body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        self.body, self.head_bytes, self.stage = [], 0, "idle"
        self.since = self.app.seconds()
        incoming = Incoming(
            parser.get_method(), self.target, self.fields, body, parser.should_keep_alive(), parser.get_http_version()
        )
        if self.exchange is None and not self.waiting:
            self.exchange = self.app.begin(self, incoming)
        else:
            self.waiting.append(incoming)
            if len(self.waiting) >= PIPELINED:
                self.transport.pause_reading()

    # --- the exchange ------------------------------------------------------------------------------------------------

    def done(self, keep: bool) -> None:
        """An exchange is over."""
        self.exchange = None
        self.since = self.app.seconds()
        if not keep or self.closing or self.app.draining:
            self.closing = True
            self.transport.close()
            return
        if self.waiting:
            if len(self.waiting) == PIPELINED:
                self.transport.resume_reading()
            self.exchange = self.app.begin(self, self.waiting.popleft())

    def overdue(self, now: float) -> None:
        """Called now and then: what has been waited for too long ends."""
        limits = self.app.limits
        if self.exchange is not None or self.closing:
            return
        if self.stage == "idle":
            if now - self.since > limits.idle_s:
                self.closing = True
                self.transport.close()
        elif now - self.since > (limits.head_s if self.stage == "head" else limits.body_s):
            self.refuse(408, "the request took too long to come")


class Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
