"""Hostile and broken clients: each receives an answer, others are not affected, and no state remains."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import socket
import time

import pytest

uvloop = pytest.importorskip("uvloop", reason="the extra `gateway` is not installed")

from rough import ANSWER, BODY, RoughEngine, connect, http_post, read_all, reset, says, send  # noqa: E402

from headway.http.client_limits import Limits, network_of  # noqa: E402

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
DATA = json.dumps(BODY).encode()
SIZE = b"content-length: %d\r\n" % len(DATA)
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNK = b"%x\r\n%b\r\n0\r\n\r\n" % (len(DATA), DATA)
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(params=["asyncio", "uvloop"])
def hostile(live, request):
    """Return a function that starts a gateway on one of both event loops."""
    new_loop = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[request.param]
    return lambda engines=1, **more: live(engines, new_loop=new_loop, **more)


def statuses(answers: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


def closing(data: bytes) -> bytes:
    return data.replace(b"host: x", b"host: x\r\nconnection: close", 1)


SHAPES = {
    "a length and chunks": POST + SIZE + CHUNKED + b"\r\n" + CHUNK,
    "chunks and a length": POST + CHUNKED + SIZE + b"\r\n" + CHUNK,
    "two lengths": POST + SIZE + b"content-length: 3\r\n\r\n" + DATA,
    "the same length twice": POST + SIZE + SIZE + b"\r\n" + DATA,
    "two lengths in one field": POST + b"content-length: 3, 3\r\n\r\nabc",
    "a length with a sign": POST + b"content-length: +%d\r\n\r\n" % len(DATA) + DATA,
    "a length below nothing": POST + b"content-length: -1\r\n\r\n" + DATA,
    "a length in hex": POST + b"content-length: 0x10\r\n\r\n" + DATA,
    "a length of a thousand digits": POST + b"content-length: " + b"9" * 1000 + b"\r\n\r\n" + DATA,
    "an encoding nobody knows": POST + b"transfer-encoding: gzip\r\n\r\n" + CHUNK,
    "no host": b"POST /v1/chat/completions HTTP/1.1\r\n" + SIZE + b"\r\n" + DATA,
    "two hosts": POST + b"Host: y\r\n" + SIZE + b"\r\n" + DATA,
    "chunks in HTTP/1.0": POST.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n" + CHUNK,
    "chunks that are not the last encoding": POST + b"transfer-encoding: chunked, gzip\r\n\r\n" + CHUNK,
    "chunks by half a name": POST + b"transfer-encoding: xchunked\r\n\r\n" + CHUNK,
    "a space before the colon": POST + b"transfer-encoding : chunked\r\n\r\n" + CHUNK,
    "a folded field": POST + b"x-a: b\r\n content-length: 5\r\n" + b"\r\n" + DATA,
    "a bare line feed": (POST + SIZE + b"\r\n").replace(b"\r\n", b"\n") + DATA,
    "a bare carriage return": POST + b"x-a: b\rcontent-length: 3\r\n\r\nabc",
    "a zero byte in a value": POST + b"x-a: b\0c\r\n" + SIZE + b"\r\n" + DATA,
    "a field without a colon": POST + b"nothing\r\n" + SIZE + b"\r\n" + DATA,
    "a chunk size that is none": POST + CHUNKED + b"\r\nzz\r\nabc\r\n0\r\n\r\n",
    "a chunk size below nothing": POST + CHUNKED + b"\r\n-5\r\nabcde\r\n0\r\n\r\n",
    "a chunk size beyond all": POST + CHUNKED + b"\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than it says": POST + CHUNKED + b"\r\n3\r\nabcdef\r\n0\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
    "HTTP/2 by force": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a tunnel": b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    "spaces in the target": b"POST /v1/chat/completions /x HTTP/1.1\r\nhost: x\r\n" + SIZE + b"\r\n" + DATA,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_ambiguous_request_is_rejected(hostile, shape):
    gateway = hostile()
    answers = send(gateway, SHAPES[shape] + SMUGGLED)
    assert statuses(answers) == [400], answers
    assert gateway.engines[0].bodies == []
    gateway.until(lambda: not gateway.app.reception.clients)


@pytest.mark.parametrize("line", [b"POST /v1/chat/completions", b"POST /v1/chat/completions HTTP/2.0"])
def test_a_version_that_the_gateway_does_not_speak_is_rejected(hostile, line):
    gateway = hostile()
    assert statuses(send(gateway, line + b"\r\nhost: x\r\n" + SIZE + b"\r\n" + DATA)) == [505]
    assert gateway.engines[0].bodies == []


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"gzip\r\ntransfer-encoding: chunked", b"identity, chunked"])
def test_a_transfer_coding_other_than_chunked_is_not_implemented(hostile, coding):
    gateway = hostile()
    answers = send(gateway, POST + b"transfer-encoding: %b\r\n\r\n" % coding + CHUNK + SMUGGLED)
    assert statuses(answers) == [501], answers
    assert gateway.engines[0].bodies == []


def test_a_body_in_chunks_goes_to_the_engine_with_its_length(hostile):
    gateway = hostile()
    data = b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in DATA) + b"0\r\nx-sneaked: in\r\nhost: evil\r\n\r\n"
    assert statuses(send(gateway, closing(POST + CHUNKED + b"\r\n" + data))) == [200]
    assert gateway.engines[0].bodies == [DATA]
    fields = gateway.engines[0].fields[0]
    assert fields[b"content-length"] == b"%d" % len(DATA)
    assert not {b"x-sneaked", b"transfer-encoding"} & set(fields)
    assert fields[b"host"] == b"127.0.0.1:%d" % gateway.engines[0].port


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (POST + CHUNKED + b"\r\n1;" + b"a" * 500_000, 431),
        (POST + CHUNKED + b"\r\n1\r\na\r\n0\r\nx: " + b"a" * 500_000, 431),
        (POST + b"x: " + b"a" * 500_000, 431),
        (POST + b"a: b\r\n" * 5_000, 431),
        (POST.replace(b" HTTP", b"?" + b"a" * 500_000 + b" HTTP"), 414),
        (POST + b"content-length: 2000000\r\n\r\n", 413),
        (POST + CHUNKED + b"\r\n" + b"40000\r\n%b\r\n" % (b"a" * 0x40000) * 8, 413),
    ],
)
def test_a_request_that_is_too_large_is_rejected_before_it_is_buffered(hostile, data, status):
    gateway = hostile(limits={"body_bytes": 1_000_000})
    with connect(gateway) as sock:
        for start in range(0, len(data), 16384):
            sock.sendall(data[start : start + 16384])
        assert statuses(read_all(sock)) == [status]
    gateway.until(lambda: not gateway.app.reception.clients)
    assert gateway.app.metrics.refusals == {status: 1}
    assert gateway.engines[0].bodies == []


@pytest.mark.parametrize(("before", "status"), [(b"?" + b"a" * 40_000, 414), (b"?" + b"a" * 32_000, 431)])
def test_a_url_that_arrives_in_one_piece_with_its_body_counts_towards_the_head(hostile, before, status):
    gateway = hostile()
    head = POST.replace(b" HTTP", before + b" HTTP") + b"x: " + b"a" * 1000 + b"\r\n"
    assert statuses(send(gateway, closing(head + SIZE + b"\r\n" + DATA))) == [status]
    assert gateway.engines[0].bodies == []


@pytest.mark.parametrize("begin", [b"", POST + SIZE + b"\r\n", POST + CHUNKED + b"\r\n"])
def test_a_client_that_sends_too_slowly_is_disconnected(hostile, begin):
    gateway = hostile(limits={"head": "400ms", "body": "400ms"})
    with connect(gateway) as sock:
        sock.sendall(begin)
        rest = iter(POST if not begin else b"1\r\na\r\n" * 1000)
        try:
            while gateway.app.reception.clients or not gateway.app.metrics.refusals:
                sock.sendall(bytes([next(rest)]))
                time.sleep(0.02)  # a byte at a time, each soon enough
        except ConnectionError:
            pass
        assert statuses(read_all(sock)) in ([408], [])
    assert gateway.app.metrics.refusals == {408: 1}
    assert gateway.engines[0].bodies == []


def test_a_silent_client_is_disconnected(hostile):
    gateway = hostile(limits={"head": "300ms", "idle": "300ms"})
    with connect(gateway) as silent, connect(gateway) as idle:
        idle.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert statuses(read_all(idle)) == [200]
        assert statuses(read_all(silent)) == [408]
    gateway.until(lambda: not gateway.app.reception.clients)


# --- several requests on one connection ------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_their_requests(hostile):
    gateway = hostile()
    gateway.engines[0].pause = 0.01
    stream = http_post({**BODY, "stream": True})
    health = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    wrong = http_post(b"{nope")
    answers = send(gateway, health + stream + health + wrong + stream + closing(http_post()))
    assert statuses(answers) == [200, 200, 200, 400, 200, 200]
    assert answers.count(b"[DONE]") == 2
    gateway.until(gateway.idle)


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/nowhere"])
def test_hundreds_of_rejected_requests_are_all_answered(hostile, path):
    gateway = hostile(policies={"admission": {"name": "token-bucket", "rate": 0.001, "burst": 1}})
    request = http_post(b'{"messages":[]}', path=path)
    answers = send(gateway, request * 1500 + closing(request))
    assert len(statuses(answers)) == 1501
    assert set(statuses(answers)[1:]) <= {404, 429, 503}
    gateway.until(gateway.idle)


def test_an_invalid_request_does_not_affect_the_one_before_it(hostile):
    gateway = hostile()
    gateway.engines[0].pause = 0.02
    answers = send(gateway, http_post({**BODY, "stream": True}) + b"GARBAGE\r\n\r\n")
    assert statuses(answers) == [200, 400]
    assert answers.count(b"data: {") == 5 and answers.count(b"[DONE]") == 1
    gateway.until(gateway.idle)


@pytest.mark.full
def test_a_client_that_sends_requests_and_reads_nothing_uses_little_memory(hostile):
    gateway = hostile()
    request = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"
    with connect(gateway) as sock:
        sock.setblocking(False)

        def full() -> bool:
            """Return whether the client's socket is full and the gateway has paused."""
            try:
                sock.send(request * 100)
            except BlockingIOError:
                return any(client.paused for client in list(gateway.app.reception.clients))
            return False

        gateway.until(full)
        (client,) = gateway.app.reception.clients
        assert client.transport.get_write_buffer_size() < 1_000_000
        assert len(client.waiting) < 10_000  # of what was read at once
        assert statuses(send(gateway, closing(http_post()))) == [200]  # others are served
        sock.setblocking(True)
        assert set(statuses(sock.recv(1_000_000))) == {200}
        reset(sock)
    gateway.until(lambda: not gateway.app.reception.clients)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_closes_its_sending_half_gets_its_answers(hostile, stream):
    gateway = hostile()
    gateway.engines[0].pause = 0.02
    with connect(gateway) as sock:
        sock.sendall(http_post({**BODY, "stream": stream}) * 2)
        sock.shutdown(socket.SHUT_WR)
        answers = read_all(sock)
    assert [status for status in statuses(answers) if status != 100] == [200, 200]
    assert answers.count(b"[DONE]") == 2 * stream
    gateway.until(gateway.idle)
    gateway.until(lambda: not gateway.app.reception.clients)


