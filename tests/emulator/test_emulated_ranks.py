"""An emulated engine with data-parallel ranks: its header, the labels of its metrics, the ports of its KV events."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from emulated import Emulated

from headway.gateway.engines.member import read_members
from headway.gateway.signals.event_listener import with_rank
from headway.gateway.signals.scrape import parse

MODEL: Any = {
    "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 1, "params": 100_000, "name": "toy",
    "experts": 8, "experts_per_token": 2, "expert_intermediate": 32,
}  # fmt: skip
CLUSTER = {"model": MODEL, "dp": 2, "ep": True, "kv": {"gpu_blocks": 500}}


@pytest.fixture
def one() -> Iterator[Emulated]:
    engine = Emulated(CLUSTER, speed=100.0)
    yield engine
    engine.stop()


def ask(one: Emulated, rank: int | None = None, prompt: str = "a b c d") -> Any:
    fields = {} if rank is None else {"X-data-parallel-rank": str(rank)}
    return one.post("/v1/completions", {"model": "toy", "prompt": prompt, "max_tokens": 2}, **fields)


def test_the_ranks_are_one_engine_with_one_address(one: Emulated) -> None:
    assert [replica.name for replica in one.host.replicas] == ["instance-0"]
    assert [len(replica.ranks) for replica in one.host.replicas] == [2]


def test_a_request_goes_to_the_rank_that_its_header_names(one: Emulated) -> None:
    for rank in (1, 1, 0):
        ask(one, rank)
    ask(one)  # the engine chooses
    page = one.get("/metrics")
    served = [parse(page, "vllm", rank=rank)["queries"] for rank in (0, 1)]
    assert sum(served) == parse(page, "vllm")["queries"] and min(served) > 0
    assert parse(page, "vllm", rank=1)["kv_blocks"] == 500
    assert page.count("# TYPE vllm:num_requests_running gauge") == 1


def test_a_crash_of_the_engine_loses_the_requests_of_all_ranks(one: Emulated) -> None:
    one.fault("hang")
    clients = [send_raw(one, rank) for rank in (0, 1)]
    Emulated.until(lambda: len(one.host.room.sinks) == 2)  # the second waits for the next joint step
    one.fault("crash", seconds=0.01)
    Emulated.until(lambda: len(one.ended) == 2)
    assert [outcome for _, outcome in one.ended] == ["lost", "lost"]
    Emulated.until(lambda: one.host.replicas[0].server is not None)
    ask(one, 1)
    for client in clients:
        client.close()


def send_raw(one: Emulated, rank: int) -> socket.socket:
    body = msgspec.json.encode({"model": "toy", "prompt": "a b", "max_tokens": 50, "stream": True})
    sock = socket.create_connection(("127.0.0.1", one.host.replicas[0].port))
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-data-parallel-rank: {rank}\r\ncontent-length: {len(body)}\r\n"
    )
    sock.sendall(head.encode() + b"\r\n" + body)
    return sock


def test_the_events_of_each_rank_come_from_its_own_port() -> None:
    zmq = pytest.importorskip("zmq", reason="pyzmq is not installed")
    for port in range(23_000, 30_000, 50):
        try:
            one = Emulated(CLUSTER, speed=100.0, events="tcp://127.0.0.1", events_port=port)
            break
        except Exception:
            continue
    spec = read_members({"a": {"url": one.url(), "models": ["toy"], "dp": 2, "events": f"tcp://127.0.0.1:{port}"}}, "")
    heard = []
    for each in spec.values():
        with zmq.Context.instance().socket(zmq.DEALER) as asking:  # replays lie behind the ports of the events
            asking.linger, asking.rcvtimeo = 0, 20_000
            ask(one, each.rank, prompt=f"{each.rank} " + "word " * 40)
            assert each.rank is not None and each.events is not None
            asking.connect(with_rank(f"tcp://127.0.0.1:{port + 2}", each.rank))
            asking.send_multipart([b"", (0).to_bytes(8, "big")])
            _, topic, _, payload = asking.recv_multipart()
            heard.append((topic, msgspec.msgpack.decode(payload)[2]))
    one.stop()
    assert heard == [(b"kv@instance-0", 0), (b"kv@instance-0", 1)]
