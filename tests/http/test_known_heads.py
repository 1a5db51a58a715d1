"""Messages whose head is known are read without the parser, and with the same result."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.http.client_limits import Limits
from headway.http.forwarding import forwarded_head
from headway.http.known_heads import MOST_MISSES
from headway.http.request_reader import Incoming
from headway.http.upstream import Upstream
from headway.http.wire import ClientConnection

ADDRESS: Any = SimpleNamespace(base=b"", host_line=b"host: engine")


class Wire:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def writelines(self, pieces: list[bytes]) -> None:
        self.written.append(b"".join(pieces))

    def set_write_buffer_limits(self, high: int) -> None: ...

    def can_write_eof(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None: ...

    def abort(self) -> None: ...


class Host:
    """A server that answers each request at once."""

    def __init__(self, **limits: int) -> None:
        self.limits, self.clients, self.addresses = Limits(**limits), {}, Counter()  # type: ignore[var-annotated]
        self.half_closed = self.draining = False
        self.held_bytes = 0
        self.begun: list[Incoming] = []
        self.refused: list[int] = []

    def seconds(self) -> float:
        return 0.0

    def begin(self, client: ClientConnection, incoming: Incoming) -> None:
        self.begun.append(incoming)
        client.answer(incoming, 200, b"{}")

    def check_sender(self, named: dict[bytes, bytes]) -> None: ...

    def count_refusal(self, status: int) -> None:
        self.refused.append(status)


def connect(host: Any) -> ClientConnection:
    client = ClientConnection(host)
    client.connection_made(Wire())
    return client


def ask(body: bytes, more: bytes = b"", name: bytes = b"Content-Length", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"POST /v1/x HTTP/1.1\r\nHost: a\r\n%b: %d\r\nAuthorization: Bearer k\r\n%b\r\n%b" % (name, size, more, body)


def seen(incoming: Incoming) -> Any:
    """What the engine gets of a request, and how the gateway answers it."""
    heads = [forwarded_head(incoming, ADDRESS, len(incoming.body), None, hides) for hides in (False, True)]
    return incoming.method, incoming.target, incoming.body, incoming.keep_alive, incoming.version, heads


MORE = st.sampled_from([b"", b"", b"", b"X-Trace: 1\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n"])


@given(st.lists(st.tuples(st.binary(max_size=300), MORE, st.integers(0, 400)), min_size=1, max_size=8))
def test_requests_on_one_connection_are_read_as_on_connections_of_their_own(
    requests: list[tuple[bytes, bytes, int]],
) -> None:
    one, apart = Host(), Host()
    client = connect(one)
    client.transport.write = lambda data: None
    for body, more, cut in requests:
        data = ask(body, more)
        for piece in (data[:cut], data[cut:]):
            if piece:
                client.data_received(piece)
        fresh = connect(apart)
        fresh.transport.write = lambda data: None
        fresh.data_received(data)
        if b"close" in more:
            break
    assert [seen(incoming) for incoming in one.begun] == [seen(incoming) for incoming in apart.begun]
    assert one.held_bytes == apart.held_bytes == 0


def test_a_repeated_head_needs_no_parser() -> None:
    host = Host()
    client = connect(host)
    client.data_received(ask(b"first"))
    client.reader.parser = None
    for body in (b"second body", b"", b"x" * 5000):
        client.data_received(ask(body))
    assert [incoming.body for incoming in host.begun] == [b"first", b"second body", b"", b"x" * 5000]


@pytest.mark.parametrize(
    "data",
    [
        ask(b"five5", length=4),  # the rest begins another request
        ask(b"five5") + ask(b"more"),
        ask(b"five5", b"Content-Length: 5\r\n"),
        ask(b"five5", name=b"Content-Length ", length=5),
        ask(b"five5").replace(b": 5", b": +5"),
        ask(b"five5").replace(b": 5", b": 5, 5"),
    ],
)
def test_a_head_that_differs_goes_through_the_parser(data: bytes) -> None:
    known, fresh = Host(), Host()
    client = connect(known)
    client.data_received(ask(b"known"))
    for host, connection in ((known, client), (fresh, connect(fresh))):
        connection.data_received(data)
        assert connection.reader.held == 0 or host.refused == []
    assert [seen(incoming) for incoming in known.begun[1:]] == [seen(incoming) for incoming in fresh.begun]
    assert known.refused == fresh.refused


def test_a_known_head_does_not_lift_a_limit() -> None:
    host = Host(body_bytes=100)
    client = connect(host)
    client.data_received(ask(b"x" * 100))
    client.data_received(ask(b"x" * 101))
    assert len(host.begun) == 1
    assert host.refused == [413]


def test_a_connection_whose_heads_never_repeat_stops_to_learn_them() -> None:
    host = Host()
    client = connect(host)
    for number in range(MOST_MISSES + 5):
        client.data_received(ask(b"body", b"X-Trace: %d\r\n" % number))
    assert client.reader.known is None
    assert client.reader.misses == MOST_MISSES
    assert len(host.begun) == MOST_MISSES + 5


class Asker:
    until_close = False

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def on_head(self, upstream: Upstream, status: int, fields: Any) -> None:
        self.answers.append([status, upstream.phrase, list(fields), b"", False])

    def on_data(self, data: bytes) -> None:
        self.answers[-1][3] += data

    def on_complete(self) -> None:
        self.answers[-1][4] = True


def answer(body: bytes, status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\nServer: e\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(body), more, body)


STATUSES = st.sampled_from([b"200 OK", b"200 OK", b"200 Fine", b"404 Not Found"])
FIELDS = st.sampled_from([b"", b"", b"Date: now\r\n", b"Connection: close\r\n"])


@given(st.lists(st.tuples(st.binary(max_size=300), STATUSES, FIELDS, st.integers(0, 400)), max_size=8))
def test_answers_of_one_engine_are_read_as_those_of_other_engines(
    answers: list[tuple[bytes, bytes, bytes, int]],
) -> None:
    one, apart = Asker(), Asker()
    shared: Any = SimpleNamespace(free=[], opened=1, known=None)
    for body, status, more, cut in answers:
        data = answer(body, status, more)
        for asker, server in ((one, shared), (apart, SimpleNamespace(free=[], opened=1, known=None))):
            upstream: Any = server.free.pop() if server.free else Upstream(server)
            upstream.connection_made(Wire())
            upstream.exchange = asker
            for piece in (data[:cut], data[cut:]):
                if piece:
                    upstream.data_received(piece)
    assert one.answers == apart.answers


def test_a_repeated_head_of_an_answer_needs_no_parser() -> None:
    server: Any = SimpleNamespace(free=[], opened=1, known=None)
    upstream: Any = Upstream(server)
    upstream.connection_made(Wire())
    upstream.exchange = asker = Asker()
    upstream.data_received(answer(b"first"))
    upstream.parser, upstream.exchange = None, asker
    upstream.data_received(answer(b"the second"))
    assert [told[3] for told in asker.answers] == [b"first", b"the second"]
    assert dict(asker.answers[1][2]) == {b"server": b"e", b"content-length": b"10"}