def test_a_client_that_closes_its_sending_half_without_a_request_is_disconnected(hostile):
    gateway = hostile()
    with connect(gateway) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""
    gateway.until(lambda: not gateway.app.reception.clients)


@pytest.mark.parametrize("begun", [POST, POST + SIZE + b"\r\n" + DATA[:-1], POST + CHUNKED + b"\r\n5\r\nab"])
@pytest.mark.parametrize("before", [b"", http_post({**BODY, "stream": True})])
def test_a_client_that_closes_its_sending_half_within_a_request_gets_an_error(hostile, before, begun):
    gateway = hostile()
    gateway.engines[0].pause = 0.02
    with connect(gateway) as sock:
        sock.sendall(before + begun)
        sock.shutdown(socket.SHUT_WR)
        answers = read_all(sock)
    assert [status for status in statuses(answers) if status != 100] == ([200, 400] if before else [400])
    assert answers.count(b"[DONE]") == bool(before) and b"connection: close" in answers
    gateway.until(lambda: not gateway.app.reception.clients)
    assert gateway.app.reception.held_bytes == 0


@pytest.mark.parametrize("mode", ["hang", "ok"])
def test_a_client_that_closes_its_connection_has_disconnected(hostile, mode):
    gateway = hostile()
    gateway.engines[0].mode, gateway.engines[0].pause, gateway.engines[0].tokens = mode, 0.01, 10**6
    with connect(gateway) as sock:
        sock.sendall(http_post({**BODY, "stream": mode == "ok"}))
        gateway.until(lambda: gateway.engines[0].under_way == 1)
    gateway.until(lambda: gateway.engines[0].cancelled == 1)
    gateway.until(gateway.idle)
    gateway.until(lambda: not gateway.app.reception.clients)


