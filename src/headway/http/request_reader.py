"""Reads requests from the bytes of a client's connection, within limits on size, and refuses ambiguous ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import httptools
from msgspec import Struct

from headway.http.client_limits import Limits
from headway.http.known_heads import MOST_MISSES, Fields, KnownHead, learn_head

STRANGERS: Final = 64 * 1024  # when more bytes of a body than this have arrived, the client's key is checked
MANY_FIELDS: Final = "the request has too many header fields"
LONG_HEAD: Final = "the head of the request is too long"
LONG_TARGET: Final = "the URL of the request is too long"
NO_UPGRADE: Final = "the connection cannot be upgraded"


class Incoming(Struct):
    method: bytes
    target: bytes
    fields: Fields
    body: bytes
    keep_alive: bool
    version: str
    named: dict[bytes, bytes]  # values of header fields by name; the last value if a name occurs several times
    # The known head to which `fields` and `named` belong. Their Content-Length may be that of another request.
    known: KnownHead | None = None


class Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class ReaderHost(Protocol):
    """What the readers of a server's connections share."""

    limits: Limits
    held_bytes: int  # total size of all request bodies in memory, in bytes

    @property
    def seconds(self) -> Callable[[], float]: ...

    def check_sender(self, named: dict[bytes, bytes]) -> tuple[int, str] | None:
        """If this sender may not send requests, return status and reason of the refusal; otherwise None."""


