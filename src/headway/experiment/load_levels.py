"""The load of a scenario: its unit, and how a plan scales it.

rate      requests (or sessions) per second of all tenants; every tenant's rate scales by the same factor
users     number of users of a closed loop, an integer
speed     speed of a trace with recorded arrival times; its think times scale too
load      a factor, for a workload with more than one of these units
"""

from collections.abc import Callable
from copy import deepcopy
from fractions import Fraction
from functools import reduce
from math import floor, log10, sqrt
from operator import getitem
from typing import Any, Final, NamedTuple

from msgspec import Struct

from headway.config.units import duration_ps, rate
from headway.errors import HeadwayError
from headway.scenario.scenario import Scenario
from headway.types import Json
from headway.workload.clients import MOST_USERS

WHERE: Final = "workload"
FASTEST: Final = 1_000_000  # highest speed of a trace
SUFFIX: Final = {"rate": "/s", "users": " users", "speed": " × speed", "load": " × load"}


class Change(NamedTuple):
    """A value of a resolved workload that depends on the load: its path, and a function that returns the value after
    the load was multiplied by a factor."""

    path: tuple[str, ...]
    scale: Callable[[Any, Fraction], Any]


class Load(Struct, frozen=True):
    """The load of a scenario."""

    unit: str
    base: Fraction  # the scenario's own load, in `unit`
    changes: list[Change]
    why_not: str | None = None  # why the load cannot be scaled; None if it can be scaled

    def scale(self, workload: Json, value: Fraction) -> Json:
        """Return a resolved workload at another load."""
        if value == self.base:
            return workload
        if self.why_not is not None:
            raise HeadwayError(self.why_not)
        changed = deepcopy(workload)
        for change in self.changes:
            *parents, key = change.path
            section: Any = reduce(getitem, parents, changed)
            section[key] = change.scale(section[key], value / self.base)
        return changed

    def round(self, value: float | Fraction, digits: int) -> Fraction:
        """Round a load to whole users, or to `digits` significant digits."""
        if self.unit == "users":
            return Fraction(max(1, round(value)))
        exponent = digits - 1 - floor(log10(value))
        return Fraction(round(Fraction(value) * Fraction(10) ** exponent)) / Fraction(10) ** exponent

    def most(self, times: int) -> Fraction:
        """Return the scenario's load multiplied by `times`, but at most the highest possible load."""
        limit = {"users": MOST_USERS, "speed": FASTEST}.get(self.unit)
        most = self.base * times
        return most if limit is None else max(self.base, min(most, Fraction(limit)))

    def middle(self, low: Fraction, high: Fraction, digits: int) -> Fraction | None:
        """Return the rounded geometric mean of two loads, or None if no rounded load is between them."""
        middle = self.round(sqrt(low * high), digits)
        return middle if low < middle < high else None

    def describe(self, value: Fraction) -> str:
        return f"{float(value):,.6g}{SUFFIX[self.unit]}"


def load_of(scenario: Scenario) -> Load:
    """Return the load of a scenario."""
    trace = scenario.workload.resolved().get("trace")
    if trace is not None:
        return _of_trace(trace)
    parts: list[tuple[str, Fraction, Change]] = []
    for tenant in scenario.workload.senders():
        at = () if scenario.workload.tenants is None else ("tenants", tenant.name)
        if tenant.closed_loop is not None:
            users = Fraction(tenant.closed_loop.concurrency)
            parts.append(("users", users, Change((*at, "closed_loop", "concurrency"), _scale_count)))
        elif tenant.rate is None:
            wrong = "recorded arrival times have no rate, so the load cannot be scaled. Set a rate to stretch the times"
            return Load("load", Fraction(1), [], f"{tenant.places['arrival']}: {wrong}.")
        elif tenant.arrival.interval is not None:
            parts.append(("rate", tenant.rate, Change((*at, "arrival", "interval"), _scale_interval)))
        else:  # the tenant has its own rate, or a fraction of the workload's rate
            path = ("rate",) if tenant.given_rate is None else (*at, "rate")
            parts.append(("rate", tenant.rate, Change(path, _scale_rate)))
    units = {unit for unit, _, _ in parts}
    changes = list(dict.fromkeys(change for _, _, change in parts))  # without duplicates: tenants may share a rate
    # The tenants' loads cannot be added up if their units differ, or if several tenants have users, because each number
    # of users is rounded. In these cases, a load is a multiple of the scenario's load.
    if len(units) > 1 or (units == {"users"} and len(parts) > 1):
        return Load("load", Fraction(1), changes)
    return Load(units.pop(), sum((each for _, each, _ in parts), Fraction(0)), changes)


def _of_trace(trace: Json) -> Load:
    starts = trace.get("starts") or {}
    if starts.get("rate") is not None:
        base = rate(starts["rate"], f"{WHERE}.trace.starts.rate")
        return Load("rate", base, [Change(("trace", "starts", "rate"), _scale_rate)])
    if starts.get("users") is not None:
        return Load("users", Fraction(starts["users"]), [Change(("trace", "starts", "users"), _scale_count)])
    return Load("speed", Fraction(str(trace["speed"])), [Change(("trace", "speed"), _scale_speed)])


def _scale_rate(text: str, factor: Fraction) -> str:
    return f"{float(rate(text, WHERE) * factor):.12g}/s"


def _scale_interval(text: str, factor: Fraction) -> str:
    return f"{max(1, round(duration_ps(text, WHERE) / factor))}ps"


def _scale_count(count: int, factor: Fraction) -> int:
    return max(1, round(count * factor))


def _scale_speed(speed: float, factor: Fraction) -> float:
    return float(Fraction(str(speed)) * factor)
