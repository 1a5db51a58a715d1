"""Spans of requests, as an exporter gets them and as a collector over HTTP does."""

from __future__ import annotations

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `gateway` is not installed")

from asking import chat, component, count_ended, fetch
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headway.errors import HeadwayError
from headway.gateway.config import Config
from headway.gateway.observing.observing_settings import OtelSettings
from headway.gateway.observing.request_spans import Tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def traced(live):
    """A gateway whose spans go to a list."""

    def start(engines=2, sample=1.0, **more):
        gateway = live(engines, **more)
        spans = InMemorySpanExporter()
        app, settings = gateway.app, OtelSettings("http://127.0.0.1:9/v1/traces", sample)
        tracing = Tracing(app.clock, app.plane, app.decisions, settings, spans, simple=True)
        app.tracing = app.intake.tracing = tracing
        app.services.on_end.append(tracing.record_end)
        return gateway, spans

    return start


def both(gateway, spans):
    """The server's and the client's, of one request."""
    gateway.until(lambda: any(span.kind.name == "SERVER" for span in spans.get_finished_spans()))  # which ends last
    spans_by_kind = {span.kind.name: span for span in spans.get_finished_spans()}
    assert len(spans.get_finished_spans()) == len(spans_by_kind)
    return spans_by_kind["SERVER"], spans_by_kind.get("CLIENT")


def test_a_request_has_a_span_of_its_own_and_one_at_its_engine(traced):
    gateway, spans = traced(policies={"routing": "kv-aware"})
    answer = chat(gateway, "what was said before " * 30, stream=True, x_headway_session="talk")
    server, client = both(gateway, spans)
    assert (server.name, client.name) == ("POST /v1/chat/completions", "chat m")
    assert server.parent is None and client.parent.span_id == server.context.span_id
    assert client.context.trace_id == server.context.trace_id
    attributes = server.attributes
    assert attributes["headway.target"] == answer.headers["x-headway-target"]
    assert (attributes["headway.policy.routing"], attributes["headway.policy.version"]) == ("kv-aware", 0)
    assert (attributes["http.response.status_code"], attributes["headway.attempts"]) == (200, 1)
    assert attributes["gen_ai.conversation.id"] == "talk"
    assert client.attributes["gen_ai.operation.name"] == "chat"
    assert client.attributes["gen_ai.usage.output_tokens"] == 5
    assert client.attributes["gen_ai.response.time_to_first_chunk"] >= 0
    assert client.attributes["server.port"] in [engine.port for engine in gateway.engines]
    assert server.start_time <= client.start_time <= client.events[0].timestamp <= client.end_time == server.end_time
    (decision,) = server.events
    assert list(decision.attributes["headway.candidates"]) == ["e0", "e1"]
    assert len(decision.attributes["headway.totals"]) == 2
    assert server.status.is_ok


def genai(span):
    return {name: value for name, value in span.attributes.items() if name.startswith(("gen_ai.", "server.", "error."))}


@pytest.mark.parametrize("stream", [True, False])
def test_the_span_at_the_engine_follows_the_conventions_for_generative_ai(traced, stream):
    gateway, spans = traced(1, members={"e0": {"engine": "vllm", "models": ["m"]}})
    chat(gateway, stream=stream, x_headway_session="talk")
    _, client = both(gateway, spans)
    (engine,) = gateway.engines
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.response.id": "x",
        "gen_ai.conversation.id": "talk",
        "server.address": "127.0.0.1",
        "server.port": engine.port,
        "gen_ai.usage.output_tokens": 5 if stream else 7,
    }
    if stream:
        expected["gen_ai.request.stream"] = True
        expected["gen_ai.response.time_to_first_chunk"] = client.attributes["gen_ai.response.time_to_first_chunk"]
    else:
        expected["gen_ai.usage.input_tokens"] = 3
    assert genai(client) == expected
    assert (client.name, client.kind.name, client.status.is_ok) == ("chat m", "CLIENT", True)


