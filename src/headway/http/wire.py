"""Client connections: HTTP/1.1 and HTTP/1.0 on asyncio's transport, with limits on size, number and time."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter, deque
from collections.abc import Callable
from typing import Annotated, Any, Final, Protocol

import httptools
from msgspec import Meta, Struct

from headway.config.keys import INTERNAL, Doc, Positive, PositiveSeconds
from headway.http.address import send_at_once
from headway.http.known_heads import MOST_MISSES, Fields, KnownHead, learn_head
from headway.http.replies import error_body, head_of

PIPELINED: Final = 4  # if this many requests wait on a connection, the gateway stops reading from it
STRANGERS: Final = 64 * 1024  # when more bytes of a body than this have arrived, the client's key is checked
LEAST_PER_ADDRESS: Final = 256  # lowest default of `address_connections`
LINGER_S: Final = 5.0  # time that a refused client has to stop sending and to read the reason, in seconds
MANY_FIELDS: Final = "the request has too many header fields"
LONG_HEAD: Final = "the head of the request is too long"
LONG_TARGET: Final = "the URL of the request is too long"
INCOMPLETE: Final = "the request is not complete"
NO_UPGRADE: Final = "the connection cannot be upgraded"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
GONE_S: Final = 0.02  # time until the gateway first looks whether a client that sends no more has disconnected
IPV4_MAPPED: Final = bytes(10) + b"\xff\xff"  # prefix of IPv4 addresses in IPv6 sockets
PROBE_S: Final = 5.0  # time between two interim answers to a client that sends no more
log = logging.getLogger("headway.gateway")


class Limits(Struct, frozen=True):
    """Limits on clients and their requests."""

    head_bytes: Annotated[int, Meta(ge=256, le=2**20), "size of the head of a request"] = 32 * 1024
    fields: Annotated[int, INTERNAL] = 100
    body_bytes: Annotated[Positive, "size of the body of a request"] = 32 * 1024 * 1024
    head_s: Annotated[PositiveSeconds, "time to send a head, from its first byte or the start of the connection"] = 10.0
    body_s: Annotated[PositiveSeconds, "time to send a body"] = 60.0
    idle_s: Annotated[PositiveSeconds, "idle time between requests on a connection"] = 75.0
    unsent_bytes: Annotated[int, INTERNAL] = 256 * 1024  # an answer pauses when it has this many unsent bytes
    unread_s: Annotated[PositiveSeconds, "time for which a client may read nothing of its answer"] = 60.0
    connections: Annotated[Positive, "open connections of all clients together"] = 16_384
    address_connections: Annotated[
        Positive | None,
        Doc(
            "open connections from one client address; the addresses of an IPv6 network (64 bits) count as one",
            default="a quarter of `connections`, but at least 256",
        ),
    ] = None
    held_bytes: Annotated[Positive, "size of all bodies in memory: those that arrive, and those in flight"] = 1 << 30

    @property
    def per_address(self) -> int:
        quarter = max(LEAST_PER_ADDRESS, self.connections // 4)
        return quarter if self.address_connections is None else self.address_connections


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


class Answering(Protocol):
    """An exchange that answers the current request of a connection."""

    over: bool

    @property
    def sent(self) -> bool | int:
        """Whether a part of the answer has been sent to the client."""

    def client_gone(self) -> None: ...

    def overdue(self, now: float) -> None: ...

    def hold(self) -> None:
        """Pause the answer, because the client does not read."""

    def go_on(self) -> None: ...


class Host(Protocol):
    """The server that accepts the connections."""

    limits: Limits
    clients: dict[ClientConnection, None]
    addresses: Counter[str]  # number of open connections by client address
    half_closed: bool  # whether a client that has closed its sending half gets its answer; if not, it counts as gone
    held_bytes: int  # total size of all request bodies in memory, in bytes
    draining: bool  # whether the server shuts down; each answer then says that its connection will close

    @property
    def seconds(self) -> Callable[[], float]: ...

    def begin(self, client: ClientConnection, incoming: Incoming) -> None:
        """Answer the request, or set `client.exchange` to an exchange that will answer it."""

    def check_sender(self, named: dict[bytes, bytes]) -> tuple[int, str] | None:
        """If this sender may not send requests, return status and reason of the refusal; otherwise None."""

    def count_refusal(self, status: int) -> None:
        """Count an error answer that the connection itself sent."""

    def report_turned_away(self, address: str, why: str) -> None:
        """Report a connection that was refused because of a limit. There may be thousands in a second."""


class ClientConnection(asyncio.Protocol):
    def __init__(self, host: Host) -> None:
        self.host = host
        self.exchange: Answering | None = None
        self.waiting: deque[Incoming] = deque()
        self.parser: Any = httptools.HttpRequestParser(self)
        self.stage = "idle"  # what the connection waits for: "idle" (a request), "head" or "body"
        self.since = 0.0  # time at which `stage` last changed
        self.paused = self.closing = self.beginning = False
        self.ended = False  # whether the client has closed its sending half
        self.probed = 0.0  # time of the last interim answer to a client that has closed its sending half
        self.address = ""
        self.refusal: tuple[int, str] | None = None  # status and reason of an error to send after the pending answers
        self.stuck: tuple[int, float] | None = None  # number of unsent bytes, and time at which this number last fell
        self.transport: Any = None
        self.head_bytes = 0
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
        self.answering_bytes = 0  # size of the body of the request that is being answered, in bytes

    # --- the transport -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=self.host.limits.unsent_bytes)
        send_at_once(transport)
        self.since = self.host.seconds()
        self.stage = "head"
        host = self.host
        full = len(host.clients) >= host.limits.connections
        host.clients[self] = None
        self.address = network_of(transport.get_extra_info("peername"))
        host.addresses[self.address] += 1
        if full:
            self._turn_away(503, "the gateway has too many connections")
        elif host.addresses[self.address] > host.limits.per_address:
            self._turn_away(429, "this client address has too many connections")

    def _turn_away(self, status: int, why: str) -> None:
        self.host.report_turned_away(self.address, why)
        self.refuse(status, why, linger=False)

    def connection_lost(self, error: Exception | None) -> None:
        self.host.clients.pop(self, None)
        self.host.addresses[self.address] -= 1
        if not self.host.addresses[self.address]:
            del self.host.addresses[self.address]
        self.waiting.clear()
        self.host.held_bytes -= self.held
        self.held = self.answering_bytes = 0
        self.parser = None  # break the reference cycle between connection and parser
        if self.exchange is not None:
            self.exchange.client_gone()

    def data_received(self, data: bytes) -> None:
        if self.closing or self.refusal is not None:
            return
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
            self.refuse(400, NO_UPGRADE)
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, Refused):
                raise
            self.refuse(error.__context__.status, str(error.__context__))
        except httptools.HttpParserError:
            self.refuse(400, "the request is not valid HTTP/1.1")
        if self.stage == "head":
            if self.head_bytes > self.host.limits.head_bytes:
                long_target = len(self.target) > self.host.limits.head_bytes
                self.refuse(*((414, LONG_TARGET) if long_target else (431, LONG_HEAD)))
            elif len(self.fields) > self.host.limits.fields:
                self.refuse(431, MANY_FIELDS)
        elif self.stage == "body" and self.loose > self.host.limits.head_bytes:
            self.refuse(431, "the chunk framing of the body is too long")

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
        self._arrived(Incoming(known.start, known.target, known.fields, body, True, "1.1", known.named, known))
        return True

    def eof_received(self) -> bool:
        """If requests are pending, keep the connection open for their answers. The client may have closed only its
        sending half; `_probe` finds out if it has disconnected."""
        pending = self.exchange is not None or bool(self.waiting)
        if self.host.half_closed and self.refusal is None and self._arriving:
            self.refuse(400, INCOMPLETE, linger=False)
        self.ended = not self.closing and self.host.half_closed and pending
        if self.ended:
            self._probe(self.host.seconds())
            asyncio.get_running_loop().call_later(GONE_S, self._close_if_gone)
        return self.ended

    def _probe(self, now: float) -> None:
        """Write an interim answer, which clients ignore. If the client has disconnected, its machine resets the
        connection. Once an answer has begun, the pieces of the answer serve the same purpose."""
        self.probed = now
        if self.exchange is not None and not self.exchange.sent and self.version != "1.0":
            self.transport.write(CONTINUE)

    def _close_if_gone(self) -> None:
        """Close the connection if the client has reset it. After the end of the client's data, the event loop does not
        report a reset."""
        sock = None if self.transport.is_closing() else self.transport.get_extra_info("socket")
        if sock is not None and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()

    def pause_writing(self) -> None:
        self.paused = True
        if self.exchange is not None:
            self.exchange.hold()

    def resume_writing(self) -> None:
        self.paused, self.stuck = False, None
        if self.exchange is not None:
            self.exchange.go_on()
        elif self.waiting:
            self._next()

    def answer(self, incoming: Incoming, status: int, body: bytes, fields: tuple[tuple[str, str], ...] = ()) -> None:
        """Send a complete answer, and finish the request."""
        keep = incoming.keep_alive and not self.host.draining
        if keep and incoming.version == "1.0":
            fields = (*fields, ("connection", "keep-alive"))
        head = head_of(status, len(body), fields, close=not keep)
        self.transport.writelines([head] if incoming.method == b"HEAD" else [head, body])
        self.finish(keep)

    def refuse(self, status: int, why: str, linger: bool = True) -> None:
        """Send an error after the pending answers, then close the connection. With `linger`, close it after a delay: if
        the client still sends, closing at once could reset the connection before the client has read the error."""
        if self.closing:
            return
        if self.exchange is not None or self.waiting:
            self.refusal = (status, why)
            return
        self.closing, self.since = True, self.host.seconds()
        body = error_body(status, why)
        self.transport.writelines([head_of(status, len(body), close=True), body])
        self.host.count_refusal(status)
        if linger and self.stage != "idle" and self.transport.can_write_eof():
            self.transport.write_eof()
            asyncio.get_running_loop().call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()

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
        check_head(self.version, fields, named)
        length = named.get(b"content-length", b"")
        if length.isdigit() and int(length) > limits.body_bytes:
            raise Refused(413, f"the body is larger than {limits.body_bytes:,} bytes")
        if b"expect" in named and self._expects(named[b"expect"]):
            self.transport.write(CONTINUE)
        self.stage, self.since, self.head_bytes, self.loose = "body", host.seconds(), 0, 0

    def _check_size(self, most: int) -> None:
        """Refuse a URL or a head with more bytes than `most`. Bytes of the body may have arrived with the head."""
        if len(self.target) > most:
            raise Refused(414, LONG_TARGET)
        if len(self.target) + sum(len(name) + len(value) for name, value in self.fields) > most:
            raise Refused(431, LONG_HEAD)

    def _expects(self, value: bytes) -> bool:
        """Return whether the client waits for an interim answer. HTTP/1.0 has no interim answers."""
        return value.lower() == b"100-continue" and self.exchange is None and self.version != "1.0"

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
        self._arrived(incoming)

    def _arrived(self, incoming: Incoming) -> None:
        self.waiting.append(incoming)
        if len(self.waiting) == PIPELINED:
            self.transport.pause_reading()
        self._next()

    # --- the exchange ------------------------------------------------------------------------------------------------

    def finish(self, keep: bool) -> None:
        """End the current request after its answer. If `keep`, continue with the next request; otherwise close."""
        host = self.host
        self.exchange = None
        self.since = host.seconds()
        self.held -= self.answering_bytes
        host.held_bytes -= self.answering_bytes
        self.answering_bytes = 0
        if not keep or self.closing or (self.ended and not self.waiting and self.refusal is None):
            self.closing = True
            self.transport.close()
        elif self.waiting:
            self._next()
        elif self.refusal is not None:
            self.refuse(*self.refusal)

    @property
    def idle(self) -> bool:
        """Whether no request arrives, waits or is answered on this connection."""
        return self.exchange is None and not self.waiting and not self._arriving

    @property
    def _arriving(self) -> bool:
        """Whether a part of a request has arrived."""
        return self.stage == "body" or (self.stage == "head" and self.head_bytes > 0)

    def close_idle(self) -> None:
        """Close the connection if it is idle."""
        if self.idle and not self.closing:
            self.closing = True
            self.transport.close()

    def _next(self) -> None:
        """Begin waiting requests one by one, unless the client does not read its answers. A request that is answered
        immediately calls this method again; that inner call returns at once, and the outer call continues the loop."""
        if self.beginning:
            return
        self.beginning = True
        waiting = self.waiting
        while waiting and self.exchange is None and not self.paused and not self.closing:
            incoming = waiting.popleft()
            self.answering_bytes = len(incoming.body)
            if len(waiting) == PIPELINED - 1:
                self.transport.resume_reading()
            try:
                self.host.begin(self, incoming)
            except Exception:  # for example raised by a policy; other clients must not be affected
                log.exception("failed to begin a request")
                self.fail()
        self.beginning = False

    def fail(self) -> None:
        """Answer 500 after an internal error."""
        exchange, self.exchange = self.exchange, None
        self.waiting.clear()
        if exchange is not None and not exchange.over:
            exchange.client_gone()
        self.refuse(500, "internal error in the gateway")

    def overdue(self, now: float) -> None:
        """If a time limit has passed, close the connection or end the request. Called periodically."""
        limits = self.host.limits
        if (self.paused or self.closing) and self._stalls(now):
            self.transport.abort()
            return
        if self.ended:
            self._close_if_gone()
            if now - self.probed > PROBE_S:
                self._probe(now)
        if self.exchange is not None:
            self.exchange.overdue(now)
            return
        if self.closing or self.waiting:
            return
        if self.stage == "idle":
            if now - self.since > limits.idle_s:
                self.closing = True
                self.transport.close()
        elif now - self.since > (limits.head_s if self.stage == "head" else limits.body_s):
            self.refuse(408, "the request did not arrive in time", linger=False)

    def _stalls(self, now: float) -> bool:
        """Return whether the client has read nothing for too long."""
        left = self.transport.get_write_buffer_size()
        if self.stuck is None or left < self.stuck[0]:
            self.stuck = (left, now)
        return now - self.stuck[1] > self.host.limits.unread_s


class Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


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


def network_of(peer: Any) -> str:
    """Return the client address that counts towards the limit of connections: the IPv4 address, or the first 64 bits
    of the IPv6 address, because one client may own all addresses of such a network."""
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    if ":" not in host:
        return host
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    if packed.startswith(IPV4_MAPPED):
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return packed[:8].hex()
