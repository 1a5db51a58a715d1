"""The load of a scenario, and the same scenario under another: what is scaled, and in which unit people say it.

rate      requests (or sessions) a second that the tenants send together; every rate is scaled alike
users     of closed loops, in whole users
speed     of a trace that comes as recorded; its think times shrink with it
load      a plain factor, where a workload has more than one of these
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from fractions import Fraction
from math import floor, log10, sqrt
from typing import Any, Final

from msgspec import Struct

from headway.config.units import duration_ps, rate
from headway.errors import HeadwayError
from headway.scenario.scenario import Scenario
from headway.types import Json
from headway.workload.clients import MOST_USERS

WHERE: Final = "workload"
FASTEST: Final = 1_000_000  # a trace's speed
SUFFIX: Final = {"rate": "/s", "users": " users", "speed": " × speed", "load": " × load"}
Change = Callable[[Json, Fraction], None]  # of a resolved workload, in place


class Load(Struct, frozen=True):
    """What a scenario's load is made of."""

    unit: str
    base: Fraction  # what the scenario itself has, in that unit
    changes: list[Change]
    why_not: str | None = None  # it cannot be scaled

    def scaled(self, workload: Json, value: Fraction) -> Json:
        """A resolved workload under another load."""
        if value == self.base:
            return workload
        if self.why_not is not None:
            raise HeadwayError(self.why_not)
        changed = deepcopy(workload)
        for change in self.changes:
            change(changed, value / self.base)
        return changed

    def rounded(self, value: float | Fraction, digits: int) -> Fraction:
        """A load near this one that is short to write: whole users, or so many digits."""
        if self.unit == "users":
            return Fraction(max(1, round(value)))
        exponent = digits - 1 - floor(log10(value))
        return Fraction(round(Fraction(value) * Fraction(10) ** exponent)) / Fraction(10) ** exponent

    def most(self, times: int) -> Fraction:
        """So many times the load of the scenario, or the most that there can be."""
        limit = {"users": MOST_USERS, "speed": FASTEST}.get(self.unit)
        found = self.base * times
        return found if limit is None else max(self.base, min(found, Fraction(limit)))

    def middle(self, low: Fraction, high: Fraction, digits: int) -> Fraction | None:
        """The load in the geometric middle; None where there is none between them."""
        found = self.rounded(sqrt(low * high), digits)
        return found if low < found < high else None

    def written(self, value: Fraction) -> str:
        return f"{float(value):,.6g}{SUFFIX[self.unit]}"


def load_of(scenario: Scenario) -> Load:
    """How a scenario's load is scaled."""
    trace = scenario.workload.resolved().get("trace")
    if trace is not None:
        return _of_trace(trace)
    found: list[tuple[str, Fraction, Change]] = []
    shared = False
    for tenant in scenario.workload.senders():
        name = None if scenario.workload.tenants is None else tenant.name
        if tenant.closed_loop is not None:
            found.append(("users", Fraction(tenant.closed_loop.concurrency), _users(name)))
        elif tenant.rate is None:
            wrong = "instants as recorded have no rate that could be scaled; give a rate, which stretches them"
            return Load("load", Fraction(1), [], f"{tenant.places['arrival']}: {wrong}.")
        elif tenant.arrival.interval is not None:
            found.append(("rate", tenant.rate, _interval(name)))
        elif tenant.given_rate is not None:
            found.append(("rate", tenant.rate, _own_rate(name)))
        else:
            found.append(("rate", tenant.rate, _nothing if shared else _own_rate(None)))
            shared = True
    units = {unit: None for unit, _, _ in found}
    changes = [change for _, _, change in found]
    if len(units) > 1:
        return Load("load", Fraction(1), changes)
    unit = next(iter(units))
    base = sum((each for _, each, _ in found), Fraction(0))
    if unit == "users" and len(found) > 1:  # each rounds for itself
        return Load("load", Fraction(1), changes)
    return Load(unit, base, changes)


def _of_trace(trace: Json) -> Load:
    starts = trace.get("starts") or {}
    if starts.get("rate") is not None:
        return Load("rate", rate(starts["rate"], f"{WHERE}.trace.starts.rate"), [_starts_rate])
    if starts.get("users") is not None:
        return Load("users", Fraction(starts["users"]), [_starts_users])
    return Load("speed", Fraction(str(trace["speed"])), [_speed])


def rate_text(found: Fraction) -> str:
    """A rate as a scenario has it, to twelve digits."""
    return f"{float(found):.12g}/s"


def _at(workload: Json, tenant: str | None) -> Json:
    found: Json = workload if tenant is None else workload["tenants"][tenant]
    return found


def _nothing(workload: Json, factor: Fraction) -> None:
    """For a tenant whose share of the common rate has been scaled with it."""


def _own_rate(tenant: str | None) -> Change:
    def change(workload: Json, factor: Fraction) -> None:
        keys = _at(workload, tenant)
        keys["rate"] = rate_text(rate(keys["rate"], f"{WHERE}.rate") * factor)

    return change


def _interval(tenant: str | None) -> Change:
    def change(workload: Json, factor: Fraction) -> None:
        arrival = _at(workload, tenant)["arrival"]
        arrival["interval"] = f"{max(1, round(duration_ps(arrival['interval'], WHERE) / factor))}ps"

    return change


def _users(tenant: str | None) -> Change:
    def change(workload: Json, factor: Fraction) -> None:
        loop = _at(workload, tenant)["closed_loop"]
        loop["concurrency"] = _whole(loop["concurrency"] * factor)

    return change


def _starts_rate(workload: Json, factor: Fraction) -> None:
    starts: Any = workload["trace"]["starts"]
    starts["rate"] = rate_text(rate(starts["rate"], WHERE) * factor)


def _starts_users(workload: Json, factor: Fraction) -> None:
    starts: Any = workload["trace"]["starts"]
    starts["users"] = _whole(starts["users"] * factor)


def _speed(workload: Json, factor: Fraction) -> None:
    trace: Any = workload["trace"]
    trace["speed"] = float(Fraction(str(trace["speed"])) * factor)


def _whole(value: Fraction) -> int:
    return max(1, round(value))