def test_a_gateway_before_an_unknown_engine_names_the_api_as_its_provider(traced):
    gateway, spans = traced(1)
    gateway.engines[0].before = usage
    body = {"model": "m", "prompt": "what is a router?", "max_tokens": 9}
    fetch(f"{gateway.url}/completions", json.dumps(body).encode())
    server, client = both(gateway, spans)
    assert client.name == "text_completion m" and client.attributes["gen_ai.provider.name"] == "openai"
    assert client.attributes["gen_ai.request.max_tokens"] == 9
    assert client.attributes["gen_ai.usage.cache_read.input_tokens"] == 2
    assert "gen_ai.provider.name" not in server.attributes  # the server's span is no call of a model


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "prompt", "provider", "answer"),
    [("messages", "messages", "anthropic", "msg_"), ("responses", "input", "openai", "resp_")],
)
def test_every_api_has_the_same_attributes(traced, path, prompt, provider, answer, stream):
    from emulated import Emulated

    engines = Emulated(speed=20.0)
    try:
        gateway, spans = traced(0, backends={"a": engines.url()})
        model, text = "llama-3.1-8b", [{"role": "user", "content": "what is a router? " * 20}]
        body = {"model": model, prompt: text, "max_tokens": 5, "max_output_tokens": 5, "stream": stream}
        assert fetch(f"{gateway.url}/{path}", json.dumps(body).encode()).status == 200
        _, client = both(gateway, spans)
    finally:
        engines.stop()
    told = genai(client)
    assert client.name == f"chat {model}" and told["gen_ai.provider.name"] == provider
    assert told["gen_ai.response.model"] == model and told["gen_ai.response.id"].startswith(answer)
    assert told["gen_ai.usage.output_tokens"] == 5 and told["gen_ai.usage.input_tokens"] > 60
    assert ("gen_ai.response.time_to_first_chunk" in told) is stream


async def usage(body):
    return {"usage": {"prompt_tokens": 3, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 2}}}


def test_a_session_that_is_a_hash_is_no_conversation(traced):
    gateway, spans = traced(1)
    chat(gateway)
    assert gateway.app.config.sessions.prefix
    for span in both(gateway, spans):
        assert "gen_ai.conversation.id" not in span.attributes and "gen_ai.request.stream" not in span.attributes


def test_the_server_span_follows_the_conventions_for_http(traced):
    gateway, spans = traced(1, policies={"admission": {"name": "token-bucket", "rate": 0.001, "burst": 1}})
    chat(gateway)
    server, _ = both(gateway, spans)
    http = {name: value for name, value in server.attributes.items() if name.startswith(("http.", "url."))}
    assert http == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
    }


@pytest.mark.parametrize(("status", "fails"), [(429, False), (503, True)])
def test_a_status_of_the_400s_is_no_error_of_the_server(traced, status, fails):
    source = f'def admit(request, cluster):\n    return reject("{status}: not now")\n'
    gateway, spans = traced(1, policies={"admission": {"name": "code", "source": source}})
    assert chat(gateway).status == status
    server, _ = both(gateway, spans)
    assert (server.status.status_code.name == "ERROR") is fails
    assert server.attributes.get("error.type") == (str(status) if fails else None)


def test_a_deadline_has_the_error_type_of_the_conventions(traced):
    gateway, spans = traced(1, deadlines={"standard": "100ms"})
    gateway.engines[0].mode = "stall"
    chat(gateway, stream=True)
    for span in both(gateway, spans):
        assert span.attributes["error.type"] == "timeout" and not span.status.is_ok


def test_the_engine_is_told_its_parent(traced):
    gateway, spans = traced(1)
    chat(gateway)
    _, client = both(gateway, spans)
    header = gateway.engines[0].fields[0][b"traceparent"].decode()
    assert header == f"00-{client.context.trace_id:032x}-{client.context.span_id:016x}-01"
    assert client.attributes["gen_ai.usage.input_tokens"] == 3  # as the engine counted


def test_a_clients_trace_goes_on(traced):
    gateway, spans = traced(1, sample=0.0)
    chat(gateway, traceparent=PARENT, tracestate="vendor=1")
    server, client = both(gateway, spans)
    assert f"{server.context.trace_id:032x}" == f"{client.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{server.parent.span_id:016x}" == PARENT.split("-")[2]
    fields = gateway.engines[0].fields[0]
    assert fields[b"traceparent"].decode().split("-")[1] == PARENT.split("-")[1]
    assert fields[b"tracestate"] == b"vendor=1"


