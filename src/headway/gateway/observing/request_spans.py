"""OpenTelemetry spans of requests. They follow the conventions for HTTP and generative AI, and show the decision.

    server span   POST /v1/chat/completions, from arrival to end: outcome, decision, scorecard
      client span chat MODEL, from dispatch to end: tokens, time to the first token

The engine receives the id of the client span as the parent of its own spans. If a client sends a trace, the gateway
continues the trace and obeys its sampled flag. Of all other requests, the gateway samples the fraction `sample`. It
creates the spans of a request after the request has ended.
"""

from __future__ import annotations

import asyncio
import re
import time
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headway.errors import missing_extra
from headway.gateway.observing.recent_decisions import Decisions, policy_name
from headway.gateway.request_sessions import HASHED
from headway.http.answer_tally import CACHED, PROMPT

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Backend
    from headway.gateway.exchange import Exchange
    from headway.gateway.live_clock import Clock
    from headway.gateway.observing.observing_settings import OtelSettings
    from headway.gateway.plane import Plane

PARENT: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
MODEL: Final = re.compile(rb'"model": ?"([^"\\]{1,200})"')
ANSWER: Final = re.compile(rb'"id": ?"([^"\\]{1,200})"')
OPERATIONS: Final = {
    "responses": "chat",
    "messages": "chat",
    "chat": "chat",
    "completion": "text_completion",
    "embedding": "embeddings",
}
# The provider of an engine whose kind the file does not name is its API.
OPENAI: Final = "openai"
PROVIDERS: Final = {"messages": "anthropic"}  # by kind of request, if it is not OPENAI
ERRORS: Final = {"timed_out": "timeout"}  # outcomes with an error type of the conventions
PS_PER_NS: Final = 1000
MOST_SCORES: Final = 64  # maximum number of candidates that a span shows of a scorecard


class Trail(NamedTuple):
    """The trace and span ids of one request."""

    trace: int
    parent: int
    server: int
    client: int


