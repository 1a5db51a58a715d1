"""A gateway on loopback, in a separate thread, with fake engines."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from fake_engine import Engine
from msgspec.structs import replace

from headway.gateway.app import App
from headway.gateway.config import Config
from waiting import until


class Live:
    """Engines and a gateway in front of them, which run until the test ends."""

    def __init__(self, engines: int, **more: Any) -> None:
        self.engines = [Engine(f"e{number}") for number in range(engines)]
        self.more = more
        self.loop = more.pop("new_loop", asyncio.new_event_loop)()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.call(self._start())

    async def _start(self) -> None:
        for engine in self.engines:
            await engine.start()
        members = self.more.pop("members", {})  # keys of engines besides `url`, by name
        backends = {
            engine.name: {"url": f"http://127.0.0.1:{engine.port}", **members.get(engine.name, {})}
            for engine in self.engines
        }
        peers = self.more.pop("with_peers", None)  # of processes of one gateway, which no file can name
        config = Config.load({"listen": "127.0.0.1:0", "backends": backends, **self.more})
        config = config if peers is None else replace(config, peers=peers)
        self.app = App(asyncio.get_running_loop(), config)
        self.server = await self.app.start()
        self.port = self.server.sockets[0].getsockname()[1]

    def call(self, task: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(task, self.loop).result(60)

    until = staticmethod(until)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def idle(self) -> bool:
        """Return whether no request is in flight and all counters are zero."""
        views = self.app.plane.views
        counts = [
            (view.inflight, view.inflight_tokens, view.pending_prefill_tokens, view.decode_tokens) for view in views
        ]
        return not self.app.plane.control.flights.by_id and not self.app.waiting and set(counts) == {(0, 0, 0, 0)}

    def stop(self) -> None:
        async def end() -> None:
            self.server.close()
            await self.app.drain(0)
            for engine in self.engines:
                assert engine.server is not None
                engine.server.close()

        self.call(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
