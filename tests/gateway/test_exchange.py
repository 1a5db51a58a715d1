"""The gateway as clients see it, over real sockets."""

from __future__ import annotations

import json
import re
import socket
import struct
from pathlib import Path

import pytest
from msgspec.structs import replace
from openai_client import openai, openai_client

import headway

SOURCES = Path(headway.__file__).parent
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello there"}]}


def client(live, **more):
    return openai_client(live.url, **more)


def post(live, body, path="/v1/chat/completions", fields=""):
    """Send raw bytes. Return the answer up to the end of the connection."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", live.port), timeout=300) as sock:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(data)}\r\n{fields}\r\n"
        sock.sendall(head.encode() + data)
        return read_all(sock)


def read_all(sock):
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


def test_an_answer_is_forwarded_unchanged(live):
    gateway = live()
    answer = client(gateway).chat.completions.with_raw_response.create(**BODY)
    assert answer.parse().choices[0].message.content == "hello"
    assert answer.headers["x-headway-target"] in ("e0", "e1")
    assert answer.headers["x-engine"] == answer.headers["x-headway-target"]
    gateway.until(gateway.idle)
    view = gateway.app.plane.views[int(answer.headers["x-headway-target"][1:])]
    assert (view.completed, view.output_tokens) == (1, 7)


def test_the_body_goes_to_the_engine_byte_for_byte(live):
    gateway = live(1)
    data = b'{ "model":"m",  "messages":[{"role":"user","content":"\\u00e9"}], "tools":[{"type":"x"}],"logprobs":true }'
    answer = post(gateway, data, fields="x-anything: at all\r\nauthorization: Bearer sk-mine\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert gateway.engines[0].bodies == [data]
    fields = gateway.engines[0].fields[0]
    assert (fields[b"x-anything"], fields[b"authorization"]) == (b"at all", b"Bearer sk-mine")
    assert b"connection" not in fields


def test_a_stream_comes_token_by_token(live):
    gateway = live(1)
    gateway.engines[0].pause = 0.01
    pieces = [part.choices[0].delta.content for part in client(gateway).chat.completions.create(**BODY, stream=True)]
    assert pieces == [f"t{number} " for number in range(5)]
    gateway.until(gateway.idle)
    view = gateway.app.plane.views[0]
    assert (view.completed, view.output_tokens) == (1, 5)


def test_a_stream_is_forwarded_byte_for_byte(live):
    gateway = live(1)
    answer = post(gateway, {**BODY, "stream": True})
    body = answer.partition(b"\r\n\r\n")[2]
    assert body.count(b"data: {") == 5
    assert body.endswith(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def test_completions_embeddings_and_models_are_served(live):
    gateway = live(1)
    assert post(gateway, {"model": "m", "prompt": "once"}, "/v1/completions").startswith(b"HTTP/1.1 200")
    assert post(gateway, {"model": "m", "input": ["a", "b"]}, "/v1/embeddings").startswith(b"HTTP/1.1 200")
    named = live(1, backends={"x": {"url": "http://127.0.0.1:9", "models": ["big", "small"]}})
    assert [model.id for model in client(named).models.list()] == ["big", "small"]


def test_a_model_without_an_engine_is_not_found(live):
    gateway = live(1, backends={"x": {"url": "http://127.0.0.1:9", "models": ["big"]}})
    with pytest.raises(openai.NotFoundError, match="is not served"):
        client(gateway).chat.completions.create(**BODY)
    gateway.until(gateway.idle)


def test_reasons_that_reach_clients_have_no_terms_of_the_simulator():
    """Every reason of a built-in policy or of the control plane, except the default that the gateway replaces."""
    reasons = [
        text
        for folder in ("control", "policies", "gateway")
        for file in (SOURCES / folder).rglob("*.py")
        for text in re.findall(r'"((?:404|429|503): [^"]*)"', file.read_text())
    ]
    assert len(reasons) > 10
    assert [text for text in reasons if re.search("instance|simulat", text)] == [
        "503: no instance came up within {within}"
    ]


def test_unknown_model_names_are_not_stored(live):
    gateway = live(1)
    for name, status in (("m" * 1024, 200), ("m" * 1025, 400), ("m" * 5_000_000, 400)):
        body = json.dumps({"model": name, "messages": [{"role": "user", "content": "x"}]}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=300) as sock:
            sock.sendall(head % len(body) + body)
            answer = sock.recv(65536)
        assert answer[9:12] == b"%d" % status and (status == 200 or len(answer) < 1000)
    assert all(len(entry.request.model) <= 1024 for entry in gateway.app.decisions.every)


def test_a_client_that_disconnects_cancels_its_request(live):
    gateway = live(1)
    gateway.engines[0].pause, gateway.engines[0].tokens = 0.02, 10_000
    stream = client(gateway).chat.completions.create(**BODY, stream=True)
    next(iter(stream))
    stream.close()
    gateway.until(lambda: gateway.engines[0].cancelled == 1)
    gateway.until(gateway.idle)


@pytest.mark.parametrize("mode", ["reset", "garbage", "busy"])
def test_another_engine_is_tried_until_the_client_has_received_a_byte(live, mode):
    gateway = live(2, policies={"routing": "round-robin"})
    gateway.engines[0].mode = mode
    answer = client(gateway).chat.completions.with_raw_response.create(**BODY)
    assert answer.headers["x-headway-target"] == "e1"
    assert len(gateway.engines[0].bodies) == 1
    gateway.until(gateway.idle)


@pytest.mark.parametrize("mode", ["reset", "garbage", "busy"])
def test_no_engine_is_asked_twice_while_another_one_is_left(live, mode):
    gateway = live(3, policies={"routing": "session-affinity"}, health={"failures": 1000, "failed_share": 1})
    sound = gateway.engines[2]
    for engine in gateway.engines[:2]:
        engine.mode = mode
    for number in range(12):  # each session has its own order of engines
        body = {**BODY, "user": f"user {number}"}
        answer = client(gateway).chat.completions.with_raw_response.create(**body)
        assert answer.headers["x-headway-target"] == sound.name
    gateway.until(gateway.idle)


def test_if_all_engines_have_failed_a_request_the_last_one_is_not_asked_twice_in_a_row(live):
    gateway = live(2, policies={"routing": "round-robin"}, retries=3, health={"failures": 1000, "failed_share": 1})
    for engine in gateway.engines:
        engine.mode = "reset"
    with pytest.raises(openai.InternalServerError, match="the connection was lost"):
        client(gateway).chat.completions.create(**BODY)
    assert [len(engine.bodies) for engine in gateway.engines] == [2, 2]
    gateway.until(gateway.idle)


def test_an_error_of_the_engine_is_forwarded(live):
    gateway = live(1)
    gateway.engines[0].mode = "error"
    with pytest.raises(openai.InternalServerError, match="no"):
        client(gateway).chat.completions.create(**BODY)
    gateway.until(gateway.idle)


def test_the_client_receives_an_answer_if_all_engines_are_lost(live):
    gateway = live(2)
    for engine in gateway.engines:
        engine.mode = "reset"
    with pytest.raises(openai.InternalServerError, match="the connection was lost"):
        client(gateway).chat.completions.create(**BODY)
    gateway.until(gateway.idle)


def test_a_broken_stream_ends_with_an_error_event(live):
    gateway = live(1)
    gateway.engines[0].mode = "die"
    with pytest.raises(openai.APIError, match="the connection was lost"):
        list(client(gateway).chat.completions.create(**BODY, stream=True))
    gateway.until(gateway.idle)


def test_an_engine_that_hangs_is_abandoned(live):
    gateway = live(1, timeouts={"first_byte": "100ms"}, retries=0)
    gateway.engines[0].mode = "hang"
    with pytest.raises(openai.InternalServerError, match="no answer in time"):
        client(gateway).chat.completions.create(**BODY)
    gateway.until(lambda: gateway.engines[0].cancelled == 1)
    gateway.until(gateway.idle)


def test_an_engine_that_fails_several_times_in_a_row_is_ejected(live):
    gateway = live(2, policies={"routing": "round-robin"}, health={"failures": 2, "eject": "10m"})
    gateway.engines[0].mode = "reset"
    for _ in range(6):
        client(gateway).chat.completions.create(**BODY)
    assert len(gateway.engines[0].bodies) == 2
    gateway.until(gateway.idle)


def test_an_ejected_engine_is_tried_again(live):
    gateway = live(1, health={"failures": 1, "eject": "50ms"}, retries=0)
    gateway.engines[0].mode = "reset"
    with pytest.raises(openai.InternalServerError):
        client(gateway).chat.completions.create(**BODY)
    gateway.engines[0].mode = "ok"
    gateway.until(lambda: gateway.app.plane.views[0].state == "ready")
    assert client(gateway).chat.completions.create(**BODY).choices[0].message.content == "hello"
    gateway.until(gateway.idle)


def test_a_prompt_is_routed_to_the_engine_that_has_its_prefix(live):
    gateway = live(3, policies={"routing": "prefix-overlap"})
    texts = [f"{number} " * 600 for number in range(6)]
    for _ in range(2):
        for text in texts:
            client(gateway).chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    homes = [{json.loads(body)["messages"][0]["content"] for body in engine.bodies} for engine in gateway.engines]
    assert sum(map(len, homes)) == 6
    longer = [
        {"role": "user", "content": texts[4]},
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": "go on"},
    ]
    answer = client(gateway).chat.completions.with_raw_response.create(model="m", messages=longer)
    assert texts[4] in homes[int(answer.headers["x-headway-target"][1:])]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n{nope", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n", 404),
        (b"GET /v1/chat/completions HTTP/1.1\r\nhost: x\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % number for number in range(200)) + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", 400),
    ],
)
def test_an_invalid_request_is_reported(live, data, status):
    gateway = live(1)
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=300) as sock:
        sock.sendall(data)
        answer = sock.recv(65536)
    assert answer.startswith(b"HTTP/1.1 %d" % status), answer
    assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])
    assert gateway.engines[0].bodies == []


def test_a_head_without_an_end_times_out(live):
    gateway = live(1, limits={"head": "300ms"})
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=300) as sock:
        sock.sendall(b"POST /v1/chat")
        assert read_all(sock).startswith(b"HTTP/1.1 408")
    gateway.until(lambda: not gateway.app.reception.clients)


def test_requests_on_one_connection_are_answered_in_order(live):
    gateway = live(1)
    body = json.dumps(BODY).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    last = request.replace(b"host: x", b"host: x\r\nconnection: close")
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=300) as sock:
        sock.sendall(request * 9 + last)
        data = read_all(sock)
    numbers = [int(line.partition(b": ")[2]) for line in data.split(b"\r\n") if line.startswith(b"x-headway-request")]
    assert numbers == list(range(10))


def test_a_slow_client_does_not_fill_the_memory(live):
    gateway = live(1)
    gateway.engines[0].tokens, gateway.engines[0].padding = 100_000, "x" * 10_000
    body = json.dumps({**BODY, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=300) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        gateway.until(lambda: any(client.paused for client in gateway.app.reception.clients))
        (waiting,) = gateway.app.reception.clients
        assert waiting.transport.get_write_buffer_size() < 2_000_000
        assert client(gateway).chat.completions.create(**BODY).choices[0].message.content == "hello"  # others go on
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gateway.until(gateway.idle)


def test_a_connection_paused_by_a_slow_client_serves_the_next_request(live):
    gateway = live(1, timeouts={"first_byte": "5s"}, retries=0)
    gateway.app.reception.limits = replace(gateway.app.reception.limits, unsent_bytes=0)

    async def long(body):
        return {"more": "x" * 40_000}

    gateway.engines[0].before = long
    body = json.dumps(BODY).encode()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.settimeout(30)
        sock.connect(("127.0.0.1", gateway.port))
        gateway.until(lambda: len(gateway.app.reception.clients) == 1)
        (waiting,) = gateway.app.reception.clients
        waiting.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        gateway.until(lambda: waiting.paused)
        gateway.until(gateway.idle)  # the engine has done its part
        assert client(gateway).chat.completions.create(**BODY).choices[0].message.content == "hello"
    assert gateway.app.fleet.backends[0].opened == 1


def test_a_rejected_request_receives_a_reason_and_retry_after(live):
    gateway = live(1, policies={"admission": {"name": "token-bucket", "rate": 0.001, "burst": 1}})
    client(gateway).chat.completions.create(**BODY)
    answer = post(gateway, BODY)
    assert answer.startswith((b"HTTP/1.1 429", b"HTTP/1.1 503"))
    assert b"retry-after:" in answer
    gateway.until(gateway.idle)


def test_a_deadline_ends_a_request_that_is_not_answered(live):
    gateway = live(1)
    gateway.engines[0].mode = "hang"
    with pytest.raises(openai.InternalServerError, match="the deadline has passed") as caught:
        client(gateway).chat.completions.create(**BODY, extra_headers={"x-headway-deadline": "50ms"})
    assert caught.value.status_code == 504
    gateway.until(lambda: gateway.engines[0].cancelled == 1)
    gateway.until(gateway.idle)


def test_a_deadline_ends_a_stream(live):
    gateway = live(1, deadlines={"interactive": "300ms"})
    gateway.engines[0].pause = 0.1
    gateway.engines[0].tokens = 100
    with pytest.raises(openai.APIError, match="the deadline has passed"):
        list(
            client(gateway).chat.completions.create(
                **BODY, stream=True, extra_headers={"x-headway-class": "interactive"}
            )
        )
    gateway.until(lambda: gateway.engines[0].cancelled == 1)
    gateway.until(gateway.idle)


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan", "200d", "1e9"])
def test_a_wrong_deadline_is_reported(live, text):
    with pytest.raises(openai.BadRequestError, match="x-headway-deadline") as caught:
        client(live(1)).chat.completions.create(**BODY, extra_headers={"x-headway-deadline": text})
    assert "simulat" not in str(caught.value)
