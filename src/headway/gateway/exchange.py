"""One client request: ask the plane for an engine, send the request there, and forward the answer to the client."""

from __future__ import annotations

import logging
from dataclasses import InitVar, dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from headway.control.flights import Answer, Flight, Queued, TimedOut
from headway.gateway.apis.api import CHAT, Api
from headway.http.answer_tally import PROMPT, AnswerTally
from headway.http.forwarding import FRAMING, HOP, answer_lines, answer_start, forwarded_head
from headway.http.known_heads import LENGTH
from headway.http.open_files import NO_FILES
from headway.http.replies import RETRY_AFTER_S, TRY_LATER
from headway.http.upstream import Payload, Upstream, connect, take_free
from headway.types import Reject, Request

if TYPE_CHECKING:
    from headway.gateway.api_keys import Key
    from headway.gateway.engines.engine_fleet import Backend
    from headway.gateway.engines.engine_pace import Pace
    from headway.gateway.handover.live_handover import Handing
    from headway.gateway.services import Services
    from headway.http.known_heads import Fields
    from headway.http.request_reader import Incoming
    from headway.http.wire import ClientConnection

AGAIN: Final = (502, 503, 504, 429)  # on these statuses, the gateway tries another engine
MOST_HELD: Final = 1024 * 1024  # a longer answer that is not streamed is forwarded before it is complete
LONG_PAUSE_S: Final = 1.0  # longer pauses within a stream count for the engine's pace
RETRY_AFTER: Final = b"retry-after: %d" % RETRY_AFTER_S
DEADLINE_PASSED: Final = "the deadline has passed"
SHUTTING_DOWN: Final = "the gateway is shutting down"
log = logging.getLogger("headway.gateway")