def test_clients_that_disconnect_at_any_moment_leave_no_state(hostile):
    gateway = hostile(2)
    for engine in gateway.engines:
        engine.pause = 0.003
    request = http_post({**BODY, "stream": True})
    for number in range(60):
        sock = connect(gateway)
        sock.sendall(request[: len(request) * (number % 6 + 1) // 6])
        time.sleep(0.0005 * (number % 9))  # other moments of the request
        reset(sock)
    gateway.until(gateway.idle)
    gateway.until(lambda: not gateway.app.reception.clients)
    gateway.until(lambda: sum(engine.under_way for engine in gateway.engines) == 0)
    assert statuses(send(gateway, closing(http_post()))) == [200]


def test_a_refused_client_that_sends_no_more_is_disconnected_at_once(hostile, monkeypatch):
    monkeypatch.setattr("headway.http.wire.LINGER_S", 1e6)
    gateway = hostile()
    with connect(gateway) as sock:
        sock.sendall(http_post() + POST)
        sock.shutdown(socket.SHUT_WR)
        assert statuses(read_all(sock))[-1] == 400
    gateway.until(lambda: not gateway.app.reception.clients)


# --- text that is not UTF-8 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (b"/v1/responses", b'{"model":"m","input":"a","conversation":{"id":"\xff"}}', 400),
        (b"/v1/messages", b'{"model":"m","messages":[{}],"metadata":{"user_id":"\xff"}}', 200),
        (b"/v1/rerank", b'{"model":"\xff"}', 400),
    ],
)
def test_a_field_that_is_not_utf_8_is_no_error_of_the_gateway(live, tmp_path, path, body, status):
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"ann: {{sha256: {hashlib.sha256(b'ann').hexdigest()}, concurrency: 1}}")
    gateway = live(1, routes=[{"path": "/v1/rerank"}], keys=str(keys))
    fields = b"content-type: application/json\r\nx-api-key: ann\r\n"
    for _ in range(2):  # the first one does not count forever
        assert statuses(send(gateway, closing(http_post(body, fields, path)))) == [status]
    gateway.until(gateway.idle)


