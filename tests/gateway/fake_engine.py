"""An engine for tests: answers at once, or as badly as a test wants."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httptools

HEAD = "HTTP/1.1 {status} OK\r\ncontent-type: {kind}\r\n{more}\r\n"


def chunk(text: str) -> bytes:
    data = text.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(content: str) -> str:
    return (
        "data: "
        + json.dumps(
            {
                "id": "x",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "m",
                "choices": [{"index": 0, "delta": {"role": "assistant", "content": content}, "finish_reason": None}],
            }
        )
        + "\n\n"
    )


class Engine:
    """`mode`: ok, error (500), busy (503), hang, reset (before a byte), die (amid a stream), garbage, slow."""

    def __init__(self, name: str) -> None:
        self.name, self.mode = name, "ok"
        self.bodies: list[bytes] = []
        self.fields: list[dict[bytes, bytes]] = []
        self.tokens, self.pause = 5, 0.0
        self.under_way = self.cancelled = 0
        self.port = 0
        self.server: asyncio.Server | None = None

    async def start(self) -> None:
        self.server = await asyncio.get_running_loop().create_server(lambda: Connection(self), "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]


class Connection(asyncio.Protocol):
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.parser: Any = httptools.HttpRequestParser(self)
        self.transport: Any = None
        self.body = b""
        self.fields: dict[bytes, bytes] = {}
        self.busy = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self.busy:
            self.engine.cancelled += 1
            self.engine.under_way -= 1

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.body, self.fields = b"", {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        engine = self.engine
        engine.bodies.append(self.body)
        engine.fields.append(self.fields)
        engine.under_way += 1
        self.busy = True
        mode = engine.mode
        if mode == "hang":
            return
        if mode == "reset":
            self.transport.abort()
        elif mode == "garbage":
            self.transport.write(b"this is no HTTP\r\n\r\n")
        elif mode in ("error", "busy"):
            self.say(500 if mode == "error" else 503, {"error": {"message": "no", "type": "server_error"}})
        elif json.loads(self.body).get("stream"):
            self.transport.write(
                HEAD.format(status=200, kind="text/event-stream", more="transfer-encoding: chunked\r\n").encode()
            )
            self.go_on(0)
        else:
            self.say(
                200,
                {
                    "id": "x",
                    "object": "chat.completion",
                    "created": 1,
                    "model": "m",
                    "engine": engine.name,
                    "choices": [
                        {
                            "index": 0,
                            "message": {"role": "assistant", "content": "hello"},
                            "finish_reason": "stop",
                            "logprobs": None,
                        }
                    ],
                    "usage": {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10},
                },
            )

    def say(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        head = HEAD.format(
            status=status,
            kind="application/json",
            more=f"content-length: {len(body)}\r\nx-engine: {self.engine.name}\r\n",
        )
        self.transport.write(head.encode() + body)
        self.done()

    def go_on(self, count: int) -> None:
        engine = self.engine
        if self.transport.is_closing():
            return
        if engine.mode == "die" and count == 2:
            self.transport.abort()
        elif count == engine.tokens:
            self.transport.write(chunk("data: [DONE]\n\n") + b"0\r\n\r\n")
            self.done()
        else:
            self.transport.write(chunk(event(f"t{count} ")))
            asyncio.get_running_loop().call_later(engine.pause, self.go_on, count + 1)

    def done(self) -> None:
        self.busy = False
        self.engine.under_way -= 1
