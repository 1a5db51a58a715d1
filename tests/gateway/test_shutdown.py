"""A gateway that shuts down, and connections that close or stay open."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("xxhash", reason="the extra `gateway` is not installed")

from asking import ADMIN, KEY, admin, fetch
from rough import BODY, connect, http_post, read_all


class Client:
    """One connection that stays open for several requests."""

    def __init__(self, gateway: Any) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=300)

    def ask(self, stream: bool = False) -> http.client.HTTPResponse:
        self.connection.request("POST", "/v1/chat/completions", json.dumps({**BODY, "stream": stream}))
        return self.connection.getresponse()


@contextmanager
def draining(gateway: Any, limit_s: float = 60.0, lame_duck_s: float = 60.0) -> Iterator[Future[None]]:
    """A gateway after SIGTERM. Waits until it has ended."""
    end = asyncio.run_coroutine_threadsafe(gateway.app.drain(limit_s, lame_duck_s), gateway.loop)
    gateway.until(lambda: gateway.app.reception.draining)
    try:
        yield end
    finally:
        gateway.loop.call_soon_threadsafe(gateway.app.hurry)
        gateway.loop.call_soon_threadsafe(gateway.app.hurry)
        end.result(60)


def test_readiness_fails_at_once_while_requests_are_still_served(live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)
    gateway = live(1, admin=ADMIN)
    kept = Client(gateway)
    first = kept.ask()
    assert first.status == 200 and first.getheader("connection") is None and first.read()
    assert fetch(f"{gateway.url[:-3]}/health").status == 200
    gateway.until(lambda: admin(gateway, "/healthz").status == 200)
    with draining(gateway):
        health = fetch(f"{gateway.url[:-3]}/health")
        assert health.status == 503 and health.headers["retry-after"]
        assert admin(gateway, "/healthz").json()["draining"]
        for client in (kept, Client(gateway)):  # the listening socket is still open
            answer = client.ask()
            assert answer.status == 200 and answer.getheader("connection") == "close" and answer.read()


def test_a_stream_whose_head_came_before_the_shutdown_keeps_its_promise(live) -> None:
    gateway = live(1)
    engine = gateway.engines[0]
    engine.tokens, engine.pause = 20, 0.02
    client = Client(gateway)
    answer = client.ask(stream=True)
    with draining(gateway):
        assert answer.getheader("connection") is None and answer.read().endswith(b"data: [DONE]\n\n")
        again = client.ask()  # on the same connection
        assert again.status == 200 and again.getheader("connection") == "close" and again.read()


def test_after_the_lame_duck_time_idle_connections_close_and_requests_end(live) -> None:
    gateway = live(1)
    engine = gateway.engines[0]
    engine.tokens, engine.pause = 20, 0.02
    answer = Client(gateway).ask(stream=True)
    with connect(gateway) as idle:
        gateway.until(lambda: len(gateway.app.reception.clients) == 2)
        with draining(gateway, lame_duck_s=0) as end:
            assert idle.recv(10) == b""
            with pytest.raises(ConnectionRefusedError):
                connect(gateway)
            assert answer.read().endswith(b"data: [DONE]\n\n")
            end.result(60)
    assert gateway.idle()


def test_a_stream_that_must_end_gets_an_error_event(live) -> None:
    gateway = live(1)
    engine = gateway.engines[0]
    engine.tokens, engine.pause = 10_000, 0.02
    answer = Client(gateway).ask(stream=True)
    gateway.until(lambda: engine.under_way == 1)
    with draining(gateway, limit_s=0.1, lame_duck_s=0):
        data = answer.read()  # a complete body, although its engine had not ended
    assert b"data: [DONE]" not in data
    assert json.loads(data.split(b"data: ")[-1])["error"]["message"] == "the gateway is shutting down"
    assert gateway.idle()


def test_requests_behind_a_stream_that_must_end_get_503(live) -> None:
    gateway = live(1)
    engine = gateway.engines[0]
    engine.tokens, engine.pause = 10_000, 0.02
    with connect(gateway) as sock:
        sock.sendall(http_post({**BODY, "stream": True}) * 2 + http_post())
        head = sock.recv(12)
        with draining(gateway, limit_s=0.1, lame_duck_s=0):
            answers = head + read_all(sock)
    assert answers.count(b"HTTP/1.1 200") == answers.count(b"HTTP/1.1 503") == 1
    assert answers.count(b"the gateway is shutting down") == 2 and len(engine.bodies) == 1
    assert gateway.idle()


def test_a_request_without_an_answer_gets_503_when_the_gateway_must_end(live) -> None:
    gateway = live(1)
    gateway.engines[0].mode = "hang"
    client = Client(gateway)
    client.connection.request("POST", "/v1/chat/completions", json.dumps(BODY))
    gateway.until(lambda: gateway.engines[0].under_way == 1)
    with draining(gateway, limit_s=0.1, lame_duck_s=0):
        answer = client.connection.getresponse()
    assert answer.status == 503 and answer.getheader("retry-after") and answer.getheader("connection") == "close"
    assert b"shutting down" in answer.read() and gateway.idle()


def test_the_connection_stays_open_after_an_error_event(live) -> None:
    gateway = live(1, health={"failures": 1000})
    gateway.engines[0].mode = "die"
    client = Client(gateway)
    answer = client.ask(stream=True)
    assert answer.getheader("connection") is None and b"upstream_lost" in answer.read()
    sock = client.connection.sock
    gateway.engines[0].mode = "ok"
    again = client.ask()
    assert again.status == 200 and again.read() and client.connection.sock is sock
