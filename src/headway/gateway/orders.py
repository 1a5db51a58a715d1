"""Operator commands, such as swapping policies or cordoning engines. All processes of a gateway carry them out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from headway.config.dated_defaults import Dated
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

LOGGED: Final = 20  # of each arm, the first LOGGED failures are logged, and then every thousandth failure
log = logging.getLogger("headway.gateway")


class Failures(Struct):
    """Failed policy decisions: their count for each arm (`live` or `canary`), the last error, and the last fallback."""

    count: dict[str, int]
    last: str | None = None
    fell_back: Json | None = None


class PolicySwitch:
    """Puts new policies in force, and counts policy failures. `defaults` supplies the policies of omitted stages."""

    def __init__(self, clock: Clock, plane: Plane, waiting: Waiting, defaults: Dated) -> None:
        self.clock, self.plane, self.waiting, self.defaults = clock, plane, waiting, defaults
        self.failures = Failures({"live": 0, "canary": 0})
        self.on_change: list[Callable[[str], None]] = []  # called with the reason when the policies change
        plane.versions.on_failure, plane.versions.on_change = self._policy_failed, self._policies_changed

    @property
    def policies(self) -> dict[str, Any]:
        return self.plane.policies

    def swap(self, policies: str | dict[str, Any], source: str) -> None:
        """Put new policies in force. If they are invalid, raise HeadwayError and keep the old ones."""
        target = read_policies(policies, self.defaults)
        if target == self.plane.policies:
            return
        self.waiting.carry_out(self.plane.swap(self.clock.now_ps(), target))
        log.info("policies: version %d from %s: routing %s", self.plane.version, source, target["routing"])

    def _policy_failed(self, arm: str, error: Exception) -> None:
        failures = self.failures
        count = failures.count[arm] = failures.count.get(arm, 0) + 1
        failures.last = one_line(error)
        if count <= LOGGED or count % 1000 == 0:
            log.warning("policies: failure %d of the %s policies; a fallback decides: %s", count, arm, failures.last)
        self.waiting.wake_soon()

    def _policies_changed(self, why: str) -> None:
        if why == "failure":
            version, routing = self.plane.version, self.plane.policies["routing"]
            self.failures.fell_back = {"version": version, "routing": routing, "why": self.failures.last}
            log.error("policies: too many failures; fall back to version %d with routing %s", version, routing)
        for listener in self.on_change:
            listener(why)


class Orders:
    def __init__(self, clock: Clock, plane: Plane, fleet: Fleet, shadows: Shadows, switch: PolicySwitch) -> None:
        self.clock, self.plane, self.fleet, self.shadows, self.switch = clock, plane, fleet, shadows, switch
        self.pass_on: Callable[..., None] | None = None  # sends an order to the other processes; None: no other process

    def give(self, *order: Any) -> None:
        """Carry out an order here and in the other processes."""
        self.obey(list(order))
        if self.pass_on is not None:
            self.pass_on(*order)

    def obey(self, order: list[Any]) -> None:
        """Carry out an order, which is a list [kind, value]. If the order cannot be carried out, raise HeadwayError."""
        kind, value = order
        actions: dict[str, Callable[[Any], None]] = {
            "cordon": self._cordon,
            "uncordon": self._uncordon,
            "swap": lambda policies: self.switch.swap(policies, "admin"),
            "halt": lambda why: self.plane.halt(self.clock.now_ps(), why),
            "shadows": lambda candidates: self.shadows.offer("admin", read_shadows(candidates)),
            "admin": lambda members: self.fleet.offer("admin", msgspec.convert(members, dict[str, BackendSpec])),
        }
        actions[kind](value)

    def _cordon(self, name: str) -> None:
        if name not in self.fleet.cordoned:
            log.info("admin: %s is cordoned and drains", name)
        self.fleet.cordon(name)

    def _uncordon(self, name: str) -> None:
        if name in self.fleet.cordoned:
            log.info("admin: the cordon of %s is lifted", name)
        self.fleet.uncordon(name)

    def in_effect(self) -> list[list[Any]]:
        """Return the orders that are in effect, so that a new process can carry them out."""
        orders: list[list[Any]] = [["cordon", name] for name in self.fleet.cordoned]
        if self.plane.version:
            orders.append(["swap", self.plane.policies])
        if candidates := self.shadows.sources["admin"]:
            orders.append(["shadows", {name: spec.plain for name, spec in candidates.items()}])
        if members := self.fleet.sources["admin"]:
            orders.append(["admin", msgspec.to_builtins(members)])
        return orders