class RequestReader:
    def __init__(self, host: ReaderHost, on_request: Callable[[Incoming], None], on_expect: Callable[[], None]) -> None:
        """`on_request` receives each request. `on_expect` is called if the client waits for an interim answer."""
        self.host, self.on_request, self.on_expect = host, on_request, on_expect
        self.parser: Any = httptools.HttpRequestParser(self)
        self.stage = "head"  # what the connection waits for: "idle" (a request), "head" or "body"
        self.since = host.seconds()  # time at which `stage` last changed
        self.head_bytes = 0  # in the stage "body": size of the body so far
        self.loose = 0  # number of framing bytes since the last piece of content in a request body
        self.fields: Fields = []
        self.head_fields: Fields = []  # header fields of the current request, without trailers
        self.named: dict[bytes, bytes] = {}
        self.target = b""
        self.version = ""
        self.body: list[bytes] = []
        self.known: KnownHead | None = None  # head of the last request, if it may repeat
        self.misses = 0  # number of heads that did not repeat
        self.unlearned = b""  # data that may be one request with a new head
        self.held = 0  # total size of this connection's request bodies in memory, in bytes

    def close(self) -> None:
        """Break the reference cycles with the connection and the parser."""
        self.parser = self.on_request = self.on_expect = None  # type: ignore[assignment]

    @property
    def arriving(self) -> bool:
        """Whether a part of a request has arrived."""
        return self.stage == "body" or (self.stage == "head" and self.head_bytes > 0)

    def feed(self, data: bytes) -> None:
        """Read data that has arrived. Raise Refused if it cannot be part of an acceptable request."""
        if self.stage == "idle":
            if self.known is not None and self._take_known(self.known, data):
                return
            self.stage, self.since = "head", self.host.seconds()
        if self.stage == "head":
            if not self.head_bytes and self.misses < MOST_MISSES:
                self.unlearned = data
            self.head_bytes += len(data)
        else:
            self.loose += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise Refused(400, NO_UPGRADE) from None
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, Refused):
                raise
            raise error.__context__ from None
        except httptools.HttpParserError:
            raise Refused(400, "the request is not valid HTTP/1.1") from None
        limits = self.host.limits
        if self.stage == "head":
            if self.head_bytes > limits.head_bytes:
                long_target = len(self.target) > limits.head_bytes
                raise Refused(*((414, LONG_TARGET) if long_target else (431, LONG_HEAD)))
            if len(self.fields) > limits.fields:
                raise Refused(431, MANY_FIELDS)
        elif self.stage == "body" and self.loose > limits.head_bytes:
            raise Refused(431, "the chunk framing of the body is too long")

    def _take_known(self, known: KnownHead, data: bytes) -> bool:
        """If the data are one request with a known head and within all limits, take it without the parser."""
        parts = known.split(data)
        host, limits = self.host, self.host.limits
        if parts is None:
            self.known = None
            self.misses += 1
            return False
        body = parts[1]
        size = len(body)
        if (
            size > STRANGERS
            or size > limits.body_bytes
            or host.held_bytes + size > limits.held_bytes
            or len(data) - size > limits.head_bytes
        ):
            return False
        self.misses = 0
        self.held += size
        host.held_bytes += size
        self.since = host.seconds()
        self.on_request(Incoming(known.start, known.target, known.fields, body, True, "1.1", known.named, known))
        return True

    # --- the parser --------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.fields, self.target, self.body, self.stage = [], b"", [], "head"
        self.head_bytes = self.head_bytes or 1  # the first byte may have come together with the request before

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        host, fields = self.host, self.fields
        limits = host.limits
        if len(fields) > limits.fields:
            raise Refused(431, MANY_FIELDS)
        if self.head_bytes > limits.head_bytes:
            self._check_size(limits.head_bytes)
        self.head_fields, self.fields, self.named = fields, [], dict(fields)
        named = self.named
        self.version = self.parser.get_http_version()
        if self.parser.get_method() == b"CONNECT":
            raise Refused(400, NO_UPGRADE)
        check_head(self.version, fields, named)
        length = named.get(b"content-length", b"")
        if length.isdigit() and int(length) > limits.body_bytes:
            raise Refused(413, f"the body is larger than {limits.body_bytes:,} bytes")
        if b"expect" in named and named[b"expect"].lower() == b"100-continue" and self.version != "1.0":
            self.on_expect()  # HTTP/1.0 has no interim answers
        self.stage, self.since, self.head_bytes, self.loose = "body", host.seconds(), 0, 0

    def _check_size(self, most: int) -> None:
        """Refuse a URL or a head with more bytes than `most`. Bytes of the body may have arrived with the head."""
        if len(self.target) > most:
            raise Refused(414, LONG_TARGET)
        if len(self.target) + sum(len(name) + len(value) for name, value in self.fields) > most:
            raise Refused(431, LONG_HEAD)

    def on_body(self, data: bytes) -> None:
        host, size = self.host, len(data)
        self.body.append(data)
        self.loose = 0
        before = self.head_bytes
        self.head_bytes += size
        self.held += size
        host.held_bytes += size
        if self.head_bytes > host.limits.body_bytes:
            raise Refused(413, f"the body is larger than {host.limits.body_bytes:,} bytes")
        if host.held_bytes > host.limits.held_bytes:
            raise Refused(503, "the gateway has reached its limit on bytes of request bodies")
        if before <= STRANGERS < self.head_bytes:  # clients without a valid key must not fill the memory
            refusal = host.check_sender(self.named)
            if refusal is not None:
                raise Refused(*refusal)

    def on_message_complete(self) -> None:
        parser, named = self.parser, self.named
        body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        self.body, self.head_bytes, self.stage = [], 0, "idle"
        self.since = self.host.seconds()
        method, keep = parser.get_method(), parser.should_keep_alive()
        incoming = Incoming(method, self.target, self.head_fields, body, keep, self.version, named)
        data, self.unlearned = self.unlearned, b""
        if data and keep and self.version == "1.1" and b"expect" not in named:
            known = self.known = incoming.known = learn_head(data, self.head_fields, named, len(body))
            if known is not None:
                known.start, known.target = method, self.target
        self.on_request(incoming)


def check_head(version: str, fields: Fields, named: dict[bytes, bytes]) -> None:
    """Refuse a head whose version, host or framing is missing, ambiguous or unknown."""
    if version not in ("1.1", "1.0"):
        raise Refused(505, "the gateway speaks HTTP/1.1 and HTTP/1.0")
    if b"host" not in named:
        if version == "1.1":
            raise Refused(400, "the request has no Host header field")
    elif len(named) < len(fields) and sum(name == b"host" for name, _ in fields) > 1:
        raise Refused(400, "the request has more than one Host header field")
    if b"transfer-encoding" in named:
        values = b",".join(value for name, value in fields if name == b"transfer-encoding")
        codings = [coding.strip().lower() for coding in values.split(b",")]
        if version == "1.0":
            raise Refused(400, "HTTP/1.0 has no Transfer-Encoding")
        if codings != [b"chunked"]:  # if chunked is not the last coding, the end of the body is unknown
            status = 501 if codings[-1] == b"chunked" else 400
            raise Refused(status, "the only Transfer-Encoding that the gateway accepts is chunked")
    if b"upgrade" in named:
        raise Refused(400, NO_UPGRADE)
