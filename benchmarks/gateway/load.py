"""Load clients: each keeps one connection and sends its next request as soon as it is answered, or at a fixed interval.
They use 64 prompts in turn.

python load.py PORT --clients 32 --seconds 3 --prompt-bytes 200 [--rate 167] [--stream]  prints one JSON document."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import httptools
import uvloop

PROMPTS = 64
KEY = "sk-benchmark-of-gateways"  # LiteLLM requires a key


def requests(prompt_bytes: int, stream: bool) -> list[bytes]:
    found = []
    for number in range(PROMPTS):
        text = (f"Prompt {number} of many, " * (1 + prompt_bytes // 20))[:prompt_bytes]
        body = json.dumps({"model": "dummy", "messages": [{"role": "user", "content": text}], "stream": stream})
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        found.append((head + body).encode())
    return found


class Load:
    """The measurements of all clients together."""

    def __init__(self, asked: list[bytes], every_s: float = 0.0) -> None:
        self.asked, self.every_s = asked, every_s  # `every_s`: interval between a client's requests; 0: no wait
        self.count = self.errors = self.reads = 0
        self.latencies: list[float] = []
        self.firsts: list[float] = []
        self.over = False


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
        load.errors += self.parser.get_status_code() != 200
        load.latencies.append(time.perf_counter() - self.began)
        load.firsts.append(self.first - self.began)
        self.due += load.every_s
        self.loop.call_at(self.due, self.ask) if load.every_s else self.loop.call_soon(self.ask)

    def connection_lost(self, error: Exception | None) -> None:
        self.load.errors += not self.load.over
        if not self.done.done():
            self.done.set_result(None)


def share(values: list[float], part: float) -> float:
    """Return the quantile `part` of values in seconds, in milliseconds."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] * 1e3 if values else float("nan")


async def run(
    port: int, clients: int, seconds: float, prompt_bytes: int, stream: bool, rate: float = 0.0
) -> dict[str, Any]:
    load = Load(requests(prompt_bytes, stream), clients / rate if rate else 0.0)
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    made = []
    for number in range(clients):
        made.append(await loop.create_connection(lambda number=number: Client(load, number), "127.0.0.1", port))
        await asyncio.sleep(load.every_s / clients)  # with a rate, the clients start evenly spaced
    await asyncio.sleep(seconds - load.every_s)
    load.over = True
    await asyncio.wait([client.done for _, client in made], timeout=30)
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
    parser.add_argument("--prompt-bytes", type=int, default=200)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second of all clients; 0: all they can")
    given = parser.parse_args()
    found = run(given.port, given.clients, given.seconds, given.prompt_bytes, given.stream, given.rate)
    print(json.dumps(uvloop.run(found)))


if __name__ == "__main__":
    main()