def test_a_client_that_is_not_sampled_is_not_and_its_header_goes_on_as_it_came(traced):
    gateway, spans = traced(1, sample=1.0)
    settings = PARENT[:-1] + "0"
    chat(gateway, traceparent=settings)
    gateway.until(gateway.idle)
    assert spans.get_finished_spans() == ()
    assert gateway.engines[0].fields[0][b"traceparent"].decode() == settings


@pytest.mark.parametrize(
    "value", ["", "garbage", "ff" + PARENT[2:], PARENT.replace("b7ad6b7169203331", "0" * 16), "00-zz"]
)
def test_a_parent_that_cannot_be_read_begins_a_new_trace(traced, value):
    gateway, spans = traced(1)
    chat(gateway, traceparent=value, tracestate="vendor=1")
    server, _ = both(gateway, spans)
    assert server.parent is None and f"{server.context.trace_id:032x}" not in value
    assert b"tracestate" not in gateway.engines[0].fields[0]


def test_of_the_others_a_share_is_sampled(traced):
    gateway, spans = traced(1, sample=0.5)
    gateway.app.tracing.random.seed(5)
    for _ in range(60):
        chat(gateway)
    gateway.until(lambda: not gateway.app.tracing.trails and count_ended(gateway) == 60)
    count = len(spans.get_finished_spans()) // 2
    assert 10 < count < 50
    assert sum(b"traceparent" in fields for fields in gateway.engines[0].fields) == count


def test_what_went_wrong_is_told(traced):
    gateway, spans = traced(1, retries=0)
    gateway.engines[0].mode = "reset"
    assert chat(gateway).status == 502
    server, client = both(gateway, spans)
    assert not server.status.is_ok and "the connection was lost" in server.status.description
    assert (server.attributes["error.type"], client.attributes["error.type"]) == ("502", "502")
    gateway.until(lambda: gateway.app.tracing.trails == {})


def test_who_was_sent_to_no_engine_has_no_span_there(traced):
    gateway, spans = traced(1, policies={"admission": {"name": "token-bucket", "rate": 0.001, "burst": 1}})
    chat(gateway)
    both(gateway, spans)
    spans.clear()
    assert chat(gateway).status in (429, 503)
    server, client = both(gateway, spans)
    assert client is None and server.attributes["headway.outcome"] == "rejected"
    assert "headway.target" not in server.attributes


class Collector(BaseHTTPRequestHandler):
    bodies: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.bodies.append((self.path, gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_collector_gets_them_in_batches(live):
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    Collector.bodies.clear()
    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    gateway = live(2, otel={"endpoint": f"http://127.0.0.1:{server.server_port}", "service": "mine"})
    for _ in range(4):
        chat(gateway)
    gateway.until(lambda: not gateway.app.tracing.trails)
    gateway.call(component(gateway, "Tracing").stop())  # what is left is sent at the end
    server.shutdown()
    names, services = [], set()
    for path, body in Collector.bodies:
        assert path == "/v1/traces"
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            services |= {each.value.string_value for each in group.resource.attributes if each.key == "service.name"}
            names += [span.name for scope in group.scope_spans for span in scope.spans]
    assert services == {"mine"} and sorted(names) == ["POST /v1/chat/completions"] * 4 + ["chat m"] * 4


def test_a_collector_that_is_gone_holds_nobody_up(live):
    gateway = live(1, otel="http://127.0.0.1:9")
    assert [chat(gateway).status for _ in range(5)] == [200] * 5


def test_it_is_off_unless_it_is_asked_for(live):
    gateway = live(1)
    chat(gateway)
    assert gateway.app.tracing is None and b"traceparent" not in gateway.engines[0].fields[0]


def test_a_wrong_setting_is_told_with_its_place():
    for otel, message in (
        ("127.0.0.1:4318", "otel.endpoint: expected a URL"),
        ({"endpoint": "http://x", "sample": 2}, "otel.sample"),
    ):
        with pytest.raises(HeadwayError, match=message.replace(".", r"\.")):
            Config.load({"backends": {"a": "http://x"}, "otel": otel})
