"""Replicas over HTTP: the engine behind OpenAI's API, in real time, or N replicas with dilated time.

With dilation D, a step of d seconds ends D·d seconds after it began, by the wall clock. So several replicas take turns
on one GPU while each runs at the pace that it would have alone, and every other part of the system sees clocks that are
D times slower. One thread computes steps; the event loop serves HTTP. If a step has to wait for the GPU, or if its
tokens are late, the lag is counted.

A client must say what `headway load --truth` says: the content of the prompt and the length of the answer.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from benchmarks.gpu.prompts import Prompts
from benchmarks.gpu.scheduler import Backend, Job, Limits, Replica, new_job
from headway.types import Path

HEAD = b"HTTP/1.1 %d OK\r\ncontent-type: %b\r\nx-engine: %b\r\n%b\r\n"
EVENTS = b"text/event-stream"
CHUNK = b'data: {"choices":[{"index":0,"text":"t "}]}\n\n'


@dataclass
class Lag:
    """How late steps began or ended, in seconds of the replica's clock."""

    steps: int = 0
    late_s: float = 0.0
    worst_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.steps += 1
        self.late_s += seconds
        self.worst_s = max(self.worst_s, seconds)


@dataclass(eq=False)
class Engine:
    """One replica: a task that steps it at the pace of its clock."""

    name: str
    replica: Replica
    compute: Callable[[Replica], Any]  # starts a step on the GPU's thread; returns a future with its duration
    dilation: float
    work: asyncio.Event = field(default_factory=asyncio.Event)
    streams: dict[Job, asyncio.Queue[int]] = field(default_factory=dict)  # number of new tokens, or -1 at the end
    lag: Lag = field(default_factory=Lag)
    queries: int = 0
    hits: int = 0

    def add(self, job: Job) -> asyncio.Queue[int]:
        stream = self.streams[job] = asyncio.Queue()
        self.replica.add(job)
        self.work.set()
        return stream

    async def run(self) -> None:
        due = 0.0
        while True:
            if self.replica.idle:
                self.work.clear()
                await self.work.wait()
                due = 0.0
            begin = due or monotonic()  # steps follow each other without a gap, even if the loop was late
            seconds = await self.compute(self.replica)
            due = begin + seconds * self.dilation
            left = due - monotonic()
            if left > 0:
                await asyncio.sleep(left)
            self.lag.add(max(0.0, monotonic() - due) / self.dilation)
            if monotonic() - due > 0.2 * self.dilation * seconds:
                due = 0.0  # too late to catch up: the clock goes on from now
            rows = [row.job for row in self.replica.rows if row.samples]
            _, ended = self.replica.finish(0)
            for job in rows:
                self.streams[job].put_nowait(1)
            for job in ended:
                self.queries += job.prompt
                self.hits += job.cached
                self.streams.pop(job).put_nowait(-1)

    def metrics(self) -> bytes:
        replica, blocks = self.replica, self.replica.blocks
        values = {
            "num_requests_running": len(replica.running),
            "num_requests_waiting": len(replica.waiting),
            "kv_cache_usage_perc": blocks.held / blocks.total,
            "prefix_cache_queries_total": self.queries,
            "prefix_cache_hits_total": self.hits,
            "num_preemptions_total": replica.preemptions,
        }
        lines = []
        for name, value in values.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE vllm:{name} {kind}", f'vllm:{name}{{engine="0",model_name="m"}} {float(value)}']
        config = f'block_size="{replica.limits.block_tokens}",enable_prefix_caching="True",engine="0"'
        config += f',num_gpu_blocks="{blocks.total}"'
        lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{config}}} 1.0"]
        return ("\n".join(lines) + "\n").encode()


class Gpu:
    """One thread that computes the steps of all replicas, one at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[Replica], float]) -> None:
        """`clock` computes a step of a replica, and returns how long it took."""
        self.loop, self.clock = loop, clock
        self.jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def compute(self, replica: Replica) -> Any:
        future = self.loop.create_future()
        self.jobs.put((replica, future))
        return future

    def _run(self) -> None:
        while True:
            replica, future = self.jobs.get()
            self.loop.call_soon_threadsafe(future.set_result, self.clock(replica))


class Server:
    """The replicas' HTTP interface; each replica has a port."""

    def __init__(
        self, backend: Backend, limits: Limits, count: int, dilation: float, model: str, vocabulary: int, clock: Any
    ) -> None:
        gpu = Gpu(asyncio.get_running_loop(), clock)
        self.prompts, self.model, self.size = Prompts(vocabulary), model, limits.block_tokens
        self.engines = [
            Engine(f"instance-{place}", Replica(backend, limits, place * limits.blocks), gpu.compute, dilation)
            for place in range(count)
        ]
        self.tasks: list[asyncio.Task[None]] = []
        self.number = 0
        self.jobs: list[Job] = []

    async def start(self) -> dict[str, str]:
        urls = {}
        for engine in self.engines:
            handle = self._handler(engine)
            server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 24)
            self.tasks.append(asyncio.create_task(engine.run()))
            urls[engine.name] = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return urls

    def _handler(self, engine: Engine) -> Any:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                    fields = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
                    body = await reader.readexactly(int(fields.get("content-length", "0")))
                    await self._answer(engine, head[0].split(" ")[1], body, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        return handle

    async def _answer(self, engine: Engine, target: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        name = engine.name.encode()
        if not body:
            pages = {"/metrics": (b"text/plain; version=0.0.4", engine.metrics())}
            models = {"object": "list", "data": [{"id": self.model, "object": "model"}]}
            pages["/v1/models"] = (b"application/json", json.dumps(models).encode())
            kind, page = pages.get(target, (b"text/plain", b""))
            writer.write(HEAD % (200, kind, name, b"content-length: %d\r\n" % len(page)) + page)
            return
        truth = json.loads(body)["headway"]
        path = Path(tuple(truth["path"]["keys"]), tuple(truth["path"]["ends"]))
        job = new_job(self.number, self.prompts.tokens(path), truth["output_tokens"], self.size)
        self.number += 1
        stream = engine.add(job)
        writer.write(HEAD % (200, EVENTS, name, b"transfer-encoding: chunked\r\n"))
        while await stream.get() > 0:
            writer.write(b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK))
        self.prompts.answers[truth["output_key"]] = job.tokens[job.prompt :]
        self.jobs.append(job)
        usage = {"prompt_tokens": job.prompt, "completion_tokens": job.generated}
        usage["prompt_tokens_details"] = {"cached_tokens": job.cached}
        last = b'data: {"choices":[],"usage":%b}\n\ndata: [DONE]\n\n' % json.dumps(usage).encode()
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))