# --- clients that do not read ----------------------------------------------------------------------------------------


@pytest.mark.full
def test_many_clients_that_do_not_read_use_little_memory_and_delay_no_other(hostile):
    gateway = hostile(2)
    for engine in gateway.engines:
        engine.tokens, engine.padding = 100_000, "x" * 10_000
    socks = [connect(gateway) for _ in range(20)]
    for sock in socks:
        sock.sendall(http_post({**BODY, "stream": True}))
    gateway.until(lambda: sum(client.paused for client in list(gateway.app.reception.clients)) == 20)
    held = [client.transport.get_write_buffer_size() for client in list(gateway.app.reception.clients)]
    assert max(held) < 1_000_000
    assert statuses(send(gateway, closing(http_post()))) == [200]
    for sock in socks:
        reset(sock)
    gateway.until(gateway.idle)


def test_a_client_that_reads_nothing_for_too_long_is_disconnected(hostile):
    gateway = hostile(limits={"unread": "300ms"})
    gateway.engines[0].tokens, gateway.engines[0].padding = 100_000, "x" * 10_000
    with connect(gateway) as sock:
        sock.sendall(http_post({**BODY, "stream": True}))
        gateway.until(lambda: gateway.engines[0].cancelled == 1)
        gateway.until(gateway.idle)
        gateway.until(lambda: not gateway.app.reception.clients)
    assert [end for group in gateway.app.metrics.groups.values() for end in group.ends] == [("failed", 200)]


