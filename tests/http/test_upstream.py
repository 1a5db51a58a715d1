"""An engine's answer on its way through a connection."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.http.upstream import MOST_HELD, Upstream, connect

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


class Asked:
    """Who has asked, and what it hears."""

    until_close = False

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.told: list[str] = []

    def on_head(self, upstream: Upstream, status: int, fields: Any) -> None:
        self.told.append(f"headed {status}")

    def on_data(self, data: bytes) -> None:
        self.pieces.append(data)

    def on_complete(self) -> None:
        self.told.append("answered")

    def on_broken(self, upstream: Upstream | None, why: str) -> None:
        self.told.append(why)


class Wire:
    closed = False

    def get_extra_info(self, name: str) -> None:
        return None

    def is_reading(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.closed = True


def asked() -> tuple[Upstream, Asked]:
    backend: Any = SimpleNamespace(free=[], opened=1, known=None)
    upstream, asker = Upstream(backend), Asked()
    upstream.connection_made(Wire())
    upstream.exchange = asker
    return upstream, asker


def chunk(body: bytes, head: str = "{:x}") -> bytes:
    return head.format(len(body)).encode() + b"\r\n" + body + b"\r\n"


def ends(stream: bytes) -> set[int]:
    """Where the head and the chunks of an answer end, worked out without any parser."""
    at = stream.index(b"\r\n\r\n") + 4
    found = {at}
    while True:
        size = int(re.match(rb"[0-9a-fA-F]+", stream[at:])[0], 16)  # type: ignore[index]
        if not size:
            return found
        at = stream.index(b"\r\n", at) + 2 + size + 2
        found.add(at)


bodies = st.lists(st.binary(min_size=1, max_size=40) | st.sampled_from([b"\r\n", b"5\r\n", LAST]), max_size=8)
heads = st.sampled_from(["{:x}", "{:X}", "0{:x}", "{:x};a=b"])
cuts = st.lists(st.integers(0, 400), max_size=12)


def answer(parts: list[bytes], given_heads: list[str]) -> bytes:
    return HEAD + b"".join(chunk(part, head) for part, head in zip(parts, given_heads, strict=False)) + LAST


@given(bodies, st.lists(heads, min_size=8, max_size=8), cuts)
def test_an_answer_comes_as_it_was_sent_wherever_it_is_cut(
    parts: list[bytes], given_heads: list[str], places: list[int]
) -> None:
    stream = answer(parts, given_heads)
    upstream, asker = asked()
    at = 0
    for place in [*sorted({place for place in places if 0 < place < len(stream)}), len(stream)]:
        upstream.data_received(stream[at:place])
        at = place
        assert ("answered" in asker.told) == (at == len(stream))
    assert b"".join(asker.pieces) == stream[len(HEAD) :]
    assert asker.told == ["headed 200", "answered"]
    assert upstream.server.free == [upstream]


@given(bodies, st.lists(heads, min_size=8, max_size=8), cuts, st.integers(0, 400))
@example([b"one", b"two", b"three"], ["{:x}"] * 8, [], 0)
def test_what_was_forwarded_ends_with_a_chunk_so_that_something_may_follow(
    parts: list[bytes], given_heads: list[str], places: list[int], upto: int
) -> None:
    stream = answer(parts, given_heads)
    for stop in ends(stream) | {min(max(upto, len(HEAD)), len(stream) - len(LAST))}:
        upstream, asker = asked()
        at = 0
        for place in [*sorted({place for place in places if 0 < place < stop}), stop]:
            upstream.data_received(stream[at:place])
            at = place
        forwarded = len(HEAD) + sum(map(len, asker.pieces))
        assert forwarded in ends(stream) and not upstream.torn
        assert forwarded == stop or stop not in ends(stream)


def test_a_long_chunk_is_forwarded_before_it_is_complete() -> None:
    upstream, asker = asked()
    body = b"x" * (2 * MOST_HELD)
    stream = HEAD + chunk(body) + chunk(b"next")
    upstream.data_received(stream[: len(HEAD) + MOST_HELD + 100])
    assert sum(map(len, asker.pieces)) == MOST_HELD + 100 and upstream.torn
    upstream.data_received(stream[len(HEAD) + MOST_HELD + 100 :])
    assert b"".join(asker.pieces) == stream[len(HEAD) :] and not upstream.torn


def test_a_chunk_with_a_wrong_size_breaks_the_answer() -> None:
    for data in (b"+3\r\nabc\r\n", b"1_0\r\n" + bytes(16) + b"\r\n", b"3\r\nabcde\r\n", b"g\r\n\r\n"):
        upstream, asker = asked()
        upstream.data_received(HEAD + chunk(b"first"))
        upstream.data_received(data)
        assert asker.told == ["headed 200", "invalid HTTP response"]


def test_the_reason_phrase_of_the_final_head_is_kept() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\n\r\n"
    for line, phrase in ((b"503 Busy for now", b"Busy for now"), (b"404", b""), (b"200 OK", b"OK")):
        upstream, _ = asked()
        upstream.data_received(hints + b"HTTP/1.1 " + line + b"\r\ncontent-length: 1\r\n\r\n")
        assert upstream.phrase == phrase


def test_a_connection_that_the_server_has_reset_at_once_is_an_error_of_the_connection() -> None:
    """uvloop raises another error if something is written to it."""

    class Loop:
        async def create_connection(self, protocol: Callable[[], Upstream], *_: Any, **__: Any) -> tuple[Any, Upstream]:
            upstream = protocol()
            upstream.connection_made(SimpleNamespace(is_closing=lambda: True, get_extra_info=lambda _: None))
            upstream.connection_lost(None)
            return upstream.transport, upstream

    address = SimpleNamespace(host="127.0.0.1", port=1, tls=False, server_name=None)
    server: Any = SimpleNamespace(free=[], opened=0, known=None, address=address)
    loop: Any = Loop()
    with pytest.raises(ConnectionResetError):
        asyncio.run(connect(loop, server, 1.0))
    assert server.opened == 0
