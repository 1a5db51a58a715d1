"""Dummy engines that compute nothing: they answer at once, or stream 64 events 1 ms apart, each in its own write."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httptools
import uvloop

CHUNKS, APART_S = 64, 0.001
GET = {b"/v1/models": {"object": "list", "data": [{"id": "dummy", "object": "model", "owned_by": "x"}]}}
STREAMED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def answer(document: object) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def chunk(text: str) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text.encode())


def event(delta: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    document = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "dummy", "choices": [choice]}
    return chunk(f"data: {json.dumps(document)}\n\n")


WHOLE = answer(
    {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "dummy",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11},
    }
)
EVENTS = [event({"content": f"t{number:02d} "}) for number in range(CHUNKS)]
LAST = chunk("data: [DONE]\n\n") + b"0\r\n\r\n"


class Engine(asyncio.Protocol):
    def __init__(self, streams: dict[Engine, int]) -> None:
        self.streams = streams
        self.parser: Any = httptools.HttpRequestParser(self)
        self.transport: Any = None
        self.target, self.body = b"", b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:  # some routers first check whether the engine speaks gRPC
            self.transport.abort()

    def on_message_begin(self) -> None:
        self.body = b""

    def on_url(self, target: bytes) -> None:
        self.target = target

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        if self.parser.get_method() != b"POST":
            self.transport.write(answer(GET.get(self.target, {})))
        elif b'"stream": true' in self.body or b'"stream":true' in self.body:
            self.transport.write(STREAMED + EVENTS[0])  # sent at once, so that only the router adds to TTFT
            self.streams[self] = 1
        else:
            self.transport.write(WHOLE)


def tick(loop: asyncio.AbstractEventLoop, streams: dict[Engine, int]) -> None:
    """Send the next event of every stream. One timer for all streams: a timer for each would cost too much."""
    loop.call_later(APART_S, tick, loop, streams)
    for engine, count in list(streams.items()):
        if count < CHUNKS:
            engine.transport.write(EVENTS[count])
            streams[engine] = count + 1
        else:
            engine.transport.write(LAST)
            del streams[engine]


async def main(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    streams: dict[Engine, int] = {}
    for port in ports:
        await loop.create_server(lambda: Engine(streams), "127.0.0.1", port, backlog=4096)
    tick(loop, streams)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main([int(port) for port in sys.argv[1:]]))
