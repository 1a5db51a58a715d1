"""An engine's answer on its way through a connection: whole chunks go past the parser, and nothing shows it."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.gateway.upstream import Upstream, is_chunk

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


class Asked:
    """Who has asked, and what it hears."""

    until_close = False

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.told: list[str] = []

    def headed(self, upstream: Upstream, status: int, fields: Any) -> None:
        self.told.append(f"headed {status}")

    def relayed(self, data: bytes) -> None:
        self.pieces.append(data)

    def answered(self) -> None:
        self.told.append("answered")

    def broken(self, upstream: Upstream | None, why: str) -> None:
        self.told.append(why)


class Wire:
    closed = False

    def get_extra_info(self, name: str) -> None:
        return None

    def is_reading(self) -> bool:
        return True

    def abort(self) -> None:
        self.closed = True


def asked() -> tuple[Upstream, Asked]:
    backend: Any = SimpleNamespace(free=[], opened=1)
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


bodies = st.lists(st.binary(min_size=1, max_size=40) | st.sampled_from([b"\r\n", b"5\r\n", b"0\r\n\r\n"]), max_size=8)
heads = st.sampled_from(["{:x}", "{:X}", "0{:x}", "{:x};a=b", "{:x}"])


@given(bodies, st.lists(heads, min_size=8, max_size=8), st.lists(st.integers(0, 400), max_size=12), st.booleans())
@example([b"one", b"two", b"three"], ["{:x}"] * 8, [], True)
def test_an_answer_comes_as_it_was_sent_wherever_it_is_cut(
    parts: list[bytes], given_heads: list[str], cuts: list[int], at_chunks: bool
) -> None:
    chunks = [chunk(part, head) for part, head in zip(parts, given_heads, strict=False)]
    stream = HEAD + b"".join(chunks) + LAST
    places = {cut for cut in cuts if 0 < cut < len(stream)} | (ends(stream) if at_chunks else set())
    upstream, asker = asked()
    at = 0
    for place in [*sorted(places - {len(stream)}), len(stream)]:
        upstream.data_received(stream[at:place])
        at = place
        if len(HEAD) <= at < len(stream) - len(LAST) + 1:
            assert upstream.between == (at in ends(stream))
        assert ("answered" in asker.told) == (at == len(stream))
    assert b"".join(asker.pieces) == stream[len(HEAD) :]
    assert asker.told == ["headed 200", "answered"]
    assert upstream.backend.free == [upstream] and not upstream.plain


def test_a_chunk_that_comes_whole_is_not_parsed() -> None:
    upstream, asker = asked()
    upstream.data_received(HEAD + chunk(b"first"))
    upstream.parser = SimpleNamespace()  # which cannot parse anything
    upstream.data_received(chunk(b"second"))
    assert asker.pieces == [chunk(b"first"), chunk(b"second")]
    with pytest.raises(AttributeError):
        upstream.data_received(chunk(b"third") + chunk(b"fourth"))


@pytest.mark.parametrize(
    "data",
    [
        LAST,
        b"+3\r\nabc\r\n",
        b"1_0\r\n" + bytes(16) + b"\r\n",
        b" 3\r\nabc\r\n",
        b"0x3\r\nabc\r\n",
        b"3\r\nabcde",
        b"",
        b"3",
        b"4\r\nabc\r\n",
        b"2\r\nabc\r\n",
        b"3;x\r\nabc\r\n",
        b"3\r\nabc\n\r",
        b"ffffffffffffffff\r\n\r\n",
        b"03\r\nabc\r\n",
    ],
)
def test_what_is_no_plain_chunk_goes_through_the_parser(data: bytes) -> None:
    assert not is_chunk(data)


@pytest.mark.parametrize("data", [b"+3\r\nabc\r\n", b"1_0\r\n" + bytes(16) + b"\r\n", b"3\r\nabcde\r\n", b"g\r\n\r\n"])
def test_a_chunk_with_a_wrong_size_breaks_the_answer(data: bytes) -> None:
    upstream, asker = asked()
    upstream.data_received(HEAD + chunk(b"first"))
    upstream.data_received(data)
    assert asker.told == ["headed 200", "an answer that is no HTTP"]


def test_an_answer_that_has_no_chunks_is_never_taken_for_one() -> None:
    upstream, asker = asked()
    body = chunk(b"abc") + chunk(b"de")
    upstream.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
    upstream.data_received(body[:8])
    upstream.data_received(body[8:])
    assert b"".join(asker.pieces) == body and asker.told == ["headed 200", "answered"]