def test_a_slow_client_receives_the_whole_answer(hostile):
    gateway = hostile(limits={"unread": "1s"})
    gateway.engines[0].tokens, gateway.engines[0].padding = 3000, "x" * 1000
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.settimeout(30)
        sock.connect(("127.0.0.1", gateway.port))
        sock.sendall(closing(http_post({**BODY, "stream": True})))
        data = b""
        while piece := sock.recv(200_000):
            data += piece
            time.sleep(0.01)  # slower than the engine
    assert data.count(b"data: {") == 3000
    assert data.endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
    gateway.until(gateway.idle)


def test_connections_above_the_limit_are_rejected_and_logged_once(hostile, caplog):
    gateway = hostile(limits={"connections": 2, "address_connections": 2})
    first, second = connect(gateway), connect(gateway)
    gateway.until(lambda: len(gateway.app.reception.clients) == 2)
    for _ in range(5):
        assert statuses(send(gateway, b"")) == [503]
        gateway.until(lambda: len(gateway.app.reception.clients) == 2)
    refused = [record.getMessage() for record in caplog.records if "refused a connection" in record.getMessage()]
    assert refused == ["refused a connection from 127.0.0.1: the gateway has too many connections"]
    first.close()
    gateway.until(lambda: len(gateway.app.reception.clients) == 1)
    assert statuses(send(gateway, closing(http_post()))) == [200]
    second.close()


def test_connections_of_one_address_are_limited(hostile):
    gateway = hostile(limits={"address_connections": 2})
    first, second = connect(gateway), connect(gateway)
    gateway.until(lambda: len(gateway.app.reception.clients) == 2)
    answer = send(gateway, b"")
    assert statuses(answer) == [429] and b"retry-after: 1" in answer and b"this client address" in answer
    with socket.create_connection(("127.0.0.1", gateway.port), source_address=("127.0.0.2", 0)) as other:
        other.sendall(closing(http_post()))
        assert statuses(read_all(other)) == [200]
    first.close()
    second.close()
    gateway.until(lambda: not gateway.app.reception.addresses)
    assert statuses(send(gateway, closing(http_post()))) == [200]


def test_one_address_may_have_a_quarter_of_the_connections_by_default():
    assert [Limits(connections=most).per_address for most in (100, 1000, 16_384)] == [256, 256, 4096]
    assert Limits(connections=1000, address_connections=1000).per_address == 1000


@pytest.mark.parametrize(
    ("peer", "other", "same"),
    [
        (("10.0.0.1", 5), ("10.0.0.1", 6), True),
        (("10.0.0.1", 5), ("10.0.0.2", 5), False),
        (("2001:db8::1", 5, 0, 0), ("2001:db8::ffff:2", 6, 0, 0), True),
        (("2001:db8::1", 5, 0, 0), ("2001:db8:0:1::1", 5, 0, 0), False),
        (("::ffff:10.0.0.1", 5, 0, 0), ("10.0.0.1", 6), True),
        (("fe80::1%eth0", 5, 0, 2), ("fe80::2%eth0", 5, 0, 2), True),
        (None, (), True),
    ],
)
def test_an_ipv6_network_counts_as_one_address(peer, other, same):
    assert (network_of(peer) == network_of(other)) == same


