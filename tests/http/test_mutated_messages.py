"""Messages with random damage, in random pieces: what the gateway forwards is always one message with clear limits."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from random import Random
from types import SimpleNamespace
from typing import Any

import h11
from hypothesis import given
from hypothesis import strategies as st

from drawing import draws
from headway.http.client_limits import Limits
from headway.http.forwarding import forwarded_head
from headway.http.request_reader import Incoming
from headway.http.upstream import Upstream
from headway.http.wire import ClientConnection

ADDRESS: Any = SimpleNamespace(base=b"", host_line=b"host: engine")
BYTES = b"\r\n\t\0 :,;0aZ\x7f\xff"  # a change to one of these bytes may change where a message ends
STARTS = (
    b"POST /v1/chat/completions HTTP/1.1",
    b"POST /v1/x?a=b HTTP/1.0",
    b"CONNECT a:1 HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"POST http://e/v1 HTTP/1.1",
)
FIELDS = (
    b"content-length: 5",
    b"content-length: 0",
    b"transfer-encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"connection: close",
    b"connection: keep-alive, x-a",
    b"connection: upgrade",
    b"upgrade: h2c",
    b"expect: 100-continue",
    b"x-a:\tb",
    b"x-b: \xff\xfe",
    b"x-headway-target: q",
    b"te: trailers",
    b"trailer: x",
    b"keep-alive: timeout=5",
)
BODIES = (
    b"",
    b"abc",
    b"abcde",
    b"5\r\nabcde\r\n0\r\n\r\n",
    b"5;a=b\r\nabcde\r\n0\r\nx: y\r\n\r\n",
    b"0\r\n\r\n",
    b"5\r\nabcde\r\n",
)
LINES = ("HTTP/1.1 {} OK", "HTTP/1.0 {} OK", "HTTP/1.1 {}", "HTTP/1.1 {} ", "HTTP/1.1 {} Not Found here")
STATUSES = (200, 200, 200, 99, 100, 101, 103, 204, 304, 404, 503, 999)


class Wire:
    """A transport that sends nothing."""

    def __init__(self) -> None:
        self.closed = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def write(self, data: bytes) -> None: ...

    def writelines(self, pieces: list[bytes]) -> None: ...

    def can_write_eof(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    abort = close


class Host:
    """A server that answers each request at once."""

    half_closed = draining = False
    held_bytes = 0

    def __init__(self) -> None:
        self.limits = Limits(head_bytes=2000, body_bytes=5000)
        self.clients: dict[Any, None] = {}
        self.addresses: Counter[str] = Counter()
        self.begun: list[Incoming] = []

    def seconds(self) -> float:
        return 0.0

    def begin(self, client: ClientConnection, incoming: Incoming) -> None:
        self.begun.append(incoming)
        client.answer(incoming, 200, b"{}")

    def check_sender(self, named: dict[bytes, bytes]) -> None: ...

    def count_refusal(self, status: int) -> None: ...


class Asker:
    until_close = False

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.heads: list[tuple[bytes, Any]] = []

    def on_head(self, upstream: Upstream, status: int, fields: Any) -> None:
        self.heads.append((upstream.phrase, fields))
        framed = {b"content-length", b"transfer-encoding"} & {name for name, _ in fields}
        self.until_close = not framed and status not in (204, 304)

    def on_data(self, data: bytes) -> None: ...

    def on_complete(self) -> None:
        self.ends.append("complete")

    def on_broken(self, upstream: Upstream | None, why: str) -> None:
        self.ends.append(why)


def message(rng: Random, line: bytes, host: bytes = b"") -> bytes:
    fields = [*([host] if host else []), *rng.sample(FIELDS, rng.randrange(5))]
    return b"".join(part + b"\r\n" for part in (line, *fields)) + b"\r\n" + rng.choice(BODIES)


def damaged(rng: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        at, byte = rng.randrange(len(changed)), rng.choice(BYTES)
        match rng.randrange(4):
            case 0:
                changed[at] = byte
            case 1:
                changed.insert(at, byte)
            case 2:
                del changed[at : at + rng.randrange(1, 5)]
            case _:
                changed[at:at] = changed[at : at + rng.randrange(1, 20)]
    return bytes(changed)


def pieces(rng: Random, data: bytes) -> list[bytes]:
    cuts = [0, *sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 2, 5)))), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(cuts) if begin < end]


def check_forwarded(incoming: Incoming) -> None:
    """A strict parser must read one request, with the body that the gateway has read."""
    engine = h11.Connection(h11.SERVER)
    engine.receive_data(forwarded_head(incoming, ADDRESS, len(incoming.body), None, False) + incoming.body)
    assert isinstance(engine.next_event(), h11.Request)
    body = b""
    while isinstance(event := engine.next_event(), h11.Data):
        body += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage)
    assert body == incoming.body and engine.trailing_data == (b"", False)


@draws(600)
@given(st.integers(0, 2**64 - 1))
def test_a_damaged_request_is_refused_or_forwarded_as_one_request(seed: int) -> None:
    rng = Random(seed)
    lines = [message(rng, rng.choice(STARTS), b"host: x") for _ in range(rng.randrange(1, 4))]
    host, wire = Host(), Wire()
    client = ClientConnection(host)  # type: ignore[arg-type]
    client.connection_made(wire)
    for piece in pieces(rng, damaged(rng, b"".join(lines))):
        if not wire.closed:
            client.data_received(piece)
    client.overdue(1000.0)
    client.connection_lost(None)
    assert not (host.held_bytes or host.clients or host.addresses)
    for incoming in host.begun:
        check_forwarded(incoming)


@draws(600)
@given(st.integers(0, 2**64 - 1))
def test_a_damaged_answer_ends_once(seed: int) -> None:
    rng = Random(seed)
    starts = [rng.choice(LINES).format(rng.choice(STATUSES)).encode() for _ in range(rng.randrange(1, 3))]
    server: Any = SimpleNamespace(free=deque(), opened=1, known=None)
    upstream, asker, wire = Upstream(server), Asker(), Wire()
    upstream.connection_made(wire)
    upstream.exchange = asker
    for piece in pieces(rng, damaged(rng, b"".join(message(rng, start) for start in starts))):
        if not wire.closed:
            upstream.data_received(piece)
    upstream.connection_lost(None)
    assert len(asker.ends) == 1 and server.opened == 0
    for phrase, fields in asker.heads:
        for text in (phrase, *(part for field in fields for part in field)):
            assert not {*b"\r\n\0"} & {*text}
