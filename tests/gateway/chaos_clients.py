"""Clients of a gateway under faults, and what became of each of their requests."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from random import Random

import aiohttp

SERVED, ERROR, BROKEN, CUT, SILENT, VANISHED = "served", "error", "broken stream", "cut", "no answer", "vanished"
PATIENCE_S = 60.0
DEADLINE = "20s"


@dataclass(slots=True)
class Asked:
    """A request: when it began and ended, how, and the status or the error that the client could read."""

    began: float
    stream: bool
    ended: float = 0.0
    outcome: str = SILENT
    status: int = 0
    engine: str = ""
    text: str = ""


@dataclass
class Clients:
    """Sends requests at a fixed rate, and records the outcome of each. Of the clients, a small share vanishes."""

    url: str
    model: str
    rate: float
    rng: Random
    asked: list[Asked] = field(default_factory=list)
    vanishing: float = 0.01

    async def run(self, seconds: float) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        tasks: set[asyncio.Task[None]] = set()
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            begin, sent = time.monotonic(), 0
            while (now := time.monotonic() - begin) < seconds:
                while sent < now * self.rate:
                    sent += 1
                    task = asyncio.create_task(self._ask(session))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                await asyncio.sleep(0.01)
            if tasks:
                await asyncio.wait(tasks)

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        rng = self.rng
        asked = Asked(time.monotonic(), rng.random() < 0.5)
        self.asked.append(asked)
        body = {
            "model": self.model,
            "stream": asked.stream,
            "max_tokens": rng.randrange(4, 20),
            "messages": [
                {"role": "system", "content": f"You are assistant {rng.randrange(8)}. " + "Be brief. " * 40},
                {"role": "user", "content": f"Question {len(self.asked)}"},
            ],
        }
        vanish = rng.random() < self.vanishing
        try:
            await asyncio.wait_for(self._answer(session, asked, body), rng.random() * 0.3 if vanish else PATIENCE_S)
        except TimeoutError:
            asked.outcome = VANISHED if vanish else SILENT
        except (aiohttp.ClientError, OSError, ValueError) as error:
            asked.outcome, asked.text = CUT, f"{type(error).__name__}: {error}"
        asked.ended = time.monotonic()

    async def _answer(self, session: aiohttp.ClientSession, asked: Asked, body: dict[str, object]) -> None:
        headers = {"x-headway-deadline": DEADLINE}
        async with session.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as answer:
            asked.status = answer.status
            asked.engine = answer.headers.get("x-headway-target", "")
            data = await answer.read()
        if answer.status >= 400:
            asked.outcome, asked.text = ERROR, str(json.loads(data)["error"]["message"])
        elif not asked.stream:
            asked.outcome = SERVED if json.loads(data)["choices"] else CUT
        else:
            last = data.rstrip().rsplit(b"data: ", 1)[-1]
            if last == b"[DONE]" and b'"error"' not in data:
                asked.outcome = SERVED
            elif b'"error"' in data:
                asked.outcome, asked.text = BROKEN, data[-300:].decode(errors="replace")
            else:
                asked.outcome, asked.text = CUT, "the stream ended without [DONE]"
