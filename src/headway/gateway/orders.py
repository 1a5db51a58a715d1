"""Orders of an operator: other policies, cordons, members and candidates, for all processes of a gateway."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headway.config.wording import one_line
from headway.gateway.engines.member import BackendSpec
from headway.gateway.live_policies import read_policies
from headway.gateway.shadow.candidate import read_shadows
from headway.types import Json

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Fleet
    from headway.gateway.live_clock import Clock
    from headway.gateway.plane import Plane
    from headway.gateway.shadow.shadows import Shadows
    from headway.gateway.waiting import Waiting

LOGGED: Final = 20  # failures of one arm; beyond them every thousandth is logged
log = logging.getLogger("headway.gateway")


class Failures:
    """How often policies have failed while they decided, and what became of them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {"live": 0, "canary": 0}
        self.last: str | None = None
        self.back: Json | None = None  # the last fallback

    def add(self, arm: str, error: Exception) -> None:
        count = self.counts[arm] = self.counts.get(arm, 0) + 1
        self.last = one_line(error)
        if count <= LOGGED or count % 1000 == 0:
            log.warning("policies: %s failed, others decide (%d so far): %s", arm, count, self.last)

    def fell_back(self, version: int, routing: Any) -> None:
        self.back = {"version": version, "routing": routing, "why": self.last}
        log.error("policies: those in force failed too often; version %d takes over: routing %s", version, routing)

    def status(self) -> Json:
        return {"count": dict(self.counts), "last": self.last, "fell_back": self.back}


class PolicySwitch:
    """Puts other policies in force, and counts those that fail."""

    def __init__(self, clock: Clock, plane: Plane, waiting: Waiting, failures: Failures) -> None:
        self.clock, self.plane, self.waiting, self.failures = clock, plane, waiting, failures
        self.on_change: list[Callable[[str], None]] = []  # called with the reason when other policies take over
        plane.versions.on_failure, plane.versions.on_change = self._policy_failed, self._policies_changed

    @property
    def policies(self) -> dict[str, Any]:
        return self.plane.policies

    def swap(self, policies: str | dict[str, Any], source: str) -> None:
        """Put other policies in force. Raises HeadwayError if they are wrong; the old ones stay then."""
        target = read_policies(policies)
        if target == self.plane.policies:
            return
        self.waiting.carry_out(self.plane.swap(self.clock.now_ps(), target))
        log.info("policies: version %d from %s: routing %s", self.plane.version, source, target["routing"])

    def _policy_failed(self, arm: str, error: Exception) -> None:
        """Count the failure. A fallback has already decided on the request."""
        self.failures.add(arm, error)
        self.waiting.wake_soon()

    def _policies_changed(self, why: str) -> None:
        if why == "failure":
            self.failures.fell_back(self.plane.version, self.plane.policies["routing"])
        for hear in self.on_change:
            hear(why)


class Orders:
    def __init__(self, clock: Clock, plane: Plane, fleet: Fleet, shadows: Shadows, switch: PolicySwitch) -> None:
        self.clock, self.plane, self.fleet, self.shadows, self.switch = clock, plane, fleet, shadows, switch
        self.pass_on: Callable[..., None] | None = None  # sends an order to the other processes

    def give(self, *order: Any) -> None:
        """Carry out an order here, and pass it on to the other processes."""
        self.obey(list(order))
        if self.pass_on is not None:
            self.pass_on(*order)

    def obey(self, order: list[Any]) -> None:
        """(cordon, name), (uncordon, name), (swap, policies), (halt, why), (shadows, candidates) or (admin, members).
        Raises if it cannot be carried out."""
        kind, value = order
        if kind == "cordon":
            self.fleet.cordon(value)
        elif kind == "uncordon":
            self.fleet.uncordon(value)
        elif kind == "swap":
            self.switch.swap(value, "admin")
        elif kind == "halt":
            self.plane.halt(self.clock.now_ps(), value)
        elif kind == "shadows":
            self.shadows.offer("admin", read_shadows(value))
        elif kind == "admin":
            self.fleet.offer("admin", msgspec.convert(value, dict[str, BackendSpec]))

    def standing(self) -> list[list[Any]]:
        """Return the orders in effect, for a new process."""
        orders: list[list[Any]] = [["cordon", name] for name in self.fleet.cordoned]
        if self.plane.version:
            orders.append(["swap", self.plane.policies])
        candidates = self.shadows.sources["admin"]
        if candidates:
            orders.append(["shadows", {name: spec.plain for name, spec in candidates.items()}])
        members = self.fleet.sources["admin"]
        if members:
            orders.append(["admin", msgspec.to_builtins(members)])
        return orders
