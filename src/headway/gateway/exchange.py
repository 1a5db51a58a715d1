"""One request from its body to its answer: routed by the plane, sent to an engine, and the answer passed back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from headway.control.flights import Answer, Flight, Queued, TimedOut
from headway.http.answer_tally import AnswerTally
from headway.http.replies import error_body, error_event
from headway.http.upstream import HOP, Upstream, connect, forwarded_head, take_free
from headway.types import Reject, Request

if TYPE_CHECKING:
    from headway.gateway.api_keys import Key
    from headway.gateway.engines.engine_fleet import Backend, Fleet
    from headway.gateway.engines.engine_health import Health
    from headway.gateway.handover.live_handover import Handing
    from headway.gateway.live_clock import Clock
    from headway.gateway.observing.recent_decisions import Reasons
    from headway.gateway.plane import Plane
    from headway.gateway.waiting import Waiting
    from headway.http.wire import ClientConnection, Fields, Incoming

# Fields of an engine's answer that are not passed on: the gateway sets these itself.
DROPPED: Final = HOP | {b"x-headway-%b" % name for name in (b"target", b"reason", b"request", b"cascade", b"prefill")}
AGAIN: Final = (502, 503, 504, 429)  # statuses of an engine after which another engine is tried
EndListener = Callable[["Exchange", int, str, str], None]  # with picoseconds, outcome and reason
log = logging.getLogger("headway.gateway")


class Services(Struct):
    """What all exchanges of a gateway use."""

    clock: Clock
    plane: Plane
    waiting: Waiting
    fleet: Fleet
    health: Health
    reasons: Reasons
    connect_s: float
    first_byte_s: float
    silence_s: float
    retries: int
    count_retry: Callable[[str], None]
    on_end: list[EndListener] = []  # called for each exchange that has ended
    split: Callable[[Exchange], None] | None = None  # sends an exchange to the two engines it has

    def report_end(self, exchange: Exchange, now_ps: int, outcome: str, why: str) -> None:
        waiting = self.waiting
        waiting.exchanges.pop(exchange.request.id, None)
        for hear in self.on_end:
            try:
                hear(exchange, now_ps, outcome, why)
            except Exception:  # an observer's fault must not delay the answer
                log.exception("the end of a request could not be taken down")
        waiting.nudge()


class Exchange:
    """Runs from `begin` to exactly one of: answered, refused, broken, client gone. `over` is true once it has ended."""

    __slots__ = (
        "again",
        "alarm",
        "attempts",
        "backend",
        "body",
        "chunked",
        "client",
        "first_ps",
        "flight",
        "handing",
        "incoming",
        "key",
        "marks",
        "opening",
        "over",
        "patience",
        "request",
        "sent",
        "sent_ps",
        "services",
        "since",
        "status",
        "tally",
        "until_close",
        "upstream",
    )

    def __init__(
        self,
        services: Services,
        client: ClientConnection,
        incoming: Incoming,
        request: Request,
        stream: bool,
        key: Key | None = None,
    ) -> None:
        self.services, self.client, self.incoming, self.request = services, client, incoming, request
        self.key = key
        self.body = incoming.body  # what goes to the engine
        self.marks: list[bytes] = []  # additional lines for the head of the answer
        self.tally = AnswerTally(stream)
        self.flight: Flight | None = None
        self.handing: Handing | None = None  # set while another engine computes the prompt
        self.backend: Backend | None = None
        self.upstream: Upstream | None = None
        self.attempts = self.status = 0
        self.sent = self.over = self.until_close = self.again = False
        self.chunked = False  # the client gets the answer in chunks
        self.opening = b""  # the head of the answer, until it is sent with the first piece
        self.sent_ps = self.first_ps = -1  # sent to its engine, and first content of the answer; -1: not yet
        self.since = self.patience = 0.0  # waiting for the engine: since when, and for how long at most
        self.alarm: Any = None  # of its deadline

    # --- routing -----------------------------------------------------------------------------------------------------

    def begin(self, now_ps: int) -> None:
        """Ask the plane."""
        services, request = self.services, self.request
        if request.deadline_ps is not None:
            left = (request.deadline_ps - now_ps) / 1e12
            self.alarm = services.clock.call_later(max(0.0, left), self.expire)
        self.on_decision(services.plane.arrive(now_ps, request))

    def on_decision(self, answer: Answer) -> None:
        """Act on the plane's decision; None and Queued mean that it comes later."""
        if self.over:
            return
        if isinstance(answer, Flight):
            self.flight = answer
            self.dispatch()
        elif isinstance(answer, Reject):
            self.refuse(*parse_reason(answer.reason))
        elif isinstance(answer, TimedOut):
            self.refuse(503, answer.reason, outcome="timed_out")
        else:
            self.services.waiting.add(self, queued=isinstance(answer, Queued))

    def dispatch(self) -> None:
        assert self.flight is not None
        self.attempts += 1
        self.sent_ps = self.services.clock.now_ps()
        backend = self.backend = self.services.fleet.backends[self.flight.view.index]
        assert backend is not None
        if self.flight.prefill is not None:
            if self.services.split is not None:
                self.services.split(self)
                return
            self.services.plane.handed(self.sent_ps, self.request.id)  # one engine serves both halves
        self.send_to(backend)

    def send_to(self, backend: Backend) -> None:
        """Send over a free connection, or a new one."""
        upstream = take_free(backend)
        if upstream is None:
            self.services.clock.spawn(self._connect(backend, self.flight))
        else:
            self._send(upstream)

    async def _connect(self, backend: Backend, flight: Flight | None) -> None:
        try:
            upstream = await connect(self.services.clock.loop, backend, self.services.connect_s)
        except Exception as error:  # of any kind: otherwise the client would get no answer
            if not self.over and flight is self.flight:
                self.on_broken(None, f"no connection ({type(error).__name__})")
            return
        if self.over or flight is not self.flight:
            upstream.close()
        else:
            self._send(upstream)

    def _send(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.since, self.patience = self.services.clock.seconds(), self.services.first_byte_s
        asker = self if self.handing is None else self.handing.asker
        assert self.backend is not None
        upstream.send(asker, [self.head(self.backend, self.body), self.body])
        if self.client.paused:
            self.hold()

    def head(self, backend: Backend, body: bytes) -> bytes:
        # The client's key stays here if it is the gateway's own, or if the engine has another.
        hides_key = backend.key is not None or self.key is not None
        return forwarded_head(self.incoming, backend.address, len(body), backend.key, hides_key)

    # --- the engine's answer -----------------------------------------------------------------------------------------

    def on_head(self, upstream: Upstream | None, status: int, fields: Fields) -> None:
        assert self.backend is not None
        self.status = status
        self.services.health.record_status(self.backend, status)
        named = dict(fields)
        self.chunked = b"transfer-encoding" in named
        self.until_close = not self.chunked and b"content-length" not in named and status not in (204, 304)
        if status in AGAIN and self._may_retry():
            self.again = True  # its body is read to the end, and dropped
            return
        lines = [b"HTTP/1.1 200 OK" if status == 200 else b"HTTP/1.1 %d -" % status]
        lines += [name + b": " + value for name, value in fields if name not in DROPPED]
        lines.append(self.backend.target_line)
        if self.flight is not None:
            lines.append(self.services.reasons.line(self.flight.reason))
        lines.append(b"x-headway-request: %d" % self.request.id)
        lines += self.marks
        if self.until_close or not self.incoming.keep_alive:
            lines.append(b"connection: close")
        lines.append(b"\r\n")
        self.sent = True
        self.since, self.patience = self.services.clock.seconds(), self.services.silence_s
        if upstream is not None and upstream.more:
            self.opening = b"\r\n".join(lines)
        else:
            self.client.transport.write(b"\r\n".join(lines))

    def on_data(self, data: bytes) -> None:
        """Pass on a piece of the body, framing included."""
        if self.again:
            return
        if self.opening:
            self.client.transport.writelines([self.opening, data])
            self.opening = b""
        else:
            self.client.transport.write(data)
        upstream = self.upstream
        assert upstream is not None
        upstream.active = True
        if self.tally.count(data) and self.status < 400:
            self.record_first_token()
            if upstream.exchange is self:
                upstream.pass_on(self.client.transport.write, self.tally)

    def record_first_token(self) -> None:
        """Note the first content of a stream."""
        services = self.services
        self.first_ps = services.clock.now_ps()
        services.plane.first_token(self.first_ps, self.request.id)
        services.waiting.nudge()

    def on_complete(self) -> None:
        """End the exchange: the answer is complete."""
        if self.over:
            return
        self.upstream = None
        if self.again:
            self._retry(f"status {self.status}")
            return
        self.end("completed" if self.status < 400 else "failed", "" if self.status < 400 else f"status {self.status}")
        self.client.finish(self.incoming.keep_alive and not self.until_close)

    def on_broken(self, upstream: Upstream | None, why: str) -> None:
        """Retry or fail: the engine was lost, or its answer is invalid."""
        if self.over:
            return
        self.upstream = None
        assert self.backend is not None
        self.services.health.record_failure(self.backend, why)
        if not self.sent:
            if self._may_retry():
                self._retry(why)
            else:
                self.refuse(502, f"{self.backend.name}: {why}", outcome="failed")
            return
        self.cut(upstream, "failed", why, f"{self.backend.name}: {why}")

    def prompt_lost(self, why: str) -> None:
        """Retry or fail: the engine of the prompt has failed, and the other one cannot go on without it."""
        upstream = self._let_go()
        if self.sent:
            self.cut(upstream, "failed", why, why)
        elif self._may_retry():
            self._retry(why, prefill=True)
        else:
            self.refuse(502, why, outcome="failed")

    def cut(self, upstream: Upstream | None, outcome: str, why: str, word: str) -> None:
        """End an answer that has partly reached the client. A stream ends with an error event if framing allows."""
        self.end(outcome, why)
        if self.tally.stream and self.chunked and upstream is not None and upstream.between_chunks():
            self.client.transport.write(error_event(word))
            self.client.finish(False)
        else:
            self.client.transport.abort()

    def overdue(self, now: float) -> None:
        """Called periodically: give up on an engine that has been silent for too long."""
        upstream = self.upstream
        if upstream is None:
            return
        if upstream.active:
            upstream.active, self.since = False, now
        elif now - self.since > self.patience and not self.client.paused:
            self._let_go()
            self.on_broken(upstream, "silent for too long" if self.sent else "no answer in time")

    def _let_go(self) -> Upstream | None:
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.leave()
        return upstream

    def _may_retry(self) -> bool:
        return self.attempts <= self.services.retries and not self.sent

    def _retry(self, why: str, prefill: bool = False) -> None:
        """Route to another engine than its own, or with `prefill` to another for its prompt. Only possible before the
        first byte of the answer has reached the client."""
        self.again = False
        if self.handing is not None:
            self.handing.drop()
        self.tally = AnswerTally(self.tally.stream)
        self.services.count_retry(why)
        self.flight = None
        self.on_decision(self.services.plane.resend(self.services.clock.now_ps(), self.request.id, prefill))
        self.services.waiting.nudge()

    # --- the end -----------------------------------------------------------------------------------------------------

    def refuse(self, status: int, why: str, outcome: str = "rejected") -> None:
        self.status = status
        self.end(outcome, why)
        fields = [("retry-after", "1")] if status in (429, 503) else []
        for mark in self.marks:
            name, _, value = mark.decode().partition(": ")
            fields.append((name, value))
        fields.append(("x-headway-request", str(self.request.id)))
        self.client.answer(self.incoming, status, error_body(status, why), tuple(fields))

    def fail(self) -> None:
        """Answer 500 after a fault of the gateway itself; other requests go on."""
        if not self.over:
            self.client.fail()

    def client_gone(self) -> None:
        """Stop: the client has closed its connection."""
        self._let_go()
        if not self.over:
            self.end("failed", "the client has gone")

    def expire(self) -> None:
        """Stop: the deadline has passed."""
        if self.over:
            return
        upstream = self._let_go()
        if not self.sent:
            self.refuse(504, "the deadline is over", outcome="timed_out")
            return
        self.cut(upstream, "timed_out", "deadline", "the deadline is over")

    def end(self, outcome: str, why: str) -> None:
        assert not self.over
        self.over = True
        if self.alarm is not None:
            self.alarm.cancel()
        if self.key is not None:
            self.key.release()
        self.leave(outcome, why)

    def leave(self, outcome: str, why: str) -> None:
        """Release the engine and the plane."""
        if self.handing is not None:
            self.handing.drop()
        services = self.services
        now_ps = services.clock.now_ps()
        if self.flight is not None:
            services.plane.finished(now_ps, self.request.id, outcome, self.tally.tokens)
        elif services.waiting.exchanges.get(self.request.id) is self:
            services.plane.give_up(now_ps, self.request.id)
        services.report_end(self, now_ps, outcome, why)

    # --- a slow client -----------------------------------------------------------------------------------------------

    def hold(self) -> None:
        if self.upstream is not None:
            self.upstream.transport.pause_reading()

    def go_on(self) -> None:
        self.since = self.services.clock.seconds()
        if self.upstream is not None:
            self.upstream.transport.resume_reading()


def parse_reason(reason: str) -> tuple[int, str]:
    """Split a policy's reason into status and text: it may begin with a status, as in `503: full`."""
    status, colon, rest = reason.partition(": ")
    if colon and status.isdigit() and 400 <= int(status) < 600:
        return int(status), rest
    return 503, reason