@dataclass(slots=True, eq=False)
class Exchange:
    """One request, from `begin` to its end. A request ends when its answer is complete, when the gateway refuses it,
    when it fails, or when the client disconnects."""

    services: Services
    client: ClientConnection
    incoming: Incoming
    request: Request
    stream: InitVar[bool]
    key: Key | None = None
    api: Api = CHAT
    body: bytes = b""  # request body for the engine
    marks: list[bytes] = field(default_factory=list)  # header lines that the gateway adds to the answer
    tally: AnswerTally = field(init=False)
    flight: Flight | None = None
    handing: Handing | None = None  # the handover, while another engine computes the prompt; otherwise None
    backend: Backend | None = None
    upstream: Upstream | None = None
    attempts: int = 0
    tried: tuple[Backend, ...] = ()  # engines that have failed this request
    status: int = 0
    sent: bool = False  # whether a part of the answer has been sent to the client
    over: bool = False
    until_close: bool = False  # whether the engine ends its answer by closing the connection
    closes: bool = False  # whether the gateway closes the client's connection after the answer
    unframed: Payload | None = None  # removes the chunk framing of an answer to HTTP/1.0; None if nothing is removed
    again: bool = False  # whether to discard this engine's answer and try another engine when the answer has ended
    chunked: bool = False
    opening: bytes = b""  # head of the answer, which is sent together with the first piece of the body
    # Pieces of an answer that is not streamed. They are held until the answer is complete, so that another engine can
    # answer if this engine fails.
    pieces: list[bytes] = field(default_factory=list)
    piece_bytes: int = 0
    sent_ps: int = -1  # time at which the request was sent to its engine; -1: not yet
    first_ps: int = -1  # time at which the first content of the answer arrived; -1: not yet
    since: float = 0.0  # time at which the wait for the engine's next data began, in seconds
    prompt_work: int = 0  # prompt tokens that the engine had to compute before the first token, as far as known
    first_byte_s: float = -1.0  # time from sending the request to the first byte of the answer's body; -1: not yet
    reserved: int = 0  # tokens that were taken from the account of the key
    used: int = 0  # tokens that engines have used for the request, if any were reserved
    alarm: Any = None  # timer of the request's deadline

    def __post_init__(self, stream: bool) -> None:
        self.body, self.tally = self.incoming.body, self.api.tally(stream)

    # --- routing -----------------------------------------------------------------------------------------------------

    def begin(self, now_ps: int) -> None:
        services, request = self.services, self.request
        if request.deadline_ps is not None:
            left = (request.deadline_ps - now_ps) / 1e12
            self.alarm = services.clock.call_later(max(0.0, left), self.expire)
        self.on_decision(services.plane.arrive(now_ps, request))

    def on_decision(self, answer: Answer) -> None:
        """Carry out the plane's decision. If the decision is None or Queued, wait until the plane decides again."""
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
        if backend.on_trial and not self.services.health.begin_trial(backend, self):
            self.attempts -= 1
            self._retry("another request is the trial of this engine")
            return
        if self.flight.prefill is not None:
            if self.services.split is not None:
                self.services.split(self)
                return
            # Without `split`, the decode engine computes the prompt too, so report the handover as done.
            self.services.plane.handed(self.sent_ps, self.request.id)
        self.send_to(backend)

    def send_to(self, backend: Backend) -> None:
        """Send the request over a free connection. If there is no free connection, open one."""
        upstream = take_free(backend)
        if upstream is None:
            self.services.clock.spawn(self._connect(backend, self.flight))
        else:
            self._send(upstream)

    async def _connect(self, backend: Backend, flight: Flight | None) -> None:
        try:
            upstream = await connect(self.services.clock.loop, backend, self.services.timeouts.connect_s)
        except Exception as error:  # catch every exception: otherwise the client would get no answer
            if self.over or flight is not self.flight:
                return
            if self.services.health.open_files.are_short(error):  # neither this engine's fault nor better elsewhere
                self.refuse(503, NO_FILES, outcome="failed")
            else:
                self.on_broken(None, f"no connection ({type(error).__name__})")
            return
        if self.over or flight is not self.flight:
            upstream.close()
        else:
            self._send(upstream)

    def _send(self, upstream: Upstream) -> None:
        self.upstream = upstream
        assert self.backend is not None
        self.since, self.first_byte_s = self.services.clock.seconds(), -1.0
        self.prompt_work = self.backend.view.pending_prefill_tokens
        asker = self if self.handing is None else self.handing.asker
        upstream.send(asker, [self.head(self.backend, self.body), self.body])
        if self.client.paused:
            self.hold()

    def head(self, backend: Backend, body: bytes) -> bytes:
        # The engine must not see a key of the gateway. If the engine has its own key, it must not see the client's key.
        hides_key = backend.key is not None or self.key is not None
        return forwarded_head(self.incoming, backend.address, len(body), backend.key, hides_key, backend.spec.rank)

    # --- the engine's answer -----------------------------------------------------------------------------------------

    def on_head(self, upstream: Upstream | None, status: int, fields: Fields) -> None:
        """Prepare the head of the answer for the client. It is sent with the first piece of the body, so that another
        engine can answer if this engine fails before."""
        assert self.backend is not None
        self.status = status
        if upstream is not None:
            upstream.active = True
        known = None if upstream is None or upstream.fields is not fields else upstream.known
        if upstream is not None and known is not None:  # the status is 200, and the answer is complete
            self.chunked = self.until_close = False
            lines = [answer_start(known), b"content-length: " + upstream.length]
        else:
            named = dict(fields)
            self.chunked = b"transfer-encoding" in named
            self.until_close = not self.chunked and LENGTH not in named and status not in (204, 304)
            if status in AGAIN and self._may_retry():
                self.again = True
                return
            dropped = HOP
            if self.chunked and self.incoming.version == "1.0":
                dropped |= FRAMING
                self.unframed = Payload(fields)
            phrase = b"OK" if upstream is None else upstream.phrase
            lines = [b"HTTP/1.1 %d %b" % (status, phrase), *answer_lines(fields, named, dropped)]
            if status in TRY_LATER and b"retry-after" not in named:
                lines.append(RETRY_AFTER)
        lines.append(self.backend.target_line)
        if self.flight is not None:
            lines.append(self.services.reasons.line(self.flight.reason))
        if self.request.id >= 0:
            lines.append(b"x-headway-request: %d" % self.request.id)
        lines += self.marks
        keep = self.incoming.keep_alive and not self.client.host.draining
        self.closes = self.until_close or self.unframed is not None or not keep
        if self.closes:
            lines.append(b"connection: close")
        elif self.incoming.version == "1.0":
            lines.append(b"connection: keep-alive")
        lines.append(b"\r\n")
        self.opening = b"\r\n".join(lines)

    def on_data(self, data: bytes) -> None:
        """Forward a piece of the engine's body to the client, including its chunk framing."""
        if self.again:
            return
        if self.unframed is not None:
            data = self.unframed.read(data)
        upstream = self.upstream
        assert upstream is not None
        upstream.active = True
        if not self.opening:
            self.client.transport.write(data)
        elif self.tally.stream or self.piece_bytes > MOST_HELD:
            self.open(data)
        else:
            self.pieces.append(data)
            self.piece_bytes += len(data)
        if self.tally.count(data) and self.status < 400:
            self.record_first_token()
            if upstream.exchange is self and self.unframed is None and self.tally.inlined:
                upstream.pass_on(self.client.transport.write, self.tally)

    def open(self, data: bytes) -> None:
        """Send the head and the first pieces of the answer to the client."""
        self.client.transport.writelines([self.opening, *self.pieces, data])
        self.opening, self.sent = b"", True
        self.pieces.clear()
        if self.first_byte_s < 0:
            self.record_first_byte()

    def record_first_byte(self) -> None:
        now = self.services.clock.seconds()
        self.first_byte_s, self.since = now - self.since, now
        if self.tally.stream and self.handing is None and self.status < 400:
            assert self.backend is not None
            self.backend.pace.streams.add(self.first_byte_s, self.prompt_work)

    def record_first_token(self) -> None:
        services = self.services
        self.first_ps = services.clock.now_ps()
        services.plane.first_token(self.first_ps, self.request.id)
        services.waiting.nudge()

    def on_complete(self) -> None:
        if self.over:
            return
        self.upstream = None
        self.record_answer()
        if self.again:
            self._retry(f"status {self.status}")
        else:
            self.close_answer()

    def close_answer(self) -> None:
        if self.opening:
            self.open(b"")
        self.end("completed" if self.status < 400 else "failed", "" if self.status < 400 else f"status {self.status}")
        self.client.finish(not self.closes)

    def record_answer(self) -> None:
        """Record a complete answer: it counts for the engine's health, and its time for the engine's pace."""
        backend = self.backend
        assert backend is not None
        backend.pace.moved = True
        self.services.health.record_status(backend, self.status)
        if not self.tally.stream and self.handing is None and self.status < 400:
            seconds = self.first_byte_s if self.first_byte_s >= 0 else self.services.clock.seconds() - self.since
            backend.pace.wholes.add(seconds, self.prompt_work, self.tally.tokens)

    def on_broken(self, upstream: Upstream | None, why: str) -> None:
        """Retry or fail the request after the engine's connection was lost or its answer was invalid."""
        if self.over:
            return
        assert self.backend is not None
        self.services.health.record_failure(self.backend, why)
        self._fail_over(upstream, why, self._may_retry())

    def _fail_over(self, upstream: Upstream | None, why: str, retry: bool) -> None:
        """Ask another engine if `retry` and if the client has received nothing. Otherwise, end the request."""
        self.upstream = None
        assert self.backend is not None
        if self.sent:
            self.cut(upstream, "failed", why, f"{self.backend.name}: {why}")
        elif retry:
            self._retry(why)
        else:
            self.refuse(502, f"{self.backend.name}: {why}", outcome="failed")

    def prompt_lost(self, why: str) -> None:
        """Retry or fail the request after its prefill engine failed: the decode engine cannot continue without the
        computed prompt."""
        upstream = self._drop_upstream()
        if self.sent:
            self.cut(upstream, "failed", why, why)
        elif self._may_retry():
            self._retry(why, prefill=True)
        else:
            self.refuse(502, why, outcome="failed")

    def cut(self, upstream: Upstream | None, outcome: str, why: str, message: str) -> None:
        """End an answer that has partly reached the client. If the framing allows it, send an error event and keep the
        connection."""
        self.end(outcome, why)
        if self.tally.stream and self.chunked and upstream is not None and not upstream.torn:
            self.client.transport.write(self.framed(self.api.error_event(message)))
            self.client.finish(not self.closes)
        else:
            self.client.transport.abort()

    def framed(self, data: bytes) -> bytes:
        """Return a piece of a chunked answer as the client reads it: HTTP/1.0 has no chunks."""
        return data if self.unframed is None else self.unframed.read(data)

    # --- a silent engine ---------------------------------------------------------------------------------------------

    def overdue(self, now: float) -> None:
        """Say whether the engine has sent data, or owes data. Called periodically, before `Health.sweep`."""
        upstream = self.upstream
        if upstream is None:
            if self.handing is not None and self.handing.leg is not None:
                self.handing.leg.overdue()
            return
        assert self.backend is not None
        pace = self.backend.pace
        if upstream.active:
            upstream.active = False
            pace.moved = True
            if self.first_byte_s >= 0:
                if now - self.since > LONG_PAUSE_S:
                    pace.record_pause(now - self.since, now)
                self.since = now
        elif not self.client.paused:
            pace.owing.append(self)

    def expected_s(self, pace: Pace) -> float:
        """Return how long the first byte should take at most, judging by the engine's recent answers; infinity if
        unknown."""
        if self.handing is not None:  # the answer also waits for another engine
            return inf
        if self.tally.stream:
            return pace.streams.expected_s(self.prompt_work)
        most = self.request.max_tokens if self.api.generates else 1
        return inf if most is None else pace.wholes.expected_s(self.prompt_work, most)

    def give_up(self, why: str, elsewhere: bool) -> None:
        """Abandon a silent engine. If `elsewhere` and if the client has received nothing, ask another engine."""
        if not self.over:
            self._fail_over(self._drop_upstream(), why, elsewhere and self._may_retry())

    def streams_for_s(self) -> float:
        """Return the time since the first content of the answer, in seconds; -1 if there is none."""
        return -1.0 if self.first_ps < 0 else (self.services.clock.now_ps() - self.first_ps) / 1e12

    def _drop_upstream(self) -> Upstream | None:
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.leave()
        return upstream

    def _may_retry(self) -> bool:
        return self.attempts <= self.services.retries and not self.sent

    def _retry(self, why: str, prefill: bool = False) -> None:
        """Route the request to another engine or, with `prefill`, to another prefill engine. Call this only while the
        client has received nothing."""
        self.again, self.opening, self.unframed = False, b"", None
        self.pieces.clear()
        self.piece_bytes = 0
        if self.handing is not None:
            self.handing.drop()
        self._leave_trial()
        self.tally = self.api.tally(self.tally.stream)
        self.services.count_retry(why)
        backends, flight = self.services.fleet.backends, self.flight
        assert flight is not None
        places = [backend.place for backend in self.tried if backends[backend.place] is backend]
        failed = backends[(flight.prefill or flight.view if prefill else flight.view).index]
        if failed is not None:
            self.tried += (failed,)
        self.services.health.readmit_early(self.request.model, self.tried)
        self.flight = None
        now_ps = self.services.clock.now_ps()
        self.on_decision(self.services.plane.resend(now_ps, self.request.id, prefill, places))
        self.services.waiting.nudge()

    def renew(self, request: Request) -> None:
        """Adopt a separate request of the plane, after `leave`. Call this only while the client has received
        nothing."""
        self.request = replace(request, deadline_ps=self.request.deadline_ps)
        self.tally = self.api.tally(self.tally.stream)
        self.flight = self.backend = self.unframed = None
        self.attempts, self.status, self.tried = 0, 0, ()
        self.again = self.until_close = False
        self.opening, self.piece_bytes = b"", 0
        self.pieces.clear()
        self.sent_ps = self.first_ps = -1

    def ask(self, now_ps: int) -> None:
        services = self.services
        self.on_decision(services.plane.arrive(now_ps, self.request))
        services.waiting.nudge()

    # --- the end -----------------------------------------------------------------------------------------------------

    def refuse(self, status: int, why: str, outcome: str = "rejected") -> None:
        self.status = status
        self.end(outcome, why)
        fields = [("retry-after", str(RETRY_AFTER_S))] if status in TRY_LATER else []
        for mark in self.marks:
            name, _, value = mark.decode().partition(": ")
            fields.append((name, value))
        if self.request.id >= 0:
            fields.append(("x-headway-request", str(self.request.id)))
        self.client.answer(self.incoming, status, self.api.error_body(status, why), tuple(fields))

    def fail(self) -> None:
        """Answer 500 after an exception in the gateway itself."""
        if not self.over:
            self.client.fail()

    def client_gone(self) -> None:
        self._drop_upstream()
        if not self.over:
            self.end("failed", "the client has gone")

    def expire(self) -> None:
        """End the exchange at its deadline."""
        if self.over:
            return
        upstream = self._drop_upstream()
        if not self.sent:
            self.refuse(504, DEADLINE_PASSED, outcome="timed_out")
            return
        self.cut(upstream, "timed_out", "deadline", DEADLINE_PASSED)

    def shut_down(self) -> None:
        """End the exchange because the gateway stops. A stream that has begun ends with an error event."""
        if self.over:
            return
        upstream = self._drop_upstream()
        if self.sent:
            self.cut(upstream, "failed", SHUTTING_DOWN, SHUTTING_DOWN)
        else:
            Exchange.refuse(self, 503, SHUTTING_DOWN, outcome="failed")  # a cascade asks no further model

    def end(self, outcome: str, why: str) -> None:
        assert not self.over
        self.over = True
        if self.alarm is not None:
            self.alarm.cancel()
        self.leave(outcome, why)
        if self.key is not None:
            self.key.release()
            if self.reserved:
                self.key.account.settle(self.reserved, self.used)

    def leave(self, outcome: str, why: str) -> None:
        """Tell the plane that the request has left its engine or its queue. Call the listeners of ended exchanges."""
        if self.handing is not None:
            self.handing.drop()
        self._leave_trial()
        services = self.services
        now_ps = services.clock.now_ps()
        if self.reserved and self.sent_ps >= 0 and self.status < 400:
            prompt = PROMPT.search(self.tally.usage)
            self.used += (int(prompt[1]) if prompt else self.request.prompt_tokens) + self.tally.tokens
        if self.flight is not None:
            services.plane.finished(now_ps, self.request.id, outcome, self.tally.tokens)
        elif services.waiting.exchanges.get(self.request.id) is self:
            services.plane.give_up(now_ps, self.request.id)
        services.report_end(self, now_ps, outcome, why)

    def _leave_trial(self) -> None:
        if self.backend is not None and self.backend.trial is self:
            self.services.health.leave_trial(self.backend)

    # --- a slow client -----------------------------------------------------------------------------------------------

    def hold(self) -> None:
        if self.upstream is not None:
            self.upstream.transport.pause_reading()

    def go_on(self) -> None:
        self.since = self.services.clock.seconds()
        if self.upstream is not None:
            self.upstream.transport.resume_reading()


def parse_reason(reason: str) -> tuple[int, str]:
    """Split a policy's reason, such as `429: tenant over budget`, into status (503 by default) and message."""
    status, colon, rest = reason.partition(": ")
    if colon and status.isdigit() and 400 <= int(status) < 600:
        return int(status), rest
    return 503, reason
