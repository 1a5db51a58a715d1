"""Client connections: HTTP/1.1 and HTTP/1.0 on asyncio's transport, with limits on number and time."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter, deque
from typing import Any, Final, Protocol

from headway.http.address import send_at_once
from headway.http.client_limits import network_of
from headway.http.replies import error_body, head_of
from headway.http.request_reader import Incoming, ReaderHost, Refused, RequestReader

PIPELINED: Final = 4  # if this many requests wait on a connection, the gateway stops reading from it
LINGER_S: Final = 5.0  # time that a refused client has to stop sending and to read the reason, in seconds
INCOMPLETE: Final = "the request is not complete"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
GONE_S: Final = 0.02  # time until the gateway first looks whether a client that sends no more has disconnected
PROBE_S: Final = 5.0  # time between two interim answers to a client that sends no more
log = logging.getLogger("headway.gateway")


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


class Host(ReaderHost, Protocol):
    """The server that accepts the connections."""

    clients: dict[ClientConnection, None]
    addresses: Counter[str]  # number of open connections by client address
    half_closed: bool  # whether a client that has closed its sending half gets its answer; if not, it counts as gone
    draining: bool  # whether the server shuts down; each answer then says that its connection will close

    def begin(self, client: ClientConnection, incoming: Incoming) -> None:
        """Answer the request, or set `client.exchange` to an exchange that will answer it."""

    def count_refusal(self, status: int) -> None:
        """Count an error answer that the connection itself sent."""

    def report_turned_away(self, address: str, why: str) -> None:
        """Report a connection that was refused because of a limit. There may be thousands in a second."""


class ClientConnection(asyncio.Protocol):
    def __init__(self, host: Host) -> None:
        self.host = host
        self.exchange: Answering | None = None
        self.waiting: deque[Incoming] = deque()
        self.reader = RequestReader(host, self._arrived, self._expected)
        self.paused = self.closing = self.beginning = False
        self.ended = False  # whether the client has closed its sending half
        self.probed = 0.0  # time of the last interim answer to a client that has closed its sending half
        self.address = ""
        self.refusal: tuple[int, str] | None = None  # status and reason of an error to send after the pending answers
        self.stuck: tuple[int, float] | None = None  # number of unsent bytes, and time at which this number last fell
        self.transport: Any = None
        self.answering_bytes = 0  # size of the body of the request that is being answered, in bytes

    # --- the transport -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=self.host.limits.unsent_bytes)
        send_at_once(transport)
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
        self.host.held_bytes -= self.reader.held
        self.reader.held = self.answering_bytes = 0
        self.reader.close()
        if self.exchange is not None:
            self.exchange.client_gone()

    def data_received(self, data: bytes) -> None:
        if self.closing or self.refusal is not None:
            return
        try:
            self.reader.feed(data)
        except Refused as refused:
            self.refuse(refused.status, str(refused))

    def eof_received(self) -> bool:
        """If requests are pending, keep the connection open for their answers. The client may have closed only its
        sending half; `_probe` finds out if it has disconnected."""
        if self._has_tls:  # the end of a TLS connection ends both halves
            return False
        pending = self.exchange is not None or bool(self.waiting)
        if self.host.half_closed and self.refusal is None and self.reader.arriving:
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
        if self.exchange is not None and not self.exchange.sent and self.reader.version != "1.0":
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
        self.closing, self.reader.since = True, self.host.seconds()
        body = error_body(status, why)
        self.transport.writelines([head_of(status, len(body), close=True), body])
        self.host.count_refusal(status)
        half = self.transport.can_write_eof()
        if linger and not self.ended and self.reader.stage != "idle" and (half or self._has_tls):
            if half:  # a TLS connection has no end of one half
                self.transport.write_eof()
            asyncio.get_running_loop().call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()

    # --- the exchange ------------------------------------------------------------------------------------------------

    def _expected(self) -> None:
        """Send the interim answer for which the client waits, unless an answer to an earlier request is pending."""
        if self.exchange is None:
            self.transport.write(CONTINUE)

    def _arrived(self, incoming: Incoming) -> None:
        self.waiting.append(incoming)
        if len(self.waiting) == PIPELINED:
            self.transport.pause_reading()
        self._next()

    def finish(self, keep: bool) -> None:
        """End the current request after its answer. If `keep`, continue with the next request; otherwise close."""
        host, reader = self.host, self.reader
        self.exchange = None
        reader.since = host.seconds()
        reader.held -= self.answering_bytes
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
    def _has_tls(self) -> bool:
        return self.transport.get_extra_info("ssl_object") is not None

    @property
    def idle(self) -> bool:
        """Whether no request arrives, waits or is answered on this connection."""
        return self.exchange is None and not self.waiting and not self.reader.arriving

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
        reader = self.reader
        if reader.stage == "idle":
            if now - reader.since > limits.idle_s:
                self.closing = True
                self.transport.close()
        elif now - reader.since > (limits.head_s if reader.stage == "head" else limits.body_s):
            self.refuse(408, "the request did not arrive in time", linger=False)

    def _stalls(self, now: float) -> bool:
        """Return whether the client has read nothing for too long."""
        left = self.transport.get_write_buffer_size()
        if self.stuck is None or left < self.stuck[0]:
            self.stuck = (left, now)
        return now - self.stuck[1] > self.host.limits.unread_s
