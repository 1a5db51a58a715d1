"""Engines with invalid answers: clients receive a correct answer or an error, and no state remains."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time

import pytest

uvloop = pytest.importorskip("uvloop", reason="the extra `gateway` is not installed")

from rough import (  # noqa: E402
    ANSWER,
    BODY,
    STREAM,
    WHOLE_STREAM,
    RoughEngine,
    connect,
    http_post,
    read_all,
    reset,
    says,
    send,
)


@pytest.fixture
def before(live):
    """Return a gateway with one rough engine."""
    engines = []

    def start(act, **more):
        engines.append(RoughEngine(act))
        more = {"retries": 0, "health": {"failures": 1000}, **more}
        return live(0, backends={"r": engines[-1].url}, new_loop=uvloop.new_event_loop, **more), engines[-1]

    yield start
    for engine in engines:
        engine.close()


def ask(gateway, stream=False, timeout=300):
    """Return status and body as a strict client reads them, or None if the framing broke."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=timeout)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps({**BODY, "stream": stream}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (http.client.HTTPException, ConnectionError):
        return None
    finally:
        connection.close()


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
WRONG = {
    "no HTTP": b"+PONG\r\n\r\n",
    "HTTP/0.9": b'{"choices": []}',
    "a status that is none": b"HTTP/1.1 abc OK\r\ncontent-length: 0\r\n\r\n",
    "a field without a colon": HEAD + b"nothing\r\ncontent-length: 2\r\n\r\n{}",
    "a length and chunks": HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "two lengths": HEAD + b"content-length: 2\r\ncontent-length: 20\r\n\r\n{}",
    "a length that is none": HEAD + b"content-length: many\r\n\r\n{}",
    "a coding that is unknown": HEAD + b"transfer-encoding: chunkedd\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "a coding that was not asked for": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "a zero byte in a value": HEAD + b"x: a\0b\r\ncontent-length: 2\r\n\r\n{}",
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
    "one field without end": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
    "only heads of what is to come": b"HTTP/1.1 100 Continue\r\n\r\n" * 5_000,
    "another protocol from here on": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "an answer more than was asked": ANSWER + ANSWER,
    "more than its length": ANSWER + b"and so on",
    "a wrong chunk from the beginning": HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_invalid_answer_gives_502(before, wrong, caplog):
    gateway, _ = before(says(WRONG[wrong]))
    status, body = ask(gateway)
    assert status == 502, body
    assert json.loads(body)["error"]["message"].startswith("r: ")
    gateway.until(gateway.idle)
    assert not gateway.app.fleet.backends[0].free  # the connection is not reused
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("status", [b"418 I am a teapot", b"429 Slow down", b"503 Busy for now", b"201 Made"])
def test_a_relayed_status_keeps_its_phrase_and_says_when_to_try_again(before, status):
    gateway, engine = before(says(b"HTTP/1.1 " + status + b"\r\ncontent-length: 2\r\n\r\n{}"))
    answer = send(gateway, http_post(fields=b"connection: close\r\n"))
    assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert answer.count(b"retry-after: 1\r\n") == (status[:3] in (b"429", b"503"))
    engine.act = says(b"HTTP/1.1 503 Busy\r\nretry-after: 20\r\ncontent-length: 2\r\n\r\n{}")
    answer = send(gateway, http_post(fields=b"connection: close\r\n"))
    assert answer.count(b"retry-after: 20\r\n") == answer.count(b"retry-after") == 1
    gateway.until(gateway.idle)


@pytest.mark.parametrize("storm", [1, 3, 200])
@pytest.mark.parametrize("pieces", [1, 7])
def test_informational_heads_are_not_the_answer(before, storm, pieces):
    data = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * storm + ANSWER

    def act(sock, request):
        size = len(data) // pieces + 1
        for start in range(0, len(data), size):
            sock.sendall(data[start : start + size])
            time.sleep(0.002)  # so that most pieces arrive alone

    gateway, _ = before(act)
    assert ask(gateway) == (200, b'{"choices": null}')
    gateway.until(gateway.idle)


def test_an_informational_head_says_nothing_about_the_framing_of_the_answer(before):
    gateway, _ = before(says(b"HTTP/1.1 103 Early Hints\r\ntransfer-encoding: chunked\r\n\r\n" + ANSWER))
    assert ask(gateway, timeout=20) == (200, b'{"choices": null}')
    gateway.until(gateway.idle)


@pytest.mark.parametrize("then", ["reset", "close"])
def test_an_answer_cut_off_at_any_byte_never_counts_as_complete(before, then):
    cut = [0]
    gateway, _ = before(lambda sock, request: says(ANSWER[: cut[0]], then)(sock, request))
    for at in range(0, len(ANSWER), 3):
        cut[0] = at
        answer = ask(gateway)
        assert answer is not None and answer[0] == 502, (at, answer)  # the gateway holds the answer until its end
    cut[0] = len(ANSWER)
    assert ask(gateway) == (200, b'{"choices": null}')
    gateway.until(gateway.idle)


@pytest.mark.parametrize("then", ["reset", "close"])
def test_a_stream_cut_off_at_any_byte_ends_with_an_error(before, then):
    cut = [0]
    gateway, _ = before(lambda sock, request: says(WHOLE_STREAM[: cut[0]], then)(sock, request))
    head = STREAM.index(b"\r\n\r\n") + 4
    ends = {match.end() for match in re.finditer(rb"\n\n\r\n", WHOLE_STREAM)}  # of chunks
    for at in [*range(0, head, 9), *range(head, len(WHOLE_STREAM))]:
        cut[0] = at
        answer = ask(gateway, stream=True)
        assert answer is not None
        status, body = answer
        if status == 502:  # nothing has reached the client, because the only piece ends within a chunk
            assert at not in ends
            continue
        events = [line for line in body.split(b"\n\n") if line]
        assert json.loads(events[-1].removeprefix(b"data: "))["error"]["code"] == "upstream_lost", (at, body)
        for event in events[:-1]:
            assert event == b"data: [DONE]" or json.loads(event.removeprefix(b"data: "))["choices"]
    cut[0] = len(WHOLE_STREAM)
    answer = ask(gateway, stream=True)
    assert answer is not None and answer[1].endswith(b"data: [DONE]\n\n")
    gateway.until(gateway.idle)


def test_a_broken_stream_with_a_length_gets_no_error_event(before):
    data = b'data: {"choices":[]}\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 500\r\n\r\n"
    gateway, _ = before(says(head + data, "close"))
    answers = send(gateway, http_post({**BODY, "stream": True}))
    assert answers.endswith(data)
    gateway.until(gateway.idle)


def test_an_answer_without_a_length_ends_with_its_connection(before):
    gateway, engine = before(says(b'HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{"choices": []}', "close"))
    assert ask(gateway) == (200, b'{"choices": []}')
    assert ask(gateway) == (200, b'{"choices": []}')
    assert engine.connections == 2
    gateway.until(gateway.idle)


def test_a_wrong_chunk_breaks_a_stream(before):
    forwarded = threading.Event()

    def act(sock, request):
        sock.sendall(STREAM)
        forwarded.wait()
        sock.sendall(b"zz\r\nxx\r\n")

    gateway, _ = before(act)
    with connect(gateway) as sock:
        sock.sendall(http_post({**BODY, "stream": True}, b"connection: close\r\n"))
        answer = sock.recv(65536)
        forwarded.set()
        answer += read_all(sock)
    assert answer.count(b'"delta"') == 3 and b"zz" not in answer
    assert b"invalid HTTP response" in answer and answer.endswith(b"0\r\n\r\n")
    gateway.until(gateway.idle)


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200", STREAM, STREAM + b"ffff\r\nda"])
def test_an_engine_that_stops_within_its_answer_is_abandoned(before, data):
    gateway, _ = before(says(data), timeouts={"first_byte": "300ms", "silence": "300ms"})
    answer = ask(gateway, stream=True)
    assert answer is not None
    if data == STREAM:
        assert b"silent for too long" in answer[1]
    else:  # nothing has reached the client, because the only piece ends within a chunk
        assert answer[0] == 502
    gateway.until(gateway.idle)
    gateway.until(lambda: gateway.app.fleet.backends[0].opened == 0)


def test_an_endless_chunk_is_forwarded_until_the_deadline(before):
    def act(sock, request):
        sock.sendall(STREAM + b"fffffff\r\n" + b"x" * 100_000)  # too long to be held
        while True:
            sock.sendall(b"x" * 1000)
            time.sleep(0.005)  # more would only fill buffers

    gateway, _ = before(act)
    with connect(gateway) as sock:
        sock.sendall(http_post({**BODY, "stream": True}, b"x-headway-deadline: 2s\r\n"))
        data = read_all(sock)
    assert data.startswith(b"HTTP/1.1 200") and data.endswith(b"x" * 1000)
    gateway.until(gateway.idle)
    gateway.until(lambda: gateway.app.fleet.backends[0].opened == 0)


def test_an_engine_that_reads_slowly_does_not_delay_other_requests(live):
    let_go = threading.Event()

    def wait(sock, head):
        let_go.wait(60)

    slow = RoughEngine(says(ANSWER), wait)
    gateway = live(1, new_loop=uvloop.new_event_loop, policies={"routing": "round-robin"})
    quick = {"url": f"http://127.0.0.1:{gateway.engines[0].port}"}
    both = live(0, backends={"a": slow.url, "b": quick}, policies={"routing": "round-robin"})
    large = http_post({**BODY, "x": "y" * 3_000_000}, b"connection: close\r\n")
    with connect(both) as sock:
        sock.sendall(large)
        both.until(lambda: both.app.plane.views[0].inflight == 1)
        for _ in range(5):
            answer = send(both, http_post(fields=b"connection: close\r\nx-headway-deadline: 20s\r\n"))
            if b"x-headway-target: b" in answer:
                break
        assert b"x-headway-target: b" in answer
        let_go.set()
        assert read_all(sock).endswith(b'{"choices": null}')
    both.until(both.idle)
    slow.close()


def test_connections_to_an_engine_are_reused(before):
    gateway, engine = before(says(ANSWER))
    for _ in range(20):
        assert ask(gateway) == (200, b'{"choices": null}')
    assert engine.connections == 1
    gateway.until(lambda: len(gateway.app.fleet.backends[0].free) == 1)


def test_connections_are_reused_after_streams(before):
    gateway, engine = before(says(WHOLE_STREAM))
    for _ in range(5):
        answer = ask(gateway, stream=True)
        assert answer is not None and answer[1].endswith(b"[DONE]\n\n")
    assert engine.connections == 1


def test_no_request_follows_one_whose_body_the_engine_has_not_read(live):
    let_go = threading.Event()

    def answer_early(sock, head):
        sock.sendall(ANSWER)
        let_go.wait()

    engine = RoughEngine(says(ANSWER), answer_early)
    gateway = live(0, backends={"r": engine.url}, new_loop=uvloop.new_event_loop)
    large = {**BODY, "messages": [{"role": "user", "content": "x" * (16 << 20)}]}
    assert send(gateway, http_post(large, b"connection: close\r\n")).endswith(b'{"choices": null}')
    assert not gateway.app.fleet.backends[0].free  # this connection would never bring the next request
    let_go.set()
    engine.close()
    gateway.until(gateway.idle)


def test_unrequested_data_of_an_engine_ends_its_connection(before):
    gateway, engine = before(says(ANSWER))
    ask(gateway)
    backend = gateway.app.fleet.backends[0]
    gateway.until(lambda: len(backend.free) == 1)
    engine.act = says(ANSWER)
    sock_count = engine.connections

    answered = threading.Event()

    def act(sock, request):
        sock.sendall(ANSWER)
        answered.wait()
        sock.sendall(ANSWER)  # an unrequested answer

    engine.act = act
    assert ask(gateway) == (200, b'{"choices": null}')
    answered.set()
    gateway.until(lambda: not backend.free and backend.opened == 0)
    engine.act = says(ANSWER)
    assert ask(gateway) == (200, b'{"choices": null}')
    assert engine.connections == sock_count + 1


def test_an_engine_that_passes_checks_and_fails_requests_is_ejected(live):
    gateway = live(
        2,
        new_loop=uvloop.new_event_loop,
        policies={"routing": "round-robin"},
        health={"failures": 2, "eject": "10m"},
    )
    gateway.engines[0].mode = "reset"  # and /health says 200
    for _ in range(10):
        status, _ = ask(gateway)
        assert status == 200
    assert len(gateway.engines[0].bodies) == 2
    gateway.until(gateway.idle)


def test_every_request_has_an_answer_under_many_faults(live):
    gateway = live(
        4,
        new_loop=uvloop.new_event_loop,
        policies={"routing": "round-robin"},
        health={"failures": 3, "eject": "50ms"},
        timeouts={"first_byte": "500ms", "silence": "500ms"},
        patience="1s",
    )
    modes = ["ok", "error", "busy", "reset", "die", "garbage", "hang"]
    answers: list[object] = []
    over = threading.Event()

    def weather():
        turn = 0
        while not over.is_set():
            turn += 1
            for place, engine in enumerate(gateway.engines):
                engine.mode = modes[(turn + place * 2) % len(modes)] if place else "ok"
            time.sleep(0.02)  # a few requests meet the same modes

    def client(number):
        for turn in range(15):
            answers.append(ask(gateway, stream=(number + turn) % 2 == 0, timeout=300))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(12)]
    changing = threading.Thread(target=weather)
    changing.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    over.set()
    changing.join()
    assert len(answers) == 12 * 15
    good = sum(answer is not None and answer[0] == 200 for answer in answers)
    assert good > 60
    for engine in gateway.engines:
        engine.mode = "ok"
    gateway.until(gateway.idle)
    gateway.until(lambda: not gateway.app.reception.clients)


def test_a_killed_engine_ends_all_its_streams(live):
    gateway = live(1, new_loop=uvloop.new_event_loop, retries=0)
    gateway.engines[0].tokens, gateway.engines[0].pause = 1000, 0.01
    socks = [connect(gateway) for _ in range(30)]
    for sock in socks:
        sock.sendall(http_post({**BODY, "stream": True}, b"connection: close\r\n"))
    for sock in socks:
        assert sock.recv(1000).startswith(b"HTTP/1.1 200")
    gateway.engines[0].mode = "die"
    ends = [read_all(sock) for sock in socks]
    assert all(end for end in ends)
    for sock in socks:
        reset(sock)
    gateway.until(gateway.idle)
