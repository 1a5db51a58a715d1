"""The replicas' HTTP interface: OpenAI's API and vLLM's metrics page. It has a process without an engine.

A client must say what `headway load --truth` says: the content of the prompt and the length of the answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from time import monotonic
from typing import Any

import numpy as np

from benchmarks.gpu.engine_loop import RESET, SHOWN, Line
from benchmarks.gpu.prompts import Prompts
from benchmarks.gpu.scheduler import Limits, new_job
from headway.types import Path

HEAD = b"HTTP/1.1 %d OK\r\ncontent-type: %b\r\nx-engine: %b\r\n%b\r\n"
EVENTS = b"text/event-stream"
TOKEN = b'data: {"choices":[{"index":0,"text":"t "}]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN)
SOON_S = 1e-4  # tokens that are due within this time are sent at once


class Server:
    """Each replica has a port. `line` leads to the engine's process, `board` has the replicas' state."""

    def __init__(self, line: Line, board: Any, limits: Limits, count: int, model: str, vocabulary: int) -> None:
        self.line, self.board, self.limits, self.count = line, board, limits, count
        self.prompts, self.model = Prompts(vocabulary), model
        self.loop = asyncio.get_running_loop()
        self.streams: dict[int, tuple[asyncio.StreamWriter, asyncio.Future[Any]]] = {}
        self.number = self.measured = 0
        self.on_request: Callable[[int], None] = lambda number: None

    async def start(self) -> dict[str, str]:
        """Open the ports, and return the URLs by the replicas' names."""
        self.loop.add_reader(self.line.end.fileno(), self._receive)
        urls = {}
        for place in range(self.count):
            server = await asyncio.start_server(self._handler(place), "127.0.0.1", 0, limit=1 << 24)
            urls[f"instance-{place}"] = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return urls

    def reset(self) -> None:
        """The measured requests begin."""
        self.measured = 0
        self.line.send(RESET)

    def _receive(self) -> None:
        while (message := self.line.receive()) is not None:
            left = message[0] - monotonic()
            if left > SOON_S:
                self.loop.call_later(left, self._emit, *message[1:])
            else:
                self._emit(*message[1:])
        if self.line.closed:
            self.loop.remove_reader(self.line.end.fileno())

    def _emit(self, rows: list[int], ended: list[tuple[int, int, bytes]]) -> None:
        for id in rows:
            self.streams[id][0].write(CHUNK)
        for id, cached, answer in ended:
            self.streams.pop(id)[1].set_result((cached, np.frombuffer(answer, np.int32)))

    def _handler(self, place: int) -> Any:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                    fields = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
                    body = await reader.readexactly(int(fields.get("content-length", "0")))
                    await self._answer(place, head[0].split(" ")[1], body, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        return handle

    async def _answer(self, place: int, target: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        name = f"instance-{place}".encode()
        if not body:
            pages = {"/metrics": (b"text/plain; version=0.0.4", self.metrics(place))}
            models = {"object": "list", "data": [{"id": self.model, "object": "model"}]}
            pages["/v1/models"] = (b"application/json", json.dumps(models).encode())
            kind, page = pages.get(target, (b"text/plain", b""))
            writer.write(HEAD % (200, kind, name, b"content-length: %d\r\n" % len(page)) + page)
            return
        truth = json.loads(body)["headway"]
        path = Path(tuple(truth["path"]["keys"]), tuple(truth["path"]["ends"]))
        job = new_job(self.number, self.prompts.tokens(path), truth["output_tokens"], self.limits.block_tokens)
        ended = self.loop.create_future()
        self.streams[job.id] = writer, ended
        self.number += 1
        self.measured += 1
        self.on_request(self.measured)
        prompt = job.tokens[: job.prompt].astype(np.int32).tobytes()
        self.line.send((place, job.id, monotonic(), prompt, job.names, job.most))
        writer.write(HEAD % (200, EVENTS, name, b"transfer-encoding: chunked\r\n"))
        cached, answer = await ended
        self.prompts.answers[truth["output_key"]] = answer
        usage = {"prompt_tokens": job.prompt, "completion_tokens": len(answer)}
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
        last = b'data: {"choices":[],"usage":%b}\n\ndata: [DONE]\n\n' % json.dumps(usage).encode()
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))

    def metrics(self, place: int) -> bytes:
        waiting, running, held, preemptions, queries, hits = self.board[place * len(SHOWN) : (place + 1) * len(SHOWN)]
        values = {
            "num_requests_running": running,
            "num_requests_waiting": waiting,
            "kv_cache_usage_perc": held / self.limits.blocks,
            "prefix_cache_queries_total": queries,
            "prefix_cache_hits_total": hits,
            "num_preemptions_total": preemptions,
        }
        lines = []
        for name, value in values.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE vllm:{name} {kind}", f'vllm:{name}{{engine="0",model_name="m"}} {float(value)}']
        config = f'block_size="{self.limits.block_tokens}",enable_prefix_caching="True",engine="0"'
        config += f',num_gpu_blocks="{self.limits.blocks}"'
        lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{config}}} 1.0"]
        return ("\n".join(lines) + "\n").encode()