def test_the_bodies_of_all_clients_share_one_limit(hostile):
    gateway = hostile(limits={"held_bytes": 100_000})
    head = POST + b"content-length: 90000\r\n\r\n"
    with connect(gateway) as first:
        first.sendall(head + b" " * 80_000)
        gateway.until(lambda: gateway.app.reception.held_bytes == 80_000)
        answer = send(gateway, head + b" " * 80_000)
        assert statuses(answer) == [503] and b"retry-after: 1" in answer
        gateway.until(lambda: gateway.app.reception.held_bytes == 80_000)
        assert statuses(send(gateway, closing(http_post()))) == [200]  # there is room for a small one
        assert gateway.app.reception.held_bytes == 80_000
    gateway.until(lambda: gateway.app.reception.held_bytes == 0 and not gateway.app.reception.clients)


def test_answered_bodies_are_released_also_with_pipelining(hostile):
    gateway = hostile()
    with connect(gateway) as sock:
        sock.sendall(http_post() * 3 + SMUGGLED + POST + SIZE.replace(b"content", b"x") + b"\r\n")
        gateway.until(lambda: len(gateway.engines[0].bodies) == 3)
        gateway.until(gateway.idle)
        gateway.until(lambda: gateway.app.reception.held_bytes == 0)
    assert gateway.app.reception.held_bytes == 0


# --- a request cannot choose its destination -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start",
    [
        b"POST http://127.0.0.1:%d/v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n",
        b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n",
        b"POST //127.0.0.1:%d/v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n",
        b"POST /v1/chat/completions/../../@127.0.0.1:%d HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n",
    ],
)
def test_an_absolute_target_does_not_change_the_destination(hostile, start):
    gateway, elsewhere = hostile(), RoughEngine(says(ANSWER))
    port = int(elsewhere.url.rpartition(":")[2])
    answers = send(gateway, start % (port, port) + b"connection: close\r\n" + SIZE + b"\r\n" + DATA)
    assert len(statuses(answers)) == 1 and 400 <= statuses(answers)[0] < 500
    assert elsewhere.connections == 0 and gateway.engines[0].bodies == []
    elsewhere.close()


def test_no_header_changes_the_destination(hostile):
    gateway, elsewhere = hostile(), RoughEngine(says(ANSWER))
    place = elsewhere.url.removeprefix("http://")
    names = ("host", "x-forwarded-host", "x-forwarded-for", "forwarded", "x-original-url", "x-rewrite-url", "via")
    fields = "".join(f"{name}: {place}\r\n" for name in names).encode() + b"x-headway-target: elsewhere\r\n"
    keys = ("url", "base_url", "api_base", "endpoint", "target", "backend", "host", "proxy")
    body = {**BODY, "model": elsewhere.url, **dict.fromkeys(keys, elsewhere.url)}
    head = b"POST /v1/chat/completions?url=%b HTTP/1.1\r\nconnection: close\r\n%b" % (elsewhere.url.encode(), fields)
    data = json.dumps(body).encode()
    answers = send(gateway, head + b"content-length: %d\r\n\r\n" % len(data) + data)
    assert statuses(answers) == [200] and b"x-headway-target: e0" in answers
    assert elsewhere.connections == 0
    assert gateway.engines[0].fields[0][b"host"] == b"127.0.0.1:%d" % gateway.engines[0].port
    elsewhere.close()


# --- bodies ----------------------------------------------------------------------------------------------------------

