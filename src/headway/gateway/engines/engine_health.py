"""Health of engines. Unhealthy and ejected engines receive no requests.

`Checks` polls the health path of each engine. `Health` counts failed requests: several failures in a row eject the
engine for some seconds. The engine returns after a passed check, and one more failure ejects it again. `Health` never
ejects the last engine of a model, because a request that fails on every engine could otherwise eject them all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, Struct

from headway.config.keys import PositiveSeconds
from headway.gateway.engines.follower import Follower, Poller, PollFailed, turn

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Backend, Fleet
    from headway.gateway.live_clock import Clock

    Probe = Callable[[Backend], Awaitable[str]]

log = logging.getLogger("headway.gateway")
Few = Annotated[int, Meta(ge=1, le=1000)]
SOON_S: Final = 1.0  # interval of checks for new and unhealthy engines


class HealthSettings(Struct, frozen=True):
    """The section `health:` of a gateway's file."""

    failures: Annotated[Few, "failed requests in a row after which the gateway ejects an engine"] = 3
    eject_s: Annotated[PositiveSeconds, "time for which an ejected engine receives no requests"] = 5.0
    path: Annotated[str | None, "path of the health check, or null for no checks"] = "/health"
    interval_s: Annotated[PositiveSeconds, "time between two checks of an engine"] = 5.0
    timeout_s: Annotated[PositiveSeconds, "time limit of one check"] = 2.0
    fall: Annotated[Few, "failed checks in a row after which an engine is unhealthy"] = 3
    rise: Annotated[Few, "passed checks in a row after which it is healthy again"] = 2


class Pulse:
    """Whether an engine is up, judging by its health checks. Several equal results in a row are needed to change the
    state. Until the first check has passed, a single result is enough."""

    def __init__(self) -> None:
        self.up = True
        self.answered = False
        self.row = 0  # number of consecutive checks whose result contradicts `up`

    def turned(self, passed: bool, fall: int, rise: int) -> bool:
        """Count the result of a check. Return whether this result turns the engine's state from up to down, or from
        down to up."""
        needed = (fall if self.up else rise) if self.answered else 1
        self.answered = self.answered or passed
        if passed == self.up:
            self.row = 0
            return False
        self.row += 1
        if self.row < needed:
            return False
        self.up, self.row = passed, 0
        return True


class Checks:
    def __init__(self, clock: Clock, fleet: Fleet, health: Health, settings: HealthSettings) -> None:
        self.fleet, self.health, self.settings = fleet, health, settings
        self.poller = Poller(settings.timeout_s, 0)
        self.follower = Follower(clock, fleet, self.poller, self._follow, Pulse)
        self.pulses = self.follower.states

    async def start(self) -> None:
        if self.settings.path is not None:
            await self.follower.start()
            self.health.probe = self.check

    async def stop(self) -> None:
        self.health.probe = None
        await self.follower.stop()

    async def _follow(self, backend: Backend) -> None:
        interval, pulse = self.settings.interval_s, self.pulses[backend]
        soon = min(interval, SOON_S)
        await asyncio.sleep(soon * turn(backend))
        while True:
            why = await self.check(backend)
            if pulse.turned(not why, self.settings.fall, self.settings.rise):
                log.warning("%s: %s", backend.name, f"health checks fail: {why}" if why else "health checks pass again")
                self.fleet.ready(backend.name, not why, why)
            await asyncio.sleep(interval if pulse.up and not pulse.row else soon)

    async def check(self, backend: Backend) -> str:
        """Return why the check failed; "" if it passed. A 404 passes: the engine answers, but has no such path."""
        assert self.settings.path is not None
        try:
            status = await self.poller.status(backend, self.settings.path)
        except PollFailed as error:
            return str(error)
        except Exception as error:  # an uncaught exception would end the checks of this engine
            log.exception("%s: the health check raised an exception", backend.name)
            return type(error).__name__
        return f"status {status}" if status >= 500 else ""


class Health:
    def __init__(self, clock: Clock, fleet: Fleet, failures: int = 3, open_s: float = 5.0) -> None:
        self.clock, self.fleet, self.failures, self.open_s = clock, fleet, failures, open_s
        self.probe: Probe | None = None  # checks an ejected engine: returns why it cannot serve yet, or ""

    def record_status(self, backend: Backend, status: int) -> None:
        if status >= 500:
            self.record_failure(backend, f"status {status}")
        else:
            backend.failures = 0

    def record_failure(self, backend: Backend, why: str) -> None:
        backend.failures += 1
        if backend.failures >= self.failures and not backend.ejected and self.fleet.spares(backend):
            backend.ejected = True
            self.fleet.settle(backend)
            self._readmit_later(backend)

    def _readmit_later(self, backend: Backend) -> None:
        self.clock.call_later(self.open_s, lambda: self.clock.spawn(self._readmit(backend)))

    async def _readmit(self, backend: Backend) -> None:
        """Check an ejected engine. If the check passes, or if no checks are configured, end the ejection. Otherwise try
        again later."""
        if self.fleet.names.get(backend.name) is not backend:
            return
        if self.probe is not None and await self.probe(backend):
            self._readmit_later(backend)
            return
        backend.ejected = False
        backend.failures = self.failures - 1  # so that one more failure ejects the engine again
        self.fleet.settle(backend)
