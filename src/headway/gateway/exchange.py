"""One request from its body to its answer: asked of the plane, sent to an engine, passed back as it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headway.flight import Flight, Queued, TimedOut
from headway.gateway.answers import error_body, error_event, head_of
from headway.gateway.tally import Tally
from headway.gateway.upstream import Upstream, connect
from headway.types import Reject, Request

if TYPE_CHECKING:
    from headway.gateway.app import App
    from headway.gateway.backend import Backend
    from headway.gateway.plane import Answer
    from headway.gateway.wire import Client, Incoming

# Of one connection, not of the message.
HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
        b"proxy-authorization",
        b"expect",
    )
)
OURS: Final = frozenset((b"host", b"content-length", b"transfer-encoding", *HOP))
AGAIN: Final = (502, 503, 504, 429)  # of an engine: another may do better


class Exchange:
    """From `begin` to exactly one of: answered, refused, broken, or its client gone. `over` says that it has ended."""

    __slots__ = (
        "again",
        "app",
        "attempts",
        "backend",
        "client",
        "flight",
        "incoming",
        "over",
        "request",
        "sent",
        "started",
        "status",
        "tally",
        "timer",
        "until_close",
        "upstream",
    )

    def __init__(self, app: App, client: Client, incoming: Incoming, request: Request, stream: bool) -> None:
        self.app, self.client, self.incoming, self.request = app, client, incoming, request
        self.tally = Tally(stream)
        self.flight: Flight | None = None
        self.backend: Backend | None = None
        self.upstream: Upstream | None = None
        self.attempts = self.status = 0
        self.sent = self.over = self.until_close = self.again = False
        self.started = app.now_ps()
        self.timer: Any = None

    # --- decided -----------------------------------------------------------------------------------------------------

    def decided(self, answer: Answer) -> None:
        """What the plane says; None and Queued mean later."""
        if self.over:
            return
        if isinstance(answer, Flight):
            self.flight = answer
            self.dispatch()
        elif isinstance(answer, Reject):
            self.refuse(*told(answer.reason))
        elif isinstance(answer, TimedOut):
            self.refuse(503, answer.reason, outcome="timed_out")
        else:
            assert answer is None or isinstance(answer, Queued)

    def dispatch(self) -> None:
        assert self.flight is not None
        self.attempts += 1
        backend = self.backend = self.app.backends[self.flight.view.index]
        while backend.free:
            upstream = backend.free.pop()
            if not upstream.transport.is_closing():
                self._send(upstream)
                return
        task = self.app.loop.create_task(self._connect(backend))
        self.app.tasks.add(task)
        task.add_done_callback(self.app.tasks.discard)

    async def _connect(self, backend: Backend) -> None:
        try:
            upstream = await connect(self.app.loop, backend, self.app.timeouts.connect_s)
        except (TimeoutError, OSError) as error:
            if not self.over:
                self.broken(None, f"no connection ({type(error).__name__})")
            return
        if self.over or backend is not self.backend:
            backend.free.append(upstream)
        else:
            self._send(upstream)

    def _send(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.timer = self.app.loop.call_later(self.app.timeouts.first_byte_s, self._late, "no answer in time")
        upstream.send(self, [self._head(upstream.backend), self.incoming.body])

    def _head(self, backend: Backend) -> bytes:
        incoming, address = self.incoming, backend.address
        lines = [
            b"%b %b%b HTTP/1.1" % (incoming.method, address.base, incoming.target),
            b"host: %b:%d" % (address.host.encode(), address.port),
            b"content-length: %d" % len(incoming.body),
        ]
        own = backend.key
        for name, value in incoming.fields:
            if name not in OURS and not (own is not None and name == b"authorization"):
                lines.append(b"%b: %b" % (name, value))
        if own is not None:
            lines.append(b"authorization: Bearer " + own)
        lines.append(b"\r\n")
        return b"\r\n".join(lines)

    # --- the engine's answer -----------------------------------------------------------------------------------------

    def headed(self, upstream: Upstream, status: int, fields: list[tuple[bytes, bytes]]) -> None:
        assert self.backend is not None and self.flight is not None
        self.status = status
        self.app.health.answered(self.backend, status)
        if status in AGAIN and self._may_retry():
            self.again = True  # its body is read to the end, and dropped
            return
        length = chunked = False
        lines = [b"HTTP/1.1 %d %b" % (status, b"OK" if status == 200 else b"-")]
        for name, value in fields:
            if name in HOP:
                continue
            length |= name == b"content-length"
            chunked |= name == b"transfer-encoding"
            lines.append(b"%b: %b" % (name, value))
        self.until_close = not length and not chunked and status not in (204, 304)
        lines.append(b"x-headway-target: " + self.flight.view.id.encode())
        lines.append(b"x-headway-request: %d" % self.request.id)
        if self.until_close or not self.incoming.keep_alive:
            lines.append(b"connection: close")
        lines.append(b"\r\n")
        self.sent = True
        self._patience()
        self.client.transport.write(b"\r\n".join(lines))

    def relayed(self, data: bytes) -> None:
        """A piece of the body, in whatever framing it came."""
        if self.again:
            return
        self.client.transport.write(data)
        tally = self.tally
        if tally.seen(data) and self.flight is not None and self.status < 400:
            self.app.plane.first_token(self.app.now_ps(), self.request.id)
        self._patience()

    def _patience(self) -> None:
        """The engine may be silent for so long."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.app.loop.call_later(self.app.timeouts.silence_s, self._late, "silent for too long")

    def answered(self) -> None:
        """The answer is complete."""
        if self.over:
            return
        self.upstream = None
        if self.again:
            self._retry(f"status {self.status}")
            return
        self._end("completed" if self.status < 400 else "failed", "" if self.status < 400 else f"status {self.status}")
        self.client.done(self.incoming.keep_alive and not self.until_close)

    def broken(self, upstream: Upstream | None, why: str) -> None:
        """The engine was lost, or said something that is none."""
        if self.over:
            return
        self.upstream = None
        assert self.backend is not None
        self.app.health.failed(self.backend, why)
        if not self.sent:
            if self._may_retry():
                self._retry(why)
            else:
                self.refuse(502, f"{self.backend.view.id}: {why}", outcome="failed")
            return
        self._end("failed", why)
        if self.tally.stream and upstream is not None and upstream.between and not self.until_close:
            self.client.transport.write(error_event(f"{self.backend.view.id}: {why}"))
            self.client.done(False)
        else:
            self.client.transport.abort()

    def _late(self, why: str) -> None:
        upstream, self.upstream = self.upstream, None
        if self.over or upstream is None:
            return
        upstream.exchange = None
        upstream.close()
        self.broken(upstream, why)

    def _may_retry(self) -> bool:
        return self.attempts <= self.app.retries and not self.sent

    def _retry(self, why: str) -> None:
        """Another engine, as long as nothing has reached the client."""
        self.again = False
        self.tally = Tally(self.tally.stream)
        if self.timer is not None:
            self.timer.cancel()
        self.app.metrics.retried(why)
        self.flight = None
        self.decided(self.app.plane.resend(self.app.now_ps(), self.request.id))

    # --- the end -----------------------------------------------------------------------------------------------------

    def refuse(
        self, status: int, why: str, outcome: str = "rejected", fields: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self._end(outcome, why)
        body = error_body(status, why)
        if status in (429, 503):
            fields = (*fields, ("retry-after", "1"))
        self.client.transport.writelines([head_of(status, len(body), fields, close=not self.incoming.keep_alive), body])
        self.client.done(self.incoming.keep_alive)

    def client_gone(self) -> None:
        """Nobody wants the answer any more: the engine is told by the end of its connection."""
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.exchange = None
            upstream.close()
        if self.over:
            return
        if self.flight is None:
            self.app.plane.give_up(self.app.now_ps(), self.request.id)
        self._end("failed", "the client has gone")

    def expire(self) -> None:
        """Its deadline is over."""
        if self.over:
            return
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.exchange = None
            upstream.close()
        if self.flight is None:
            self.app.plane.give_up(self.app.now_ps(), self.request.id)
        if self.sent:
            self._end("timed_out", "deadline")
            self.client.transport.abort()
        else:
            self.refuse(504, "the deadline is over", outcome="timed_out")

    def _end(self, outcome: str, why: str) -> None:
        assert not self.over
        self.over = True
        if self.timer is not None:
            self.timer.cancel()
        now = self.app.now_ps()
        if self.flight is not None:
            self.app.plane.finished(now, self.request.id, outcome, self.tally.tokens)
        self.app.ended(self, now, outcome, why)

    # --- a slow client -----------------------------------------------------------------------------------------------

    def hold(self) -> None:
        if self.upstream is not None:
            self.upstream.transport.pause_reading()

    def go_on(self) -> None:
        if self.upstream is not None:
            self.upstream.transport.resume_reading()


def told(reason: str) -> tuple[int, str]:
    """A policy's reason may begin with the status it means, as in `503: full`."""
    status, colon, rest = reason.partition(": ")
    if colon and status.isdigit() and 400 <= int(status) < 600:
        return int(status), rest
    return 503, reason