DEEP = 200_000
BODIES = {
    "nothing": b"",
    "no object": b"[]",
    "a number": b"1",
    "null": b"null",
    "half a document": DATA[:-3],
    "two documents": DATA + DATA,
    "bytes that are no UTF-8": b'{"model":"\xff\xfe","messages":[]}',
    "bytes that are no UTF-8 in the prompt": b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "half a surrogate pair": b'{"model":"\\ud800","messages":[{"role":"user","content":"\\udfff"}],"user":"\\ud801"}',
    "brackets without end": b'{"model":"m","messages":' + b"[" * DEEP,
    "brackets in brackets": b'{"model":"m","messages":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "objects in objects": b'{"model":"m","x":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b',"prompt":"x"}',
    "a number beyond all": b'{"model":"m","prompt":"x","max_tokens":' + b"9" * 5000 + b"}",
    "a number below nothing": b'{"model":"m","prompt":"x","max_tokens":-9223372036854775808}',
    "a large number": b'{"model":"m","prompt":"x","max_tokens":9223372036854775807}',
    "not a number": b'{"model":"m","prompt":"x","max_tokens":NaN}',
    "a model that is a list": b'{"model":["m"],"messages":[]}',
    "a model of a megabyte": b'{"model":"' + b"m" * 1_000_000 + b'","messages":[]}',
    "messages that are none": b'{"model":"m","messages":"\\u0000\\u0001"}',
    "messages that are null": b'{"model":"m","messages":null}',
    "a stream that is a text": b'{"model":"m","messages":[],"stream":"yes"}',
    "a user that is a number": b'{"model":"m","messages":[],"user":7}',
    "keys twice": b'{"model":"m","model":"n","messages":[],"messages":[]}',
    "a name that ends lines": b'{"model":"m\\r\\nx-injected: 1","messages":[]}',
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings"])
def test_every_body_receives_an_answer(live, body, path):
    gateway = live(1, policies={"routing": "kv-aware"})
    gateway.engines[0].mode = "busy"  # which reads no body
    answers = send(gateway, closing(http_post(BODIES[body], path=path)))
    assert statuses(answers)[0] in (400, 503), answers[:500]
    assert b"x-injected" not in answers.partition(b"\r\n\r\n")[0]
    gateway.until(gateway.idle)


@pytest.mark.parametrize(
    "text",
    ["", " ", "1e400", "1e400s", "-0", "inf", "9" * 5000, "9" * 5000 + "s", "1.2.3", "1e-400s", "\xb2", "0x10", "١s"],
)
def test_every_deadline_header_receives_an_answer(live, text):
    gateway = live(1)
    answers = send(gateway, closing(http_post(fields=b"x-headway-deadline: " + text.encode("utf-8") + b"\r\n")))
    assert statuses(answers)[0] in (200, 400, 504), answers
    gateway.until(gateway.idle)


@pytest.mark.parametrize("method", [b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"PROPFIND"])
@pytest.mark.parametrize("path", [b"/health", b"/v1/models", b"/v1/chat/completions", b"/", b"*", b"/%00"])
def test_other_methods_are_answered_and_the_next_request_too(live, method, path):
    gateway = live(1)
    answers = send(gateway, method + b" " + path + b" HTTP/1.1\r\nhost: x\r\n\r\n" + closing(http_post()))
    if method == b"HEAD":  # whose answer has no body, whatever its length says
        rest = answers.partition(b"\r\n\r\n")[2]
        assert rest.startswith(b"HTTP/1.1 200"), answers
    codes = statuses(answers)
    assert len(codes) == (1 if codes == [400] else 2), answers
    assert 400 <= codes[0] < 500


@pytest.mark.parametrize("place", ["intake", "plane"])
def test_an_exception_in_the_gateway_is_answered_and_leaves_no_state(live, monkeypatch, place):
    gateway = live(1)

    def fail(*anything):
        raise RuntimeError("what nobody has thought of")

    monkeypatch.setattr(getattr(gateway.app, place), {"intake": "request", "plane": "arrive"}[place], fail)
    answers = send(gateway, http_post())
    assert statuses(answers) == [500] and b"nobody has thought" not in answers
    monkeypatch.undo()
    assert statuses(send(gateway, closing(http_post()))) == [200]
    gateway.until(gateway.idle)
