"""One request in flight at a replica. It sends its tokens to the client as they are generated."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from headway.emulator.agent_apis import AGENT_ANSWERS
from headway.emulator.answers import ANSWERS
from headway.emulator.engine_request import EngineRequest
from headway.http.replies import chunk
from headway.sim.job import Job

if TYPE_CHECKING:
    from headway.emulator.replica import Replica
    from headway.http.request_reader import Incoming
    from headway.http.wire import ClientConnection

STREAM: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
    b"x-request-id: %b\r\nx-engine: %b\r\n\r\n"
)
KINDS_OF_ANSWERS: Final = ANSWERS | AGENT_ANSWERS
OVER: Final = b"0\r\n\r\n"
GARBAGE: Final = b"zz\r\nthis is no chunk\r\n"


class Flight:
    """A request in flight. It receives the tokens that the room generates, and answers the request on the client's
    connection."""

    def __init__(
        self, replica: Replica, client: ClientConnection, incoming: Incoming, request: EngineRequest, job: Job, id: str
    ) -> None:
        self.replica, self.client, self.incoming, self.request, self.job = replica, client, incoming, request, job
        before, kind = KINDS_OF_ANSWERS[request.kind]
        self.id = before + id
        self.answer = kind(self.id, int(time.time()), request.body.model or replica.model, request)
        self.streams = bool(request.body.stream) and request.kind != "embedding"
        self.sent = 0  # number of tokens sent to the client
        self.over = self.broken = False
        self.enqueued_ps = self.first_ps = self.last_ps = -1
        self.rank = 0  # number of the data-parallel rank that serves the request

    def on_tokens(self, tokens: int, now: int) -> None:
        if self.over or self.broken or tokens <= self.sent:
            return
        replica = self.replica
        tokens = self.sent + replica.grant_tokens(tokens - self.sent)
        if tokens == self.sent:  # no token may be sent, because the engine has just crashed
            return
        if self.sent == 0:
            self.first_ps = now
            replica.on_first_token(self, now)
        else:
            replica.ranks[self.rank].figures.gap.add(replica.room.seconds(now - self.last_ps))
        self.last_ps = now
        first, self.sent = self.sent, tokens
        if self.streams:
            how = replica.breaks_stream(tokens)
            if how:
                self._break(how, first, tokens)
            else:
                self._stream(first, tokens)

    def on_finished(self, tokens: int, now: int) -> None:
        self.on_tokens(tokens, now)
        if self.over or self.broken or self.sent < tokens:
            return
        self.over = True
        self.replica.on_finished(self, now)
        usage, client = self.usage(tokens), self.client
        if self.request.kind == "responses":
            self.replica.responses.keep(self.id, self.answer.whole(usage, {}), self.incoming.body)
        if not self.streams:
            body = self.answer.whole(usage, self.replica.transfer_params(self))
            self.replica.say(client, self.incoming, 200, body, request_id=self.id)
            return
        options = self.request.body.stream_options
        final = usage if options is not None and options.include_usage else None
        self._write(chunk(self.answer.closing(final)) + OVER)
        client.finish(self.incoming.keep_alive)

    def _break(self, how: str, first: int, end: int) -> None:
        """Break the stream because of an injected fault. The request is then cancelled like one whose client left."""
        self.broken = True
        if first == 0:
            self._write(STREAM % (self.id.encode(), self.replica.name.encode()))
        data = chunk(b"".join([self.answer.token(number, False, None) for number in range(first, end)]))
        self._write(data[: len(data) // 2] if how == "cut" else GARBAGE)
        self.client.transport.close()

    def _stream(self, first: int, end: int) -> None:
        answer, whole = self.answer, self.request.script.tokens
        data = b"".join(
            [
                answer.token(number, number == whole - 1, self.usage(number + 1) if answer.continuous else None)
                for number in range(first, end)
            ]
        )
        if first:
            self._write(chunk(data))
            return
        opening = answer.opening()
        head = STREAM % (self.id.encode(), self.replica.name.encode())
        self._write(head + chunk(opening) + chunk(data))

    def _write(self, data: bytes) -> None:
        transport = self.client.transport
        if not transport.is_closing():  # otherwise the client has disconnected, and `client_gone` is called next
            transport.write(data)

    def usage(self, tokens: int) -> dict[str, Any]:
        prompt = self.request.content.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + tokens,
            "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": self.replica.cached_tokens(self.job)},
        }

    # --- interface of an exchange ------------------------------------------------------------------------------------

    def client_gone(self) -> None:
        if not self.over:
            self.over = True
            self.replica.on_abandoned(self)

    def hold(self) -> None: ...  # do nothing: the rest of an answer is small, so the transport buffers it

    def go_on(self) -> None: ...

    def overdue(self, now: float) -> None: ...  # do nothing: an emulated engine has no deadline
