"""Which engines may get requests.

`Checks` poll each engine's health path periodically. `Health` counts failed requests: several failures in a row eject
an engine for a while; after that a check must pass, and one more failure ejects it again. The last engine that serves a
model is never ejected: requests that no engine can answer must not eject all of them.
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

    Probe = Callable[[Backend], Awaitable[bool]]

log = logging.getLogger("headway.gateway")
Few = Annotated[int, Meta(ge=1, le=1000)]
SOON_S: Final = 1.0  # how soon a new engine is asked, and how often one that is out


class HealthSettings(Struct, frozen=True):
    """The section `health:` of a gateway's file."""

    failures: Annotated[Few, "requests in a row that fail and take an engine out"] = 3
    eject_s: Annotated[PositiveSeconds, "for so long"] = 5.0
    path: Annotated[str | None, "that engines are asked for; null: none is asked"] = "/health"
    interval_s: Annotated[PositiveSeconds, "from one check of an engine to the next"] = 5.0
    timeout_s: Annotated[PositiveSeconds, "of one check"] = 2.0
    fall: Annotated[Few, "checks that fail in a row, until an engine is out"] = 3
    rise: Annotated[Few, "checks that pass in a row, until it is in again"] = 2


class Pulse:
    """The result of an engine's checks. One that has never answered is down at its first failure and up at its first
    success."""

    def __init__(self) -> None:
        self.up = True
        self.known = False  # it has answered once
        self.row = 0  # checks in a row that contradict `up`

    def turned(self, passed: bool, fall: int, rise: int) -> bool:
        """Count a check; return whether it turns the engine up or down."""
        needed = (fall if self.up else rise) if self.known else 1
        self.known = self.known or passed
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
            self.health.probe = self.passes

    async def stop(self) -> None:
        self.health.probe = None
        await self.follower.stop()

    async def _follow(self, backend: Backend) -> None:
        interval, pulse = self.settings.interval_s, self.pulses[backend]
        soon = min(interval, SOON_S)
        await asyncio.sleep(soon * turn(backend))
        while True:
            why = await self._check(backend)
            if pulse.turned(not why, self.settings.fall, self.settings.rise):
                log.warning("%s: %s", backend.name, f"fails its health check: {why}" if why else "is well again")
                self.fleet.ready(backend.name, not why, why)
            await asyncio.sleep(interval if pulse.up and not pulse.row else soon)

    async def passes(self, backend: Backend) -> bool:
        """Check an engine once, now."""
        return not await self._check(backend)

    async def _check(self, backend: Backend) -> str:
        """Return what is wrong, or an empty text. An engine without such a path answers 404, and is well."""
        assert self.settings.path is not None
        try:
            status = await self.poller.status(backend, self.settings.path)
        except PollFailed as error:
            return str(error)
        except Exception as error:  # an uncaught exception would end the checks of this engine
            log.exception("%s: its health cannot be asked", backend.name)
            return type(error).__name__
        return f"status {status}" if status >= 500 else ""


class Health:
    def __init__(self, clock: Clock, fleet: Fleet, failures: int = 3, open_s: float = 5.0) -> None:
        self.clock, self.fleet, self.failures, self.open_s = clock, fleet, failures, open_s
        self.probe: Probe | None = None  # checks an engine that is to be let in again

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
            self.clock.call_later(self.open_s, self._again, backend)

    def _again(self, backend: Backend) -> None:
        """Let it in again, after a passed check where there are checks."""
        if self.fleet.backend(backend.name) is backend:
            self.clock.spawn(self._let_in(backend, self.probe))

    async def _let_in(self, backend: Backend, probe: Probe | None) -> None:
        if probe is not None and not await probe(backend):
            self.clock.call_later(self.open_s, self._again, backend)
            return
        backend.ejected = False
        backend.failures = self.failures - 1  # one more ejects it again
        self.fleet.settle(backend)
