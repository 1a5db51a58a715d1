"""One request under way at a replica: its tokens go to its client as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from headway.emulator.answers import ANSWERS, usage_of
from headway.emulator.asked import Asked
from headway.sim.job import Job

if TYPE_CHECKING:
    from headway.emulator.emulated_metrics import EmulatedMetrics
    from headway.emulator.room import Room
    from headway.http.wire import ClientConnection, Incoming

STREAM: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
    b"x-request-id: %b\r\nx-engine: %b\r\n\r\n"
)
OVER: Final = b"0\r\n\r\n"


class Replica(Protocol):
    """What a flight uses of its engine, and tells it."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def room(self) -> Room: ...

    @property
    def figures(self) -> EmulatedMetrics: ...

    def created(self) -> int: ...

    def grant_tokens(self, tokens: int) -> int: ...

    def cached_tokens(self, job: Job) -> int: ...

    def first_token(self, flight: Flight, now: int) -> None: ...

    def finished(self, flight: Flight, now: int) -> None: ...

    def abandoned(self, flight: Flight) -> None: ...

    def handed(self, flight: Flight) -> dict[str, Any]: ...

    def say(
        self, client: ClientConnection, incoming: Incoming, status: int, body: bytes, *, request_id: str | None = None
    ) -> None: ...


class Flight:
    """Both what the room hands tokens to and what a connection knows of its request."""

    __slots__ = (
        "answer",
        "asked",
        "client",
        "enqueued_ps",
        "first_ps",
        "id",
        "incoming",
        "job",
        "last_ps",
        "over",
        "replica",
        "sent",
        "streams",
    )

    def __init__(
        self, replica: Replica, client: ClientConnection, incoming: Incoming, asked: Asked, job: Job, id: str
    ) -> None:
        self.replica, self.client, self.incoming, self.asked, self.job = replica, client, incoming, asked, job
        before, kind = ANSWERS[asked.kind]
        self.id = before + id
        self.answer = kind(self.id, replica.created(), asked.body.model or replica.model, asked)
        self.streams = bool(asked.body.stream) and asked.kind != "embedding"
        self.sent = 0  # tokens
        self.over = False
        self.enqueued_ps = self.first_ps = self.last_ps = -1

    # --- the room's side ---------------------------------------------------------------------------------------------

    def grown(self, tokens: int, now: int) -> None:
        if self.over or tokens <= self.sent:
            return
        replica = self.replica
        tokens = self.sent + replica.grant_tokens(tokens - self.sent)
        if tokens == self.sent:  # the engine is about to crash
            return
        if self.sent == 0:
            self.first_ps = now
            replica.first_token(self, now)
        else:
            replica.figures.gap.add(replica.room.seconds(now - self.last_ps))
        self.last_ps = now
        first, self.sent = self.sent, tokens
        if self.streams:
            self._stream(first, tokens)

    def finished(self, tokens: int, now: int) -> None:
        self.grown(tokens, now)
        if self.over or self.sent < tokens:
            return
        self.over = True
        self.replica.finished(self, now)
        usage, client = self.usage(tokens), self.client
        if not self.streams:
            body = self.answer.whole(usage, self.replica.handed(self))
            self.replica.say(client, self.incoming, 200, body, request_id=self.id)
            return
        options = self.asked.body.stream_options
        told = usage if options is not None and options.include_usage else None
        self._write(framed(self.answer.closing(told)) + OVER)
        client.done(self.incoming.keep_alive)

    def _stream(self, first: int, end: int) -> None:
        answer, whole = self.answer, self.asked.script.tokens
        data = b"".join(
            [
                answer.token(number, number == whole - 1, self.usage(number + 1) if answer.continuous else None)
                for number in range(first, end)
            ]
        )
        if first:
            self._write(framed(data))
            return
        opening = answer.opening()
        head = STREAM % (self.id.encode(), self.replica.name.encode())
        self._write(head + (framed(opening) if opening else b"") + framed(data))

    def _write(self, data: bytes) -> None:
        transport = self.client.transport
        if not transport.is_closing():  # its client has gone, and we are about to hear of it
            transport.write(data)

    def usage(self, tokens: int) -> dict[str, Any]:
        return usage_of(self.asked.content.prompt_tokens, tokens, self.replica.cached_tokens(self.job))

    # --- the connection's side ---------------------------------------------------------------------------------------

    def client_gone(self) -> None:
        """It frees its place in the batch."""
        if not self.over:
            self.over = True
            self.replica.abandoned(self)

    def hold(self) -> None:
        """The client is slow: what is to come is little, and waits."""

    def go_on(self) -> None:
        """It has taken what waited."""

    def overdue(self, now: float) -> None:
        """An engine has all the time in the world."""


def framed(data: bytes) -> bytes:
    """As one chunk of HTTP's."""
    return b"%x\r\n%b\r\n" % (len(data), data)
