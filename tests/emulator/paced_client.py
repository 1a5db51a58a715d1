"""A client that sends planned requests at their times and records the time of each token."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct


class Paced(Struct):
    due: float  # planned time of sending
    times: list[float]  # of its tokens
    usage: dict[str, Any] | None = None


def said(planned: Any) -> dict[str, Any]:
    """Return a planned request as a load generator writes it."""
    path = planned.request.path
    return {
        "prompt": "x",
        "stream": True,
        "stream_options": {"include_usage": True},
        "headway": {
            "prompt_tokens": planned.request.prompt_tokens,
            "output_tokens": planned.output_tokens,
            "output_key": planned.output_key,
            "path": {"keys": path.keys, "ends": path.ends},
        },
    }


async def drive(url: str, plan: list[Any], speed: float) -> list[Paced]:
    """Send all requests, each at its time."""
    loop = asyncio.get_running_loop()
    start = loop.time() + 0.1

    async def one(planned: Any) -> Paced:
        due = start + planned.request.arrival_ps / 1e12 / speed
        await asyncio.sleep(due - loop.time())
        return await ask(url, said(planned), due)

    return list(await asyncio.gather(*(one(planned) for planned in plan)))


async def ask(url: str, body: dict[str, Any], due: float) -> Paced:
    loop, place = asyncio.get_running_loop(), urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    data = json.dumps(body).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
    result = Paced(due, [])
    while (line := await reader.readline()) != b"data: [DONE]\n":
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            result.usage = event.get("usage") or result.usage
            result.times += [loop.time()] * len(event["choices"])
        assert line, "the connection ended"
    writer.close()
    return result
