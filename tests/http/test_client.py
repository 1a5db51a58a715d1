"""The client for questions beside the traffic, against a server that behaves as each test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from headway.http.client import Answer, HttpClient, NoAnswer, TooLong

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PAGE = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npage"


def play(handler: Handler, act: Callable[[str], Awaitable[None]]) -> None:
    """Serve each connection by `handler`, and `act` on the server's URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    async def go() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            await asyncio.wait_for(act(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), 60)

    asyncio.run(go())


def replying(reply: bytes, heads: list[bytes] | None = None) -> Handler:
    """Answers each request of a connection alike."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if heads is not None:
                    heads.append(head)
                writer.write(reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass

    return handler


def test_an_answer_has_its_status_and_body_and_the_connection_is_kept() -> None:
    heads: list[bytes] = []
    peers: set[object] = set()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.add(writer.get_extra_info("peername"))
        await replying(PAGE, heads)(reader, writer)

    async def act(url: str) -> None:
        client = HttpClient(5.0, headers={"authorization": "Bearer x"})
        assert await client.get(f"{url}/a") == Answer(200, b"page")
        assert await client.get(f"{url}/b", {"accept": "text/plain"}) == Answer(200, b"page")
        await client.close()
        assert len(peers) == 1
        assert heads[1].startswith(b"GET /b HTTP/1.1\r\n") and b"text/plain" in heads[1] and b"Bearer x" in heads[1]

    play(handler, act)


def test_a_body_is_bounded() -> None:
    async def act(url: str) -> None:
        client = HttpClient(5.0)
        with pytest.raises(TooLong):
            await client.get(url, most_bytes=3)
        assert (await client.get(url, most_bytes=4)).body == b"page"
        await client.close()

    play(replying(PAGE), act)


def test_a_server_that_is_silent_or_gone_gives_no_answer() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def act(url: str) -> None:
        client = HttpClient(0.05)
        with pytest.raises(NoAnswer) as caught:
            await client.get(url)
        assert caught.value.timed_out
        with pytest.raises(NoAnswer) as caught:
            await client.get("http://127.0.0.1:1")
        assert not caught.value.timed_out and "Connect call failed" in caught.value.why
        await client.close()

    play(silent, act)


def test_an_answer_that_breaks_off_is_none_though_its_beginning_was_read() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await writer.drain()

    async def act(url: str) -> None:
        client, pieces = HttpClient(5.0), []
        with pytest.raises(NoAnswer):
            async with client.stream("POST", url, b"{}", silence_s=5.0) as stream:
                assert stream.status == 200 and stream.fields["transfer-encoding"] == "chunked"
                async for piece in stream.pieces():
                    pieces.append(piece)
        assert pieces == [b"first"]
        await client.close()

    play(cut, act)


def test_redirects_are_followed_only_where_they_may_be() -> None:
    async def act(url: str) -> None:
        client = HttpClient(5.0, redirects=False)
        assert await client.get_status(url) == 302
        await client.close()

    play(replying(b"HTTP/1.1 302 Found\r\nlocation: /other\r\ncontent-length: 0\r\n\r\n"), act)


def test_an_error_of_the_reader_stays_what_it_is() -> None:
    async def act(url: str) -> None:
        client = HttpClient(5.0)
        with pytest.raises(ValueError, match="of the reader"):
            async with client.stream("GET", url):
                raise ValueError("of the reader")
        await client.close()

    play(replying(PAGE), act)
