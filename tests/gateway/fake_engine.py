"""An engine for tests: answers at once, or fails as a test requires."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httptools

DONE = "data: [DONE]\n\n"
HEAD = "HTTP/1.1 {status} OK\r\ncontent-type: {kind}\r\n{more}\r\n"


def chunk(text: str) -> bytes:
    data = text.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(content: str, **more: Any) -> str:
    choice = {"index": 0, "delta": {"role": "assistant", "content": content}, "finish_reason": None, **more}
    document = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(document)}\n\n"


def logprobs(target: bytes, values: list[float]) -> dict[str, Any]:
    """Return log-probabilities in vLLM's form."""
    tokens = [f"t{number} " for number in range(len(values))]
    if target.endswith(b"/chat/completions"):
        pairs = zip(tokens, values, strict=True)
        return {"content": [{"token": token, "logprob": value, "top_logprobs": []} for token, value in pairs]}
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": None, "text_offset": [0] * len(values)}


class Engine:
    """`mode`: ok, error (500), busy (503), hang, reset (before a byte), die or stall (amid a stream), garbage, slow,
    head (of a stream, and no more), burst (a stream in one piece)."""

    def __init__(self, name: str) -> None:
        self.name, self.mode = name, "ok"
        self.bodies: list[bytes] = []
        self.fields: list[dict[bytes, bytes]] = []
        self.tokens, self.pause = 5, 0.0
        self.padding = ""  # follows each token's text: a stream that fills buffers with few tokens
        self.under_way = self.cancelled = 0
        self.port = 0
        self.server: asyncio.Server | None = None
        self.page: str | None = None  # what /metrics says
        self.health = 200  # what /health answers; 0: nothing at all
        # What /v1/models lists: names, or pairs of a LoRA adapter and the model that it extends; None: it answers 404.
        self.models: list[str | tuple[str, str]] | None = None
        self.logprob: float | None = None  # of each token; None: the engine reports none
        self.later: tuple[int, float] | None = None  # from this token of a stream on, this is the log-probability
        # What it does before it answers, and says besides.
        self.before: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]] | None = None
        self.looked: list[tuple[bytes, dict[bytes, bytes]]] = []  # what was asked by GET, with its fields

    async def start(self) -> None:
        self.server = await asyncio.get_running_loop().create_server(lambda: Connection(self), "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]


class Connection(asyncio.Protocol):
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.parser: Any = httptools.HttpRequestParser(self)
        self.transport: Any = None
        self.body = self.target = b""
        self.fields: dict[bytes, bytes] = {}
        self.more: dict[str, Any] = {}
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
        self.body, self.fields, self.more = b"", {}, {}

    def on_url(self, target: bytes) -> None:
        self.target = target

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        engine = self.engine
        if self.parser.get_method() == b"GET":
            self.look()
            return
        engine.bodies.append(self.body)
        engine.fields.append(self.fields)
        engine.under_way += 1
        self.busy = True
        if engine.before is None:
            self.answer()
        else:
            self.task = asyncio.get_running_loop().create_task(self.answer_later(engine.before))

    async def answer_later(self, before: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
        self.more = await before(json.loads(self.body))
        if not self.transport.is_closing():
            self.answer()

    @property
    def document(self) -> dict[str, Any]:
        """The body, if it is a JSON object; otherwise {}."""
        try:
            document = json.loads(self.body)
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}

    def logprobs(self, count: int, first: int = 0) -> dict[str, Any] | None:
        """Return the log-probabilities of `count` tokens from number `first` on, if the request asks for them."""
        logprob, later = self.engine.logprob, self.engine.later
        if later is not None and first >= later[0]:
            logprob = later[1]
        wants = self.document.get("logprobs") not in (None, False)
        return logprobs(self.target, [logprob] * count) if wants and logprob is not None else None

    def answer(self) -> None:
        engine, mode = self.engine, self.engine.mode
        if "refusal" in self.more:
            status, message = self.more["refusal"]
            self.say(status, {"error": {"message": message, "type": "invalid_request_error"}})
        elif mode == "hang":
            return
        elif mode == "reset":
            self.transport.abort()
        elif mode == "garbage":
            self.transport.write(b"this is no HTTP\r\n\r\n")
        elif mode in ("error", "busy"):
            self.say(500 if mode == "error" else 503, {"error": {"message": "no", "type": "server_error"}})
        elif self.document.get("stream"):
            self.transport.write(
                HEAD.format(status=200, kind="text/event-stream", more="transfer-encoding: chunked\r\n").encode()
            )
            if mode == "burst":
                self.transport.write(b"".join(map(self.piece, range(engine.tokens))) + chunk(DONE) + b"0\r\n\r\n")
                self.done()
            elif mode != "head":
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
                            "logprobs": self.logprobs(7),
                        }
                    ],
                    "usage": {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10},
                    **self.more,
                },
            )

    def look(self) -> None:
        engine = self.engine
        engine.looked.append((self.target, self.fields))
        known = {
            b"/metrics": 404 if engine.page is None else 200,
            b"/health": engine.health,
            b"/v1/models": 404 if engine.models is None else 200,
        }
        status = known.get(self.target, 404)
        page = (engine.page or "").encode() if self.target == b"/metrics" else b""
        if self.target == b"/v1/models":
            pairs = [(entry, None) if isinstance(entry, str) else entry for entry in engine.models or []]
            data = [{"id": name, "object": "model", "root": name, "parent": parent} for name, parent in pairs]
            page = json.dumps({"object": "list", "data": data}).encode()
        if status:
            head = HEAD.format(status=status, kind="text/plain", more=f"content-length: {len(page)}\r\n")
            self.transport.write(head.encode() + page)

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
        if engine.mode == "die" and count >= 2:
            self.transport.abort()
        elif engine.mode == "stall" and count >= 2:
            return
        elif count >= engine.tokens:
            self.transport.write(chunk(DONE) + b"0\r\n\r\n")
            self.done()
        else:
            self.transport.write(self.piece(count))
            asyncio.get_running_loop().call_later(engine.pause, self.go_on, count + 1)

    def piece(self, count: int) -> bytes:
        values = self.logprobs(1, count)
        return chunk(event(f"t{count} {self.engine.padding}", **({} if values is None else {"logprobs": values})))

    def done(self) -> None:
        self.busy = False
        self.engine.under_way -= 1
