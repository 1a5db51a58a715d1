"""Liveness and readiness on a port of their own, without a key."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from asking import Answer, component, fetch

from headway.errors import HeadwayError
from headway.gateway.api_keys import new_key
from headway.gateway.config import Config

PROBES = "127.0.0.1:0"


def probe(gateway, path: str, method: str = "GET") -> Answer:
    return fetch(f"http://127.0.0.1:{component(gateway, 'Probes').port}{path}", method=method)


def test_the_gateway_is_ready_while_an_engine_can_take_requests(live, tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text(f"ann: {{sha256: {new_key()[1]}}}\n")
    gateway = live(1, probes=PROBES, keys=str(file))
    assert (probe(gateway, "/livez").status, probe(gateway, "/readyz").json()) == (200, {"ready": True})
    gateway.call(on_loop(gateway.app.orders.give, "cordon", "e0"))
    refused = probe(gateway, "/readyz?verbose")
    assert refused.status == 503 and refused.json() == {"ready": False, "why": "no engine can take requests"}
    assert probe(gateway, "/livez").status == 200
    gateway.call(on_loop(gateway.app.orders.give, "uncordon", "e0"))
    assert probe(gateway, "/readyz", "HEAD").status == 200


async def on_loop(action, *arguments):
    action(*arguments)


def test_it_is_not_ready_while_it_starts_and_while_it_drains(live):
    gateway = live(1, probes=PROBES)
    gateway.app.reception.draining = True
    assert probe(gateway, "/readyz").json()["why"] == "the gateway is shutting down"
    assert probe(gateway, "/livez").status == 200
    gateway.app.reception.draining = False
    server, gateway.app.server = gateway.app.server, None
    assert probe(gateway, "/readyz").json()["why"] == "the gateway starts"
    gateway.app.server = server
    assert probe(gateway, "/readyz").status == 200


def test_the_port_has_nothing_else(live):
    gateway = live(1, probes=PROBES)
    for path in ("/", "/v1/models", "/metrics", "/livez/"):
        assert probe(gateway, path).status == 404
    refused = probe(gateway, "/readyz", "POST")
    assert refused.status == 405 and refused.headers["allow"] == "GET, HEAD"


@pytest.mark.full
def test_clients_that_send_nothing_or_too_much_are_closed(live):
    gateway = live(1, probes=PROBES)
    probes = component(gateway, "Probes")
    with socket.create_connection(("127.0.0.1", probes.port), timeout=60) as long:
        long.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\nlong: " + b"a" * 5000 + b"\r\n\r\n")
        assert long.recv(4096)[9:12] == b"431"
    with socket.create_connection(("127.0.0.1", probes.port), timeout=60) as silent:
        gateway.until(lambda: len(probes.clients) == 1)
        now = probes.seconds()
        gateway.loop.call_soon_threadsafe(lambda: [client.overdue(now + 60) for client in probes.clients])
        assert silent.recv(4096)[9:12] == b"408"
    assert probe(gateway, "/readyz").status == 200


def test_a_port_in_use_is_reported(live):
    taken = socket.create_server(("127.0.0.1", 0))
    where = f"127.0.0.1:{taken.getsockname()[1]}"
    with taken, pytest.raises(HeadwayError, match=rf"probes\.listen: cannot listen on {where}: .*in use"):
        live(1, probes=where)


@pytest.mark.parametrize("wrong", [8081, {"port": 8081}, "8081", {}])
def test_a_wrong_section_is_reported(wrong):
    with pytest.raises(HeadwayError, match="probes"):
        Config.load({"backends": {"a": "http://127.0.0.1:9"}, "probes": wrong})
