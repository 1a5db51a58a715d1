"""The load of a scenario, and the same scenario under another: what is scaled, and in which unit people say it.

rate      requests (or sessions) a second that the tenants send together; every rate is scaled alike
users     of closed loops, in whole users
speed     of a trace that comes as recorded; its think times shrink with it
load      a plain factor, where a workload has more than one of these
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
FASTEST: Final = 1_000_000  # a trace's speed
SUFFIX: Final = {"rate": "/s", "users": " users", "speed": " × speed", "load": " × load"}


class Change(NamedTuple):
    """A value of a resolved workload that grows with the load: where it is, and what it is under so much more."""

    path: tuple[str, ...]
    scale: Callable[[Any, Fraction], Any]


class Load(Struct, frozen=True):
    """What a scenario's load is made of."""

    unit: str
    base: Fraction  # what the scenario itself has, in that unit
    changes: list[Change]
    why_not: str | None = None  # it cannot be scaled

    def scale(self, workload: Json, value: Fraction) -> Json:
        """A resolved workload under another load."""
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
        """A load near this one that is short to write: whole users, or so many digits."""
        if self.unit == "users":
            return Fraction(max(1, round(value)))
        exponent = digits - 1 - floor(log10(value))
        return Fraction(round(Fraction(value) * Fraction(10) ** exponent)) / Fraction(10) ** exponent

    def most(self, times: int) -> Fraction:
        """So many times the load of the scenario, or the most that there can be."""
        limit = {"users": MOST_USERS, "speed": FASTEST}.get(self.unit)
        most = self.base * times
        return most if limit is None else max(self.base, min(most, Fraction(limit)))

    def middle(self, low: Fraction, high: Fraction, digits: int) -> Fraction | None:
        """The load in the geometric middle; None where there is none between them."""
        middle = self.round(sqrt(low * high), digits)
        return middle if low < middle < high else None

    def describe(self, value: Fraction) -> str:
        return f"{float(value):,.6g}{SUFFIX[self.unit]}"


def load_of(scenario: Scenario) -> Load:
    """How a scenario's load is scaled."""
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
            wrong = "instants as recorded have no rate that could be scaled; give a rate, which stretches them"
            return Load("load", Fraction(1), [], f"{tenant.places['arrival']}: {wrong}.")
        elif tenant.arrival.interval is not None:
            parts.append(("rate", tenant.rate, Change((*at, "arrival", "interval"), _scale_interval)))
        else:  # its own rate, or its share of the common one
            path = ("rate",) if tenant.given_rate is None else (*at, "rate")
            parts.append(("rate", tenant.rate, Change(path, _scale_rate)))
    units = {unit for unit, _, _ in parts}
    changes = list(dict.fromkeys(change for _, _, change in parts))  # the common rate once
    if len(units) > 1 or (units == {"users"} and len(parts) > 1):  # users of each tenant are rounded by themselves
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
