"""One HTTP request as an inference gateway reports it. First the gateway sends the head and the body of the request,
and the picker replies with an endpoint. Then the gateway sends the engine's answer.

In the mode BUFFERED, a gateway sends the head, waits for the reply, and then sends the whole body. The endpoint picker
protocol requires the mode FULL_DUPLEX_STREAMED. In this mode, the gateway sends the body in pieces that it does not
keep, and forwards the head only after the picker's reply. Therefore the picker sends every piece back.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from headway.gateway.exchange import DEADLINE_PASSED, Exchange
from headway.http.forwarding import OWNED
from headway.http.known_heads import Fields
from headway.http.replies import error_body
from headway.http.request_reader import Incoming
from headway.interop.ext_proc import BUFFERED, FULL_DUPLEX, OVERWRITE, ProcessingResponse

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Backend
    from headway.gateway.reception import Reception
    from headway.gateway.services import Services

TARGET: Final = "x-gateway-destination-endpoint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
PREFILLER: Final = "x-prefiller-host-port"
NAMESPACE, SUBSETS = "envoy.lb", "envoy.lb.subset_hint"
PIECE: Final = 60_000  # maximum number of body bytes in one message; some gateways accept at most 64 KiB
MODES: Final = (BUFFERED, FULL_DUPLEX)
log = logging.getLogger("headway.epp")


class Pick(Exchange):
    """A request that Headway routes but does not forward. The gateway reports the engine's answer, so that the control
    plane learns the outcome of the request."""

    __slots__ = ()

    client: Any  # the `Stream` of the gateway's call

    def begin(self, now_ps: int) -> None:
        places = self.client.places()
        if places is None:
            super().begin(now_ps)
            return
        with self.services.plane.confine(now_ps, self.request, places):
            super().begin(now_ps)

    def send_to(self, backend: Backend) -> None:
        places = self.client.places()
        if places is None or backend.place in places:
            self.client.name_target(self, backend)
            return
        with self.services.plane.confine(self.services.clock.now_ps(), self.request, places) as enough:
            if enough:  # the queue routed the request among all engines, so route it again among the allowed engines
                self._retry("not allowed")
                return
        self.refuse(503, "none of the endpoints that the gateway allows can serve this request", outcome="failed")

    def fail(self) -> None:
        if not self.over:
            self.refuse(500, "the endpoint picker failed at this request", outcome="failed")

    def expire(self) -> None:
        """Handle the deadline of a request. If the request is still queued, reject it. If it was dispatched, do
        nothing, because the inference gateway enforces the deadline."""
        if not self.over and self.flight is None:
            self.refuse(504, DEADLINE_PASSED, outcome="timed_out")

    def pass_head(self, status: int) -> None:
        """Record the head of the engine's answer."""
        assert self.backend is not None and self.flight is not None
        self.status, self.sent = status, True
        if self.flight.prefill is not None:  # the answer has begun, so the prefill is complete
            self.services.plane.handed(self.services.clock.now_ps(), self.request.id)

    def pass_body(self, data: bytes) -> None:
        """Record a piece of the answer's body."""
        if self.tally.count(data) and self.status < 400:
            self.record_first_token()

    def complete(self) -> None:
        """Record the end of the engine's answer."""
        if not self.over:
            assert self.backend is not None
            self.services.health.record_status(self.backend, self.status)
            good = self.status < 400
            self.end("completed" if good else "failed", "" if good else f"status {self.status}")


