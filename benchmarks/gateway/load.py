"""Load clients: each keeps one connection and sends its next request as soon as it is answered, or at a fixed interval.
They use 64 prompts in turn.

python load.py PORT --clients 32 --seconds 3 --prompt-bytes 200 [--rate 167] [--stream]  prints one JSON document."""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httptools
import uvloop

PROMPTS = 64
Connect = Callable[["Client"], Coroutine[Any, Any, Any]]
KEY = "sk-benchmark-of-gateways"  # LiteLLM requires a key


def prompts(prompt_bytes: int, stream: bool, key: str = KEY) -> list[bytes]:
    found = []
    for number in range(PROMPTS):
        text = (f"Prompt {number} of many, " * (1 + prompt_bytes // 20))[:prompt_bytes]
        body = json.dumps({"model": "dummy", "messages": [{"role": "user", "content": text}], "stream": stream})
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        found.append((head + body).encode())
    return found


class Load:
    """The measurements of all clients together."""

    def __init__(
        self, asked: list[bytes], every_s: float = 0.0, connect: Connect | None = None, enough: int | None = None
    ) -> None:
        """`connect` opens a connection for each request; None: clients keep their connections. `enough`: number of
        requests after which clients stop."""
        self.connect, self.enough = connect, enough
        self.asked, self.every_s = asked, every_s  # `every_s`: interval between a client's requests; 0: no wait
        self.count = self.errors = self.reads = 0
        self.latencies: list[float] = []
        self.firsts: list[float] = []
        self.over = False
        self.opening: set[asyncio.Task[Any]] = set()


class Client(asyncio.Protocol):
    def __init__(self, load: Load, number: int) -> None:
        self.load, self.turn = load, number * 7
        self.loop = asyncio.get_running_loop()
        self.due = self.loop.time() + load.every_s
        self.done = self.loop.create_future()
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        if self.load.over:
            self.transport.close()
            return
        self.parser: Any = httptools.HttpResponseParser(self)
        self.first = 0.0
        self.began = time.perf_counter()
        self.transport.write(self.load.asked[self.turn % PROMPTS])
        self.turn += 1

    def data_received(self, data: bytes) -> None:
        self.load.reads += 1
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        if not self.first:
            self.first = time.perf_counter()

    def on_message_complete(self) -> None:
        load = self.load
        load.count += 1
        load.over |= load.count == load.enough
        load.errors += self.parser.get_status_code() != 200
        load.latencies.append(time.perf_counter() - self.began)
        load.firsts.append(self.first - self.began)
        self.due += load.every_s
        if load.connect is not None:
            self.transport.close()
            return
        self.loop.call_at(self.due, self.ask) if load.every_s else self.loop.call_soon(self.ask)

    def connection_lost(self, error: Exception | None) -> None:
        load = self.load
        if load.connect is not None and not load.over:
            load.opening.add(task := self.loop.create_task(load.connect(self)))
            task.add_done_callback(load.opening.discard)
            return
        load.errors += not load.over
        if not self.done.done():
            self.done.set_result(None)


def share(values: list[float], part: float) -> float:
    """Return the quantile `part` of values in seconds, in milliseconds."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] * 1e3 if values else float("nan")


async def run(
    port: int,
    clients: int,
    seconds: float,
    prompt_bytes: int,
    stream: bool,
    rate: float = 0.0,
    key: str = KEY,
    tls: bool = False,
    reconnect: bool = False,
    requests: int | None = None,
) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    context = ssl._create_unverified_context() if tls else None

    async def connect(client: Client) -> None:
        try:
            await loop.create_connection(lambda: client, "127.0.0.1", port, ssl=context)
        except OSError:
            client.load.errors += not client.load.over
            client.done.set_result(None)

    interval_s = clients / rate if rate else 0.0
    load = Load(prompts(prompt_bytes, stream, key), interval_s, connect if reconnect else None, requests)
    started = time.perf_counter()
    made = []
    for number in range(clients):
        made.append(Client(load, number))
        await connect(made[-1])
        await asyncio.sleep(load.every_s / clients)  # with a rate, the clients start evenly spaced
    await asyncio.wait([client.done for client in made], timeout=seconds - load.every_s)
    load.over = True
    await asyncio.wait([client.done for client in made], timeout=30)
    return {
        "requests": load.count,
        "errors": load.errors,
        "per_s": load.count / (time.perf_counter() - started),
        "p50_ms": share(load.latencies, 0.5),
        "p99_ms": share(load.latencies, 0.99),
        "ttft_p50_ms": share(load.firsts, 0.5),
        "ttft_p99_ms": share(load.firsts, 0.99),
        "reads": load.reads / max(1, load.count),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--requests", type=int, help="stop after this many requests, or after the time")
    parser.add_argument("--prompt-bytes", type=int, default=200)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second of all clients; 0: all they can")
    parser.add_argument("--key", default=KEY)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--reconnect", action="store_true", help="one connection a request")
    given = parser.parse_args()
    found = run(**vars(given))
    print(json.dumps(uvloop.run(found)))


if __name__ == "__main__":
    main()
