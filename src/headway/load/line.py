"""A client's connection to the endpoint: one request at a time, with its answer read event by event."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from time import monotonic_ns
from typing import Any, Final, Protocol

import httptools

from headway.http.address import Address, send_at_once
from headway.http.upstream import MOST_FREE

# An event is one line and may have content under two of these names. The pattern matches up to the end of the line, so
# that such an event counts once.
CONTENT: Final = re.compile(rb'"(?:content|text|reasoning_content|reasoning|arguments)": ?"[^"][^\n]*')
USAGE: Final = rb'"completion_tokens"'
ERROR: Final = re.compile(rb'^data: ?\{"(?:error"|object": ?"error")', re.MULTILINE)
DONE: Final = re.compile(rb"^data: ?\[DONE\]", re.MULTILINE)
STREAM: Final = b"text/event-stream"
TARGETS: Final = (b"x-headway-target", b"x-engine")  # header fields of an answer that may name the engine
ERROR_BYTES: Final = 1000  # maximum number of bytes that are kept of an error answer
LINE: Final = 4_000_000  # maximum number of bytes in one line of an answer
HEALTH: Final = b"GET /health HTTP/1.1\r\n%b\r\n\r\n"  # checks a new connection; any answer is accepted


class Listener(Protocol):
    """Receives the events and the end of an answer. Times are nanoseconds of the monotonic clock."""

    def content(self, count: int, events: bytes, at_ns: int) -> None:
        """Receive complete lines of events. `count` is the number of events that have content."""

    def on_answer(self, line: Line, at_ns: int) -> None: ...

    def on_loss(self, line: Line, at_ns: int) -> None: ...


class Line(asyncio.Protocol):
    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.transport: Any = None
        self.listener: Listener | None = None
        self.parser: Any = httptools.HttpResponseParser(self)
        self.uses = 0
        self.at_ns = 0
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.target: str | None = None
        self.usage = b""  # the last received lines that contain token counts
        self.error_text = b""
        self.rest = b""  # start of a line whose end has not arrived yet
        self.has_data = self.complete = self.keep = self.until_close = False
        self.length_known = self.streams = self.whole = False  # `whole`: the stream has ended with [DONE]

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        send_at_once(transport)
        self.endpoint.opened += 1
        self.endpoint.most = max(self.endpoint.most, self.endpoint.opened)

    def send(self, listener: Listener, data: bytes) -> None:
        self.listener = listener
        self.uses += 1
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.at_ns = monotonic_ns()
        listener = self.listener
        if listener is None:  # data arrived although no request is in flight
            self.transport.abort()
            return
        self.has_data = True
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._reject("the answer is not valid HTTP/1.1")
        if len(self.rest) > LINE:
            self._reject(f"a line of the answer has more than {LINE:,} bytes")
        if self.complete:
            self._finish(listener)

    def connection_lost(self, error: Exception | None) -> None:
        self.endpoint.opened -= 1
        listener = self.listener
        if listener is None:
            if self in self.endpoint.free:
                self.endpoint.free.remove(self)
            return
        self.at_ns = monotonic_ns()
        if self.until_close and error is None:
            self._flush()
            self.listener = None
            listener.on_answer(self, self.at_ns)
        else:
            self.drop()
            listener.on_loss(self, self.at_ns)

    def _reject(self, why: str) -> None:
        self.error_text, self.complete, self.keep = why.encode(), True, False

    def _finish(self, listener: Listener) -> None:
        self.listener = None
        listener.on_answer(self, self.at_ns)
        if self.keep and len(self.endpoint.free) < MOST_FREE:
            self._reset()
            self.endpoint.free.append(self)
        else:
            self.transport.abort()

    def drop(self) -> None:
        """Close the connection without waiting for the answer."""
        self.listener = None
        self.transport.abort()

    # --- the parser --------------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in TARGETS and (self.target is None or name == TARGETS[0]):
            self.target = value.decode("latin-1")
        elif name in (b"content-length", b"transfer-encoding"):
            self.length_known = True
        elif name == b"content-type":
            self.streams = value.startswith(STREAM)

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        self.until_close = not self.length_known and self.status >= 200

    def on_body(self, data: bytes) -> None:
        if self.status >= 300:
            self.error_text += data[: ERROR_BYTES - len(self.error_text)]
            return
        if self.rest:
            data = self.rest + data
        whole = data.rfind(b"\n") + 1
        self.rest = data[whole:]
        if whole:
            self._read(data[:whole] if self.rest else data)

    def _read(self, data: bytes) -> None:
        """Read complete lines: count the events with content, and keep token counts and errors."""
        count = len(CONTENT.findall(data))
        if count and self.listener is not None:
            self.listener.content(count, data, self.at_ns)
        if USAGE in data:
            self.usage = data
        if b"data" in data:
            self.whole = self.whole or DONE.search(data) is not None
            if ERROR.search(data) is not None:
                self.error_text = data[:ERROR_BYTES]

    def _flush(self) -> None:
        """Read the last line, even if no newline ends it."""
        if self.rest:
            rest, self.rest = self.rest, b""
            self._read(rest)

    def on_message_complete(self) -> None:
        if self.status >= 200:
            self._flush()
            self.complete = True
            self.keep = self.parser.should_keep_alive()


class Endpoint:
    """An endpoint and its idle connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: Address) -> None:
        self.loop, self.address = loop, address
        self.free: deque[Line] = deque()
        self.opened = 0
        self.most = 0

    def take_free(self) -> Line | None:
        while self.free:
            line = self.free.pop()
            if not line.transport.is_closing():
                return line
        return None

    async def new(self) -> Line:
        address = self.address
        _, line = await self.loop.create_connection(
            lambda: Line(self), address.host, address.port, ssl=True if address.tls else None
        )
        return line

    def close(self) -> None:
        for line in list(self.free):
            line.transport.abort()


class Greeting:
    """Waits for the first answer on a connection, and accepts any answer or a lost connection."""

    def __init__(self, over: asyncio.Future[None]) -> None:
        self.over = over

    def content(self, count: int, events: bytes, at_ns: int) -> None: ...

    def on_answer(self, line: Line, at_ns: int) -> None:
        self.over.set_result(None)

    def on_loss(self, line: Line, at_ns: int) -> None:
        self.over.set_result(None)


async def greet(endpoint: Endpoint, count: int) -> None:
    """Open `count` connections, and use each connection once, so that it is ready for the run."""
    lines = [await endpoint.new() for _ in range(count)]
    waits: list[asyncio.Future[None]] = []
    for line in lines:
        waits.append(endpoint.loop.create_future())
        line.send(Greeting(waits[-1]), HEALTH % endpoint.address.host_line)
    await asyncio.gather(*waits)
