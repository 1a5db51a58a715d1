"""Many streams at once, by processes of their own: `crowd.py engines COUNT` and `crowd.py clients PORT STREAMS TOKENS`.
No stream ends before all have begun."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from typing import Any

import httptools
import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
APART_S = 0.5  # tokens of one stream
WAVE = 250  # connections that are opened at a time


def event(number: int) -> bytes:
    data = b'data: {"choices":[{"index":0,"delta":{"content":"t%d "}}]}\n\n' % number
    return b"%x\r\n%b\r\n" % (len(data), data)


class Engine(asyncio.Protocol):
    """An engine that streams `max_tokens` tokens. The last one waits until `seed` streams have begun."""

    begun = 0

    def __init__(self) -> None:
        self.parser: Any = httptools.HttpRequestParser(self)
        self.body = b""
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.body = b""

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        if self.parser.get_method() != b"POST":
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return
        body = json.loads(self.body)
        Engine.begun += 1
        self.transport.write(HEAD + event(0))
        asyncio.get_running_loop().call_later(APART_S, self.go_on, 1, body["max_tokens"], body["seed"])

    def go_on(self, number: int, tokens: int, streams: int) -> None:
        if self.transport.is_closing():
            return
        if number == tokens:
            self.transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            return
        if number < tokens - 1 or Engine.begun >= streams:
            self.transport.write(event(number))
            number += 1
        asyncio.get_running_loop().call_later(APART_S, self.go_on, number, tokens, streams)


async def engines(count: int) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Engine, "127.0.0.1", 0, backlog=4096) for _ in range(count)]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.Event().wait()


class Client(asyncio.Protocol):
    def __init__(self, number: int, streams: int, tokens: int) -> None:
        body = {"model": "m", "stream": True, "max_tokens": tokens, "seed": streams}
        body["messages"] = [{"role": "user", "content": f"I am number {number} of a crowd. " * 20}]
        data = json.dumps(body).encode()
        self.request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (
            len(data),
            data,
        )
        self.parser: Any = httptools.HttpResponseParser(self)
        self.body = b""
        loop = asyncio.get_running_loop()
        self.begun, self.done = loop.create_future(), loop.create_future()
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.body += data
        if not self.begun.done():
            self.begun.set_result(None)

    def on_message_complete(self) -> None:
        self.done.set_result(self.parser.get_status_code())
        self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        for future in (self.begun, self.done):
            if not future.done():
                future.set_result(None)


async def clients(port: int, streams: int, tokens: int) -> None:
    loop = asyncio.get_running_loop()
    crowd: list[Client] = []
    for start in range(0, streams, WAVE):
        wave = [
            loop.create_connection(lambda number=number: Client(number, streams, tokens), "127.0.0.1", port)
            for number in range(start, min(start + WAVE, streams))
        ]
        crowd += [client for _, client in await asyncio.gather(*wave)]
        await asyncio.gather(*(client.begun for client in crowd[start:]))
    print("all have begun", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    statuses = await asyncio.gather(*(client.done for client in crowd))
    expected = b"".join(b'data: {"choices":[{"index":0,"delta":{"content":"t%d "}}]}\n\n' % at for at in range(tokens))
    whole = sum(client.body == expected + b"data: [DONE]\n\n" for client in crowd)
    print(json.dumps({"whole": whole, "ok": statuses.count(200)}), flush=True)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    numbers = [int(text) for text in sys.argv[2:]]
    uvloop.run(engines(*numbers) if sys.argv[1] == "engines" else clients(*numbers))
