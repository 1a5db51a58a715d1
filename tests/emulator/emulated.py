"""Emulated engines on loopback, in a separate thread."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from waiting import until

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from headway.emulator.host import Host, Settings
from headway.experiment.engines import engine_room

CLUSTER = {"instances": 1, "latency": {"model": "fixed"}}
WORKLOAD = {"requests": 1, "rate": "1/s", "prompt_tokens": 64, "output_tokens": 8}


class Emulated:
    """Emulated engines of a cluster or a scenario; other arguments are `Settings`."""

    def __init__(self, cluster: dict[str, Any] | None = None, scenario: Any = None, **settings: Any) -> None:
        self.setup, scheduler = engine_room(
            scenario or {"workload": WORKLOAD, "cluster": {**CLUSTER, **(cluster or {})}}
        )
        self.ended: list[tuple[Any, str]] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.call(self._start(scheduler, Settings(port=0, **settings)))

    async def _start(self, scheduler: Any, settings: Settings) -> None:
        self.host = Host(asyncio.get_running_loop(), self.setup, scheduler, settings)
        for replica in self.host.replicas:
            replica.on_end = lambda flight, outcome: self.ended.append((flight, outcome))
        await self.host.start()

    def call(self, task: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(task, self.loop).result(60)

    def do(self, work: Callable[[], Any]) -> Any:
        """Call a function in the loop's thread."""

        async def run() -> Any:
            return work()

        return self.call(run())

    until = staticmethod(until)

    def url(self, replica: int = 0) -> str:
        return f"http://127.0.0.1:{self.host.replicas[replica].port}"

    def get(self, path: str, replica: int = 0) -> str:
        with urllib.request.urlopen(self.url(replica) + path, timeout=300) as answer:
            return str(answer.read().decode())

    def post(self, path: str, document: Any, replica: int = 0, **fields: str) -> Any:
        request = urllib.request.Request(self.url(replica) + path, json.dumps(document).encode(), fields)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.loads(answer.read() or b"null")

    def fault(self, mode: str, replica: int = 0, through: int | None = None, **more: Any) -> None:
        """Set the fault of a replica, and wait until it is in force."""
        name = self.host.replicas[replica].name
        self.post("/faults", {"mode": mode, "replica": name, **more}, replica if through is None else through)
        self.do(lambda: None)

    def stop(self) -> None:
        self.call(self.host.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
