"""An inference gateway for tests: speaks external processing to an endpoint picker in a thread of its own, the way that
Envoy does, and plays both the engine's answer and the client."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import grpc

from headway.gateway.config import Config
from headway.interop.endpoint_picker import Picker, listen
from headway.interop.ext_proc import BUFFERED, FULL_DUPLEX, HEALTH, SERVICE
from headway.interop.ext_proc import HealthCheckRequest as Asked
from headway.interop.ext_proc import HealthCheckResponse as Checked
from headway.interop.ext_proc import ProcessingRequest as Message
from headway.interop.ext_proc import ProcessingResponse as Said
from waiting import until

TARGET = "x-gateway-destination-endpoint"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"hello"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":7,"total_tokens":16}}\n\ndata: [DONE]\n\n'


def chat(text: str = "hello there", **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()


class Epp:
    """A running picker on loopback; its engines need not exist."""

    def __init__(self, backends: dict[str, Any], **more: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        quiet = {"health": {"path": None}, "signals": False}  # the engines do not exist
        self.config = {"listen": "127.0.0.1:0", "backends": backends, **quiet, **more}
        self.call(self._start())
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")

    async def _start(self) -> None:
        self.picker = Picker(asyncio.get_running_loop(), Config.load(self.config))
        self.app = self.picker.app
        self.server, self.port = await listen(self.picker)

    def call(self, task: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(task, self.loop).result(60)

    def stop(self) -> None:
        async def end() -> None:
            await self.server.stop(0)
            await self.app.drain(0)

        self.channel.close()
        self.call(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    until = staticmethod(until)

    def inflight(self) -> dict[str, int]:
        return {view.id: view.inflight for view in self.app.plane.views if view.id}

    def idle(self) -> bool:
        """Return whether no request is in flight or queued, by all counters."""
        counts = {
            (view.inflight, view.inflight_tokens, view.pending_prefill_tokens, view.decode_tokens)
            for view in self.app.plane.views
        }
        return not self.app.plane.control.flights.by_id and not self.app.waiting and counts == {(0, 0, 0, 0)}

    def ends(self) -> dict[tuple[str, int], int]:
        """Return the number of ended requests by outcome and status."""
        result: dict[tuple[str, int], int] = {}
        for group in list(self.app.metrics.groups.values()):
            for end, count in list(group.ends.items()):
                result[end] = result.get(end, 0) + count
        return result

    def healthy(self) -> int:
        check = self.channel.unary_unary(f"/{HEALTH}/Check", Asked.SerializeToString, Checked.FromString)
        return int(check(Asked(), timeout=300).status)


class Call:
    """One HTTP request as the gateway's messages. `said` waits for the next reply."""

    def __init__(self, epp: Epp, mode: int = FULL_DUPLEX, answers: int | None = None, configured: bool = True) -> None:
        self.mode, self.answers = mode, mode if answers is None else answers
        self.configured = configured  # whether the first message has the body modes
        self._outbox: list[Any] = []
        self._more = threading.Condition()
        self._closed = False
        process = epp.channel.stream_stream(f"/{SERVICE}/Process", Message.SerializeToString, Said.FromString)
        self.stream = process(self._messages(), timeout=300)

    def _messages(self) -> Any:
        while True:
            with self._more:
                while not self._outbox and not self._closed:
                    self._more.wait()
                if not self._outbox:
                    return
                message = self._outbox.pop(0)
            yield message

    def say(self, message: Any) -> None:
        if self.configured:
            message.protocol_config.request_body_mode = self.mode
            message.protocol_config.response_body_mode = self.answers
            self.configured = False
        with self._more:
            self._outbox.append(message)
            self._more.notify()

    def said(self) -> Any:
        return next(self.stream)

    def close(self) -> None:
        """End the gateway's messages."""
        with self._more:
            self._closed = True
            self._more.notify()

    def rest(self) -> list[Any]:
        self.close()
        return list(self.stream)

    # --- the request -------------------------------------------------------------------------------------------------

    def head(self, path: str = "/v1/chat/completions", method: str = "POST", end: bool = False, **fields: str) -> None:
        message = Message()
        pairs = [(":method", method), (":path", path), (":authority", "x"), *fields.items()]
        for name, value in pairs:
            message.request_headers.headers.headers.add(key=name.replace("_", "-"), raw_value=value.encode())
        message.request_headers.end_of_stream = end
        self.say(message)

    def body(self, data: bytes, end: bool = True) -> None:
        message = Message()
        message.request_body.body, message.request_body.end_of_stream = data, end
        self.say(message)

    def request_trailers(self) -> None:
        message = Message()
        message.request_trailers.SetInParent()
        self.say(message)

    def ask(self, body: bytes | None = None, **fields: str) -> Any:
        """Send the whole request, and return the reply that names its endpoint or rejects it."""
        self.head(**fields)
        if self.mode == BUFFERED:
            assert self.said().WhichOneof("one") == "request_headers"
        self.body(chat() if body is None else body)
        first = self.said()
        if self.mode == FULL_DUPLEX and not first.HasField("immediate_response"):
            self.echoed = b""
            ended = False
            while not ended:
                piece = self.said().request_body.response.body_mutation.streamed_response
                self.echoed += piece.body
                ended = piece.end_of_stream
        return first

    # --- the answer --------------------------------------------------------------------------------------------------

    def answer_head(self, status: int = 200, end: bool = False) -> Any:
        message = Message()
        message.response_headers.headers.headers.add(key=":status", raw_value=str(status).encode())
        message.response_headers.end_of_stream = end
        self.say(message)
        return self.said()

    def answer_body(self, data: bytes, end: bool = False) -> Any:
        message = Message()
        message.response_body.body, message.response_body.end_of_stream = data, end
        self.say(message)
        return self.said()

    def answer_trailers(self) -> Any:
        message = Message()
        message.response_trailers.SetInParent()
        self.say(message)
        return self.said()


def mutated(said: Any, phase: str = "request_headers") -> dict[str, str]:
    """Return the header fields that a reply sets."""
    heads = getattr(said, phase).response.header_mutation.set_headers
    return {one.header.key: one.header.raw_value.decode() for one in heads}


def target(said: Any, phase: str = "request_headers") -> str:
    """Return the endpoint of a request, which is in two places of a reply."""
    result = mutated(said, phase)[TARGET]
    assert said.dynamic_metadata["envoy.lb"][TARGET] == result
    return result