class Stream:
    """A gateway's call, which reports one HTTP request. `hear` takes one message and returns the messages to reply
    with. If `over` is set, no more replies follow."""

    paused = False  # part of a client connection's interface; always False, because the gateway handles slow clients

    def __init__(self, reception: Reception, services: Services) -> None:
        self.reception, self.services = reception, services
        self.exchange: Pick | None = None
        self.over = False
        self._method, self._path = b"", b""
        self._fields: Fields = []
        self._body: list[bytes] = []
        self._size = 0
        self._phase = "request_headers"
        self._modes = (FULL_DUPLEX, FULL_DUPLEX)
        self._allowed: frozenset[str] | None = None
        self._replies: asyncio.Future[list[Any]] = services.clock.loop.create_future()
        self._pick: Pick | None = None  # the routed request; None until it is dispatched

    async def hear(self, message: Any) -> list[Any]:
        if message.HasField("protocol_config"):
            config = message.protocol_config
            self._modes = (config.request_body_mode, config.response_body_mode)
        kind = message.WhichOneof("one")
        if kind is None:
            return []
        replies = getattr(self, f"_{kind}")(getattr(message, kind), message)
        return await replies if asyncio.iscoroutine(replies) else list(replies)

    def close(self) -> None:
        """Handle the end of the call. If the answer is incomplete, the client has disconnected."""
        pick = self.exchange
        if pick is None or pick.over:
            return
        if pick.status and not self._modes[1]:  # the gateway does not send the answer's body, so the answer is complete
            pick.complete()
        else:
            pick.client_gone()

    # --- the request -------------------------------------------------------------------------------------------------

    async def _request_headers(self, head: Any, message: Any) -> list[Any]:
        for field in head.headers.headers:
            value = field.raw_value or field.value.encode()
            name = field.key.lower().encode()
            if name == b":method":
                self._method = value
            elif name == b":path":
                self._path = value
            elif not name.startswith(b":"):
                self._fields.append((name, value))
        self._allowed = _subset(message)
        if head.end_of_stream:
            return await self._decide("request_headers", None)
        if self._modes[0] not in MODES:
            self.answer(None, 500, error_body(500, "the gateway must send bodies BUFFERED or FULL_DUPLEX_STREAMED"))
            return await self._replies
        return [_go_on("request_headers")] if self._modes[0] == BUFFERED else []

    async def _request_body(self, piece: Any, message: Any) -> list[Any]:
        self._body.append(piece.body)
        self._size += len(piece.body)
        if self._size > self.reception.limits.body_bytes:
            most = f"the body has more than {self.reception.limits.body_bytes:,} bytes"
            self.reception.count_refusal(413)
            self.answer(None, 413, error_body(413, most))
            return await self._replies
        if not piece.end_of_stream and self._modes[0] != BUFFERED:  # a buffered body is complete, even before trailers
            return []
        return await self._decide("request_body" if self._modes[0] == BUFFERED else "request_headers", True)

    async def _request_trailers(self, trailers: Any, message: Any) -> list[Any]:
        if self._modes[0] == BUFFERED:
            return [_go_on("request_trailers")]
        replies = await self._decide("request_headers", False)
        return replies if self.over else [*replies, _go_on("request_trailers")]

    async def _decide(self, phase: str, ends: bool | None) -> list[Any]:
        """Ask the control plane, wait for its decision, and return the decision as the reply to this phase. `ends` says
        whether the body that is sent back ends the request. If the request has no body, `ends` is None."""
        body = b"".join(self._body)
        self._phase = phase
        incoming = Incoming(self._method, self._path, self._fields, body, True, "2", dict(self._fields))
        try:
            self.reception.begin(self, incoming)  # type: ignore[arg-type]  # the stream acts as a client connection
        except Exception:  # for example raised by a policy: this client gets 500, other clients are served
            log.exception("a request failed before it was routed")
            if self.exchange is not None and not self.exchange.over:
                self.exchange.client_gone()
            self.answer(None, 500, error_body(500, "the endpoint picker failed at this request"))
        replies = await self._replies
        if self.over or phase == "request_body" or ends is None:
            return replies
        return [*replies, *_pieces("request_body", body, ends)]

    # --- interface of a client connection ----------------------------------------------------------------------------

    def answer(
        self, incoming: Incoming | None, status: int, body: bytes, fields: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Reply that the gateway must answer its client directly, with this status and body, without an engine."""
        self.over = True
        reply = ProcessingResponse()
        immediate = reply.immediate_response
        immediate.status.code, immediate.body = status, body
        for name, value in (("content-type", "application/json"), *fields):
            _set(immediate.headers, name, value.encode("latin-1", "replace"))
        if not self._replies.done():
            self._replies.set_result([reply])

    def finish(self, keep: bool) -> None: ...  # do nothing: there is no connection to reuse

    def places(self) -> frozenset[int] | None:
        """Return the `place` of each engine that the gateway allows, or None if it allows all engines."""
        if self._allowed is None:
            return None
        backends = filter(None, self.services.fleet.backends)
        return frozenset(backend.place for backend in backends if endpoint(backend) in self._allowed)

    def name_target(self, pick: Pick, backend: Backend) -> None:
        target = endpoint(backend)
        self._pick = pick
        reply = ProcessingResponse()
        response = getattr(reply, self._phase).response
        heads = response.header_mutation
        response.clear_route_cache = True
        _set(heads, TARGET, target.encode())
        flight, address = pick.flight, backend.address
        if flight is not None and flight.prefill is not None:
            prefill = self.services.fleet.backends[flight.prefill.index]
            assert prefill is not None
            _set(heads, PREFILLER, endpoint(prefill).encode())
        if address.base:
            _set(heads, ":path", address.base + self._path)
        if backend.key is not None:
            _set(heads, "authorization", b"Bearer " + backend.key)
        elif pick.key is not None:  # the engine must not see the picker's key
            heads.remove_headers.append("authorization")
        heads.remove_headers.extend(name.decode() for name, _ in self._fields if name.startswith(OWNED))
        reply.dynamic_metadata.get_or_create_struct(NAMESPACE)[TARGET] = target
        self._replies.set_result([reply])

    # --- the answer --------------------------------------------------------------------------------------------------

    def _response_headers(self, head: Any, message: Any) -> list[Any]:
        reply = _go_on("response_headers")
        pick = self._pick
        if pick is None or pick.over:
            return [reply]
        status = next((field.raw_value or field.value for field in head.headers.headers if field.key == ":status"), "0")
        pick.pass_head(int(status))
        assert pick.backend is not None and pick.flight is not None
        heads = reply.response_headers.response.header_mutation
        _set(heads, "x-headway-target", pick.backend.name.encode())
        name, _, value = self.services.reasons.line(pick.flight.reason).partition(b": ")
        _set(heads, name.decode(), value)
        _set(heads, "x-headway-request", str(pick.request.id).encode())
        if head.end_of_stream:
            pick.complete()
        return [reply]

    def _response_body(self, piece: Any, message: Any) -> list[Any]:
        pick = self._pick
        if pick is not None and not pick.over:
            if piece.body:
                pick.pass_body(piece.body)
            if piece.end_of_stream:
                pick.complete()
        if self._modes[1] == FULL_DUPLEX:
            return _pieces("response_body", piece.body, piece.end_of_stream)
        return [_go_on("response_body")]

    def _response_trailers(self, trailers: Any, message: Any) -> list[Any]:
        if self._pick is not None:
            self._pick.complete()
        return [_go_on("response_trailers")]


def _go_on(phase: str) -> Any:
    """Return a reply that lets the gateway continue without changes."""
    reply = ProcessingResponse()
    getattr(reply, phase).SetInParent()
    return reply


def _set(heads: Any, name: str, value: bytes) -> None:
    option = heads.set_headers.add(append_action=OVERWRITE)
    option.header.key, option.header.raw_value = name, value


def _pieces(phase: str, body: bytes, ends: bool) -> list[Any]:
    """Return the messages that send a body back. `ends` says whether the last message ends the stream."""
    replies = []
    for at in range(0, max(len(body), 1), PIECE):
        reply = ProcessingResponse()
        streamed = getattr(reply, phase).response.body_mutation.streamed_response
        streamed.body = body[at : at + PIECE]
        streamed.end_of_stream = ends and at + PIECE >= len(body)
        replies.append(reply)
    return replies


def endpoint(backend: Backend) -> str:
    """Return the host and port of an engine in the gateway's notation."""
    return backend.address.host_line.decode().removeprefix("host: ")


def _subset(message: Any) -> frozenset[str] | None:
    """Return the endpoints that a gateway allows for a request, or None if it allows all endpoints."""
    for entry in message.metadata_context.filter_metadata:
        if entry.key == SUBSETS and SUBSET in entry.value.fields:
            listed = entry.value.fields[SUBSET]
            texts = [item.string_value for item in listed.list_value.values] or listed.string_value.split(",")
            return frozenset(text.strip() for text in texts)
    return None
