"""Gateways that share their counts of requests in flight."""

from __future__ import annotations

import socket
import threading

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from msgspec.structs import replace
from openai_client import openai, openai_client

from free_ports import free_port
from headway.errors import HeadwayError
from headway.gateway.config import Config
from headway.gateway.peers import PeerSettings

KEY = "a key that all of them know"


@pytest.fixture
def pair(live, monkeypatch):
    """Return two gateways in front of the same two engines."""
    monkeypatch.setenv("PEERS", KEY)
    monkeypatch.setenv("WRONG", KEY + "!")
    first = live(2)
    ports = [free_port(), free_port()]
    backends = {engine.name: f"http://127.0.0.1:{engine.port}" for engine in first.engines}

    def start(keys=("PEERS", "PEERS"), **more):
        gateways = []
        for own, other, key in zip(ports, reversed(ports), keys, strict=True):
            peers = {"listen": f"127.0.0.1:{own}", "to": [f"127.0.0.1:{other}"], "key_env": key, "interval": "10ms"}
            gateways.append(live(0, backends=backends, peers={**peers, "name": f"g{own}"}, **more))
        return first.engines, *gateways

    return start


def stream(gateway):
    client = openai_client(gateway.url)
    messages = [{"role": "user", "content": "hello " * 1000}]
    return list(client.chat.completions.create(model="m", messages=messages, stream=True))


def test_each_peer_counts_the_others_requests_in_flight(pair):
    engines, gateway, two = pair(policies={"routing": "least-loaded"})
    for engine in engines:
        engine.pause, engine.tokens = 0.05, 20
    gateway.until(lambda: gateway.app.peers.connected and two.app.peers.connected)
    threads = [threading.Thread(target=stream, args=(gateway,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    two.until(lambda: sum(view.inflight for view in two.app.plane.views) == 3)
    assert [two.app.plane.places.own(place) for place in (0, 1)] == [(0, 0, 0, 0, 0)] * 2
    two.app.plane.control.check([counts[0] for counts in two_counts(two)])
    stream(two)
    for thread in threads:
        thread.join()
    gateway.until(gateway.idle)
    two.until(two.idle)


def two_counts(two):
    (peer,) = two.app.plane.places.peers.values()
    return [peer.get(place, (0, 0, 0, 0, 0)) for place in range(len(two.app.plane.views))]


def test_each_peer_learns_where_the_other_sent_prompts(pair):
    _, gateway, two = pair(policies={"routing": "lmetric"})
    gateway.until(lambda: gateway.app.peers.connected and two.app.peers.connected)
    stream(gateway)
    two.until(lambda: any(two.app.plane.control.indexes[0].size(place) for place in (0, 1)))


def broken_stream(gateway):
    with pytest.raises(openai.APIError):
        stream(gateway)


def test_the_counts_of_a_lost_peer_are_removed(pair):
    engines, gateway, two = pair()
    for engine in engines:
        engine.pause, engine.tokens = 0.05, 200
    gateway.until(lambda: gateway.app.peers.connected and two.app.peers.connected)
    thread = threading.Thread(target=broken_stream, args=(gateway,))
    thread.start()
    two.until(lambda: sum(view.inflight for view in two.app.plane.views) == 1)
    gateway.call(gateway.app.peers.stop())
    two.until(two.idle)
    gateway.call(gateway.app.drain(0))
    thread.join()


def test_a_peer_that_reconnects_is_counted_once(pair):
    _, gateway, two = pair()
    gateway.until(lambda: gateway.app.peers.connected and two.app.peers.connected)
    name = two.app.config.peers.name
    gateway.until(lambda: name in gateway.app.peers._senders)
    plane = gateway.app.plane

    async def as_if_it_had_something():
        plane.heard(gateway.app.clock.now_ps(), name, {0: (5, 500, 50, 0, 0)}, [])

    gateway.call(as_if_it_had_something())
    former = gateway.app.peers._senders[name]
    two.call(again(two))
    gateway.until(lambda: gateway.app.peers._senders.get(name) not in (None, former))
    gateway.until(gateway.idle)
    stream(two)
    gateway.until(gateway.idle)


async def again(two):
    """The peer's end of the connection stays open, as after a short loss of the network."""
    (where,) = two.app.config.peers.to
    two.app.clock.loop.create_task(two.app.peers._open_and_hold(where))


def test_a_leaving_engine_does_not_count_for_the_next_of_its_name(live):
    gateway = live(2)
    (first, second) = gateway.app.fleet.members

    async def change():
        first.view.inflight += 1  # so that it cannot go yet
        members = dict(gateway.app.fleet.sources["file"])
        members["e0"] = replace(members["e0"], url=members["e1"].url)
        gateway.app.fleet.offer("file", members)
        by_name = gateway.app.fleet.by_name
        first.view.inflight -= 1
        return by_name

    by_name = gateway.call(change())
    assert list(by_name) == ["e0", "e1"]
    assert by_name["e0"] is gateway.app.fleet.names["e0"] is not first
    assert by_name["e1"] is second


def test_a_peer_without_the_key_is_rejected(pair):
    engines, gateway, two = pair(keys=("PEERS", "WRONG"))
    for engine in engines:
        engine.pause, engine.tokens = 0.02, 20
    stream(gateway)
    stream(two)
    assert not gateway.app.plane.places.peers
    assert not two.app.plane.places.peers


def test_an_invalid_message_ends_only_its_connection(pair):
    _, gateway, two = pair()
    gateway.until(lambda: gateway.app.peers.connected and two.app.peers.connected)
    host, port = gateway.app.config.peers.listen.split(":")
    for junk in (b"", b"\x00" * 10, b"\xff" * 5000):
        with socket.create_connection((host, int(port)), timeout=300) as sock:
            sock.sendall(junk)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    stream(gateway)
    two.until(two.idle)


def test_an_order_reaches_all_processes(live, tmp_path):
    where = [f"unix:{tmp_path}/{number}" for number in range(2)]
    first = live(2)
    backends = {engine.name: f"http://127.0.0.1:{engine.port}" for engine in first.engines}
    both = []
    for number in range(2):
        settings = PeerSettings(where[number], (where[1 - number],), "", f"w{number}", 0.01, KEY.encode(), True)
        both.append(live(0, backends=backends, with_peers=settings))
    gateway, two = both
    gateway.until(lambda: gateway.app.peers.connected and two.app.peers.connected)
    gateway.loop.call_soon_threadsafe(gateway.app.orders.give, "cordon", "e1")
    gateway.loop.call_soon_threadsafe(gateway.app.orders.give, "swap", {"routing": "round-robin"})
    two.until(lambda: two.app.plane.views[1].state == "draining" and two.app.plane.policies["routing"] == "round-robin")
    gateway.loop.call_soon_threadsafe(gateway.app.orders.give, "uncordon", "e1")
    two.until(lambda: two.app.plane.views[1].state == "ready")


def test_a_key_that_is_too_short_is_refused(monkeypatch):
    monkeypatch.setenv("PEERS", "short")
    peers = {"listen": "127.0.0.1:1", "to": [], "key_env": "PEERS"}
    with pytest.raises(HeadwayError, match="at least 16 characters"):
        Config.load({"backends": {"a": "http://x:1"}, "peers": peers})
