"""Which engines can be sent to: failures in a row take one out for a while, and once it is in again one more does. The
last one that serves a model stays: requests that no engine can answer must not take all of them out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.gateway.clock import Clock
    from headway.gateway.engines.backend import Backend
    from headway.gateway.engines.fleet import Fleet

    Probe = Callable[[Backend], Awaitable[bool]]


class Health:
    def __init__(self, clock: Clock, fleet: Fleet, failures: int = 3, open_s: float = 5.0) -> None:
        self.clock, self.fleet, self.failures, self.open_s = clock, fleet, failures, open_s
        self.probe: Probe | None = None  # of those who can ask an engine whether it lives

    def answered(self, backend: Backend, status: int) -> None:
        if status >= 500:
            self.failed(backend, f"status {status}")
        else:
            backend.failures = 0

    def failed(self, backend: Backend, why: str) -> None:
        backend.failures += 1
        if backend.failures >= self.failures and not backend.ejected and self.fleet.spares(backend):
            backend.ejected = True
            self.fleet.settle(backend)
            self.clock.call_later(self.open_s, self._again, backend)

    def _again(self, backend: Backend) -> None:
        """Where engines can be asked whether they live, it is let in when it says so."""
        if self.fleet.backend(backend.name) is not backend:
            return
        if self.probe is None:
            self._let_in(backend)
            return
        self.clock.spawn(self._asked(backend, self.probe))

    async def _asked(self, backend: Backend, probe: Probe) -> None:
        if await probe(backend):
            self._let_in(backend)
        else:
            self.clock.call_later(self.open_s, self._again, backend)

    def _let_in(self, backend: Backend) -> None:
        """One failure more takes it out again."""
        backend.ejected = False
        backend.failures = self.failures - 1
        self.fleet.settle(backend)