class Tracing:
    def __init__(
        self,
        clock: Clock,
        plane: Plane,
        decisions: Decisions,
        settings: OtelSettings,
        exporter: Any = None,
        simple: bool = False,
    ) -> None:
        """With `simple`, export each span immediately, for tests."""
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        except ImportError:
            raise missing_extra("otel", "opentelemetry", "gateway") from None
        self.plane, self.decisions, self.settings, self.api = plane, decisions, settings, trace
        self.random = Random()
        self.ids = _ids()
        self.trails: dict[int, Trail] = {}  # trails of the sampled requests in flight, by request id
        self.epoch_ns = time.time_ns() - clock.now_ps() // PS_PER_NS
        resource = Resource.create({"service.name": settings.service})
        self.provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False, id_generator=self.ids)
        out = OTLPSpanExporter(endpoint=settings.endpoint) if exporter is None else exporter
        self.provider.add_span_processor(SimpleSpanProcessor(out) if simple else BatchSpanProcessor(out))
        self.tracer = self.provider.get_tracer("headway.gateway")

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        await asyncio.to_thread(self.provider.shutdown)  # also sends the remaining spans

    def begin(self, exchange: Exchange) -> None:
        """Generate the trace and span ids before routing. Set the header that names the engine's parent span."""
        fields, draw = exchange.incoming.fields, self.random
        header = next((value for name, value in fields if name == b"traceparent"), None)
        match = None if header is None else PARENT.match(header)
        if match is None:
            if draw.random() >= self.settings.sample:
                return
            trace, parent = draw.getrandbits(128) or 1, 0
            # If the client sent no valid parent, drop its trace state too, because it is meaningless alone.
            replaced: tuple[bytes, ...] = (b"traceparent", b"tracestate")
        else:
            if not int(match[3], 16) & 1:
                return  # the client's trace is not sampled: forward its header unchanged
            trace, parent = int(match[1], 16), int(match[2], 16)
            replaced = (b"traceparent",)
        trail = Trail(trace, parent, draw.getrandbits(64) or 1, draw.getrandbits(64) or 1)
        line = (b"traceparent", b"00-%032x-%016x-01" % (trail.trace, trail.client))
        exchange.incoming.fields = [*(field for field in fields if field[0] not in replaced), line]
        self.trails[exchange.request.id] = trail

    def record_end(self, exchange: Exchange, now_ps: int, outcome: str, why: str) -> None:
        trail = self.trails.pop(exchange.request.id, None)
        if trail is None:
            return
        request, status = exchange.request, exchange.status
        common = _request_attributes(exchange)
        path = exchange.incoming.target.partition(b"?")[0].decode("latin-1")
        attributes = {**common, "http.request.method": "POST", "http.route": path, "url.path": path}
        attributes["url.scheme"] = "https" if exchange.client.transport.get_extra_info("sslcontext") else "http"
        self.ids.trace, self.ids.span = trail.trace, trail.server
        attributes |= self._decision(exchange, outcome)
        server = self._span(f"POST {path}", trail.parent, self.api.SpanKind.SERVER, attributes, request.arrival_ps)
        if status:
            server.set_attribute("http.response.status_code", status)
        error = "" if outcome == "completed" else str(status) if status >= 400 else ERRORS.get(outcome, outcome)
        if exchange.sent_ps >= 0 and exchange.backend is not None:
            self._client(exchange, exchange.backend, trail, common, now_ps, error, why or outcome)
        self._scores(server, request.id)
        # A status of the 400s is the client's fault, and no error of the server.
        self._close(server, now_ps, "" if 400 <= status < 500 else error, why or outcome)

    def _client(
        self,
        exchange: Exchange,
        backend: Backend,
        trail: Trail,
        common: dict[str, Any],
        now_ps: int,
        error: str,
        why: str,
    ) -> None:
        address, kind = backend.address, backend.spec.engine
        attributes = {**common, "server.address": address.host, "server.port": address.port}
        attributes["gen_ai.provider.name"] = PROVIDERS.get(exchange.request.kind, OPENAI) if kind == "auto" else kind
        name = f"{common['gen_ai.operation.name']} {common['gen_ai.request.model']}".strip()
        tally = exchange.tally
        if tally.tokens:
            attributes["gen_ai.usage.output_tokens"] = tally.tokens
        for attribute, pattern in (
            ("gen_ai.usage.input_tokens", PROMPT),
            ("gen_ai.usage.cache_read.input_tokens", CACHED),
        ):
            count = pattern.search(tally.usage)
            if count is not None:
                attributes[attribute] = int(count[1])
        for attribute, pattern in (("gen_ai.response.model", MODEL), ("gen_ai.response.id", ANSWER)):
            text = pattern.search(tally.head)
            if text is not None and not error:
                attributes[attribute] = text[1].decode("utf-8", "replace")
        first = exchange.first_ps
        if first >= 0 and tally.stream:
            attributes["gen_ai.response.time_to_first_chunk"] = (first - exchange.sent_ps) / 1e12
        self.ids.span = trail.client
        span = self._span(name, trail.server, self.api.SpanKind.CLIENT, attributes, exchange.sent_ps)
        if first >= 0 and tally.stream:
            span.add_event("first token", timestamp=self._ns(first))
        self._close(span, now_ps, error, why)

    def _decision(self, exchange: Exchange, outcome: str) -> dict[str, Any]:
        request, flight, plane = exchange.request, exchange.flight, self.plane
        attributes: dict[str, Any] = {
            "headway.request": request.id,
            "headway.outcome": outcome,
            "headway.tenant": request.tenant,
            "headway.slo_class": request.slo_class,
            "headway.prompt_tokens": request.prompt_tokens,
            "headway.attempts": exchange.attempts,
            "headway.policy.version": plane.version,
            "headway.policy.routing": policy_name(plane.policies["routing"]),
        }
        if flight is not None and exchange.backend is not None:
            attributes["headway.target"] = exchange.backend.name
            attributes["headway.reason"] = flight.reason
            attributes["headway.believed_cached_tokens"] = flight.cached
            attributes["headway.priority"] = float(flight.priority)
            attributes["headway.queue_wait"] = (exchange.sent_ps - request.arrival_ps) / 1e12
        return attributes

    def _scores(self, span: Any, request: int) -> None:
        """Add the scorecard of the request's last explained decision to the span. Without a scorecard, add nothing."""
        explained = reversed(self.decisions.explained)
        entry = next((entry for entry in explained if entry.request.id == request and entry.kind == "routed"), None)
        if entry is None or entry.answer.scorecard is None:
            return
        card = entry.answer.scorecard
        attributes: dict[str, Any] = {"headway.candidates": card.left[:MOST_SCORES]}
        attributes["headway.totals"] = [float(total) for total in card.totals[:MOST_SCORES]]
        for name, row in card.scores.items():
            attributes[f"headway.score.{name}"] = [float(score) for score in row[:MOST_SCORES]]
        span.add_event("decision", attributes, timestamp=self._ns(entry.at_ps))

    # --- the SDK's spans ---------------------------------------------------------------------------------------------

    def _ns(self, at_ps: int) -> int:
        return self.epoch_ns + at_ps // PS_PER_NS

    def _span(self, name: str, parent: int, kind: Any, attributes: dict[str, Any], at_ps: int) -> Any:
        """Start a span with the ids in `self.ids`. If `parent` is 0, the span is the root of its trace."""
        api, above = self.api, self.api.INVALID_SPAN
        if parent:
            flags = api.TraceFlags(api.TraceFlags.SAMPLED)
            above = api.NonRecordingSpan(api.SpanContext(self.ids.trace, parent, is_remote=True, trace_flags=flags))
        context = api.set_span_in_context(above)
        return self.tracer.start_span(name, context, kind, attributes, start_time=self._ns(at_ps))

    def _close(self, span: Any, now_ps: int, error: str, why: str) -> None:
        """End a span. `error` is the type of its error, or empty."""
        if error:
            span.set_attribute("error.type", error)
            span.set_status(self.api.Status(self.api.StatusCode.ERROR, why))
        span.end(self._ns(now_ps))


def _request_attributes(exchange: Exchange) -> dict[str, Any]:
    """Return what both spans tell of a request."""
    request = exchange.request
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": OPERATIONS.get(request.kind, request.kind),
        "gen_ai.request.model": request.model,
    }
    if exchange.tally.stream:
        attributes["gen_ai.request.stream"] = True
    if request.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = request.max_tokens
    if request.session is not None and not request.session.startswith(HASHED):
        attributes["gen_ai.conversation.id"] = request.session
    return attributes


def _ids() -> Any:
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class Preset(IdGenerator):
        """An id generator that returns the ids which the gateway generated when the request arrived."""

        trace = span = 1

        def generate_span_id(self) -> int:
            return self.span

        def generate_trace_id(self) -> int:
            return self.trace

        def is_trace_id_random(self) -> bool:
            return True

    return Preset()
