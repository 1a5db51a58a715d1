"""The emulated engines behind the router under test. They run in a thread of this process, so that the checks can see
which requests each engine receives."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from headway.emulator.faults import Fault
from headway.emulator.host import Host, Settings
from headway.experiment.engines import engine_room

STEP_MS: Final = 40  # duration of a step in ms, long enough to distinguish tokens by their arrival times
LATENCY: Final = {"model": "fixed", "decode_tokens_per_s": 1000 // STEP_MS, "prefill_tokens_per_s": 200_000}
CALL_S: Final = 30.0


class Engines:
    def __init__(self, count: int, address: str = "127.0.0.1", port: int = 0) -> None:
        scenario = {
            "workload": {"requests": 1, "rate": "1/s", "prompt_tokens": 64, "output_tokens": 8},
            "cluster": {"instances": count, "latency": LATENCY},
        }
        setup, scheduler = engine_room(scenario)
        self.ended: list[tuple[str, str]] = []  # engine's name and outcome of each ended request
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def start() -> None:
            self.host = Host(self._loop, setup, scheduler, Settings(address, port))
            for replica in self.host.replicas:
                replica.on_end = lambda flight, how: self.ended.append((flight.replica.name, how))
            await self.host.start()

        self._call(start())

    def _call(self, task: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(task, self._loop).result(CALL_S)

    @property
    def urls(self) -> list[str]:
        return [f"http://{self.host.address}:{replica.port}" for replica in self.host.replicas]

    @property
    def model(self) -> str:
        return self.host.replicas[0].model

    def counts(self) -> list[int]:
        """Return the number of requests that each engine has received."""
        return [replica.instance.stats.requests for replica in self.host.replicas]

    def gains(self, before: list[int]) -> list[int]:
        """Return how many requests each engine has received since `before`, an earlier result of `counts`."""
        return [new - old for old, new in zip(before, self.counts(), strict=True)]

    def strike(self, mode: Any, engine: int | None = None, **more: Any) -> None:
        """Inject a fault into one engine; if `engine` is None, into all engines."""

        async def run() -> None:
            for index, replica in enumerate(self.host.replicas):
                if engine in (None, index):
                    replica.set_fault(Fault(mode, **more))
            await asyncio.sleep(0)

        self._call(run())

    def wait_until_back(self) -> None:
        """Wait until every engine serves again after a crash."""
        self.until(lambda: all(replica.server is not None for replica in self.host.replicas), CALL_S)

    def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition holds. Return False if it does not hold within `seconds`."""
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def stop(self) -> None:
        self._call(self.host.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
