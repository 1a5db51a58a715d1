"""A request to a chain of models. The smallest model answers first. If its answer is not confident, the next model of
the chain answers.

A step is the request to one model of the chain. The control plane handles each step as a separate request. For the
client, for the limits of its API key and for its deadline, all steps together are one request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.cascade.answer_confidence import Confidence, Lines, document_of, without_logprobs
from headway.gateway.exchange import AGAIN, Exchange
from headway.gateway.handover.leg import ANSWER_BYTES
from headway.gateway.request_body import amend_fields, asks_for, read_fields
from headway.gateway.services import Services
from headway.http.forwarding import FRAMING
from headway.http.replies import chunk
from headway.http.upstream import Payload, is_framed

if TYPE_CHECKING:
    from headway.gateway.api_keys import Key
    from headway.gateway.cascade.chains import Chain
    from headway.gateway.intake import Intake
    from headway.gateway.request_body import Body
    from headway.http.known_heads import Fields
    from headway.http.request_reader import Incoming
    from headway.http.upstream import Upstream
    from headway.http.wire import ClientConnection
    from headway.types import Request

MARK: Final = b"x-headway-cascade: "
JUDGED: Final = b"x-headway-judged: "
BUFFER: Final = b"x-headway-buffer"  # header by which a client allows the gateway to hold back more of a stream
MOST_BUFFERED: Final = 1_000_000  # maximum number of tokens in that header
# If fewer than `confident_tokens` tokens with a log-probability arrive in `confident_tokens` + UNKNOWN_EVENTS events,
# the cascade judges the answer without waiting for more.
UNKNOWN_EVENTS: Final = 64
HELD_BYTES: Final = 2 * 1024 * 1024
LONGEST_LINE: Final = 4 * 1024 * 1024
FINAL: Final = (429, 504)  # statuses of limits, shedding and deadlines: after these, asking another model is useless
# States of the current step. Each state says what the cascade does with the answer of the step's model.
ASKED, HELD, COLLECTED, DROPPED, PASSED, STRIPPED = range(6)


class Cascade(Exchange):
    """Asks one model of a chain after another. The answer of each model except the last is held back until it proves
    confident. If an answer is not confident, the next model is asked."""

    def __init__(
        self,
        services: Services,
        intake: Intake,
        client: ClientConnection,
        incoming: Incoming,
        request: Request,
        body: Body,
        key: Key | None,
        chain: Chain,
    ) -> None:
        # The gateway cannot judge a compressed answer, so do not let engines compress.
        readable = [field for field in incoming.fields if field[0] != b"accept-encoding"]
        super().__init__(services, client, replace(incoming, fields=readable), request, bool(body.stream), key)
        self.intake = intake
        self.chain, self.prompt, self.kind, self.step = chain, body, request.kind, 0
        self.fields = read_fields(incoming.body)
        self.wants_logprobs = asks_for(self.fields, "logprobs")
        self.enough = max(chain.confident_tokens, read_buffer(incoming.named.get(BUFFER)))
        self._prepare()

    @property
    def last(self) -> bool:
        return self.step == len(self.chain.models) - 1

    def _prepare(self) -> None:
        """Set the request body and the response header for the current step."""
        model = self.chain.models[self.step]
        changes: dict[str, object] = {"model": model}
        if not self.last and not self.wants_logprobs:
            changes["logprobs"] = True if self.kind == "chat" else 1
        self.body = amend_fields(self.fields, changes)
        self._set_mark(MARK, b"%d/%d %b" % (self.step + 1, len(self.chain.models), model.encode()))
        self._forget()

    def _set_mark(self, name: bytes, value: bytes) -> None:
        """Set a header field of the answer."""
        self.marks = [*(mark for mark in self.marks if not mark.startswith(name)), name + value]

    def _forget(self) -> None:
        self.stage = ASKED
        self.confidence, self.lines = Confidence(), Lines()
        self.payload: Payload | None = None
        self.held: list[bytes] = []
        self.held_bytes = 0
        self.answer_fields: Fields = []

    def _escalate(self, outcome: str, why: str) -> None:
        """End the current step, and ask the next model of the chain."""
        self._drop_upstream()
        self.leave(outcome, why)
        self.step += 1
        self._prepare()
        self.intake.ask_model(self, self.prompt, self.chain.models[self.step])

    def refuse(self, status: int, why: str, outcome: str = "rejected") -> None:
        if self.last or status in FINAL:
            super().refuse(status, why, outcome)
        else:
            self._escalate(outcome, why)

    def _retry(self, why: str, prefill: bool = False) -> None:
        self._forget()
        super()._retry(why, prefill)

    # --- the engine's answer -----------------------------------------------------------------------------------------

    def on_head(self, upstream: Upstream | None, status: int, fields: Fields) -> None:
        if self.last:
            self._set_mark(JUDGED, b"none")
            super().on_head(upstream, status, fields)
            return
        assert self.backend is not None
        self.status = status
        self.until_close = not is_framed(fields)
        if upstream is not None:
            upstream.active = True
        if status in AGAIN and self._may_retry():
            self.again = True
        elif status != 200:
            self.stage = DROPPED
        else:
            kind = next((value for name, value in fields if name == b"content-type"), b"")
            self.stage = HELD if kind.lower().startswith(b"text/event-stream") else COLLECTED
            self.answer_fields, self.payload = fields, Payload(fields)

    def on_data(self, data: bytes) -> None:
        if self.last or self.stage == PASSED:
            super().on_data(data)
            return
        if self.upstream is not None:
            self.upstream.active = True
        if self.first_byte_s < 0:
            self.record_first_byte()
        if self.payload is None or self.over:
            return  # discard this piece of the answer
        if self.tally.count(data):
            self.record_first_token()
        piece = self.payload.read(data)
        if self.stage == STRIPPED:
            self._write_stripped(piece)
        else:
            self._take(data, piece)

    def _take(self, data: bytes, piece: bytes) -> None:
        """Hold back a piece of the answer. When enough tokens have arrived, compare their confidence with the
        threshold."""
        assert self.upstream is not None
        self.held_bytes += len(piece)
        if self.stage == COLLECTED:
            self.held.append(piece)
            if self.held_bytes > ANSWER_BYTES and not self.upstream.complete:
                self._escalate("failed", f"the answer has more than {ANSWER_BYTES:,} bytes")
            return
        lines = self.lines.read(piece)
        for line in lines:
            document = document_of(line)
            if document is not None:
                self.confidence.read(document)
        self.held += [data] if self.wants_logprobs else lines
        confidence, least = self.confidence, self.chain.confident_tokens
        unknown = confidence.documents >= least + UNKNOWN_EVENTS and confidence.tokens < least
        enough = confidence.tokens >= self.enough or unknown or self.held_bytes > HELD_BYTES
        if enough and not self.upstream.complete:
            self._judge(b"first")

    def _judge(self, part: bytes) -> None:
        """Send the held part of the answer if its tokens are confident; otherwise ask the next model. `part` says which
        tokens of the answer have arrived."""
        mean = self.confidence.mean
        if mean is not None and self.confidence.reaches(self.chain.thresholds[self.step]):
            self._set_mark(JUDGED, b"%b %d tokens, mean %.3f" % (part, self.confidence.tokens, mean))
            self._release()
            return
        why = "no log-probabilities" if mean is None else f"mean log-probability {mean:.3f}"
        self._escalate("completed", f"escalated: {why}")

    def _release(self) -> None:
        """Send the part of the answer that was held back. The rest is forwarded as it arrives."""
        pieces, self.held, closes = self.held, [], self.until_close
        fields = [field for field in self.answer_fields if field[0] not in FRAMING]
        if self.stage == HELD and self.wants_logprobs:
            self.stage, fields, held = PASSED, self.answer_fields, b"".join(pieces)
        elif self.stage == HELD:
            self.stage, held = STRIPPED, chunk(b"".join(map(strip_logprobs, pieces)))
            fields.append((b"transfer-encoding", b"chunked"))
        else:
            held = b"".join(pieces) if self.wants_logprobs else without_logprobs(b"".join(pieces))
            fields.append((b"content-length", b"%d" % len(held)))
        super().on_head(self.upstream, self.status, fields)
        self.until_close = closes  # restore the engine's value: `on_head` set it from the changed header fields
        self.open(self.framed(held))
        self.first_ps = self.services.clock.now_ps()

    def _write_stripped(self, piece: bytes) -> None:
        lines = self.lines.read(piece)
        if len(self.lines.rest) > LONGEST_LINE:
            upstream = self._drop_upstream()
            self.on_broken(upstream, "an event is too long")
        elif lines:
            self.client.transport.write(self.framed(chunk(b"".join(map(strip_logprobs, lines)))))

    def on_complete(self) -> None:
        if self.over:
            return
        if self.last or self.again or self.stage == PASSED:
            super().on_complete()
            return
        self.upstream = None
        self.record_answer()
        if self.stage == DROPPED:
            self._escalate("failed", f"status {self.status}")
            return
        if self.stage != STRIPPED:
            if self.stage == COLLECTED:
                self.confidence.read(b"".join(self.held))
            self._judge(b"all")
            if not self.sent:
                return
        if self.stage == STRIPPED:
            rest = self.lines.rest
            self.client.transport.write(self.framed(chunk(strip_logprobs(rest)) + b"0\r\n\r\n"))
        self.close_answer()


def read_buffer(field: bytes | None) -> int:
    """Return the number of tokens that a client allows the gateway to hold back: 0 without the header, and
    MOST_BUFFERED for `all`."""
    if field is None:
        return 0
    text = field.strip().lower()
    if text == b"all":
        return MOST_BUFFERED
    if not text.isdigit() or len(text) > 7 or not 1 <= int(text) <= MOST_BUFFERED:
        name, value = BUFFER.decode(), shown(field.decode("latin-1"))
        raise HeadwayError(f"{name}: expected `all` or a number of tokens from 1 to {MOST_BUFFERED:,}, got {value}.")
    return int(text)


def strip_logprobs(line: bytes) -> bytes:
    """Return a line of an event without log-probabilities, because the gateway requested them, not the client."""
    document = document_of(line)
    return line if document is None else b"data: " + without_logprobs(document) + line[len(line.rstrip(b"\r\n")) :]
