"""Clients: what the sender of a request was promised, and how long it waits before the next one."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from headway.config.section import check_range, read
from headway.config.units import positive_duration_ps
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.results.recorder import Targets
from headway.types import Json
from headway.workload import durations
from headway.workload.traces.record import present

MOST_USERS: Final = 100_000
LONGEST_NAME: Final = 100
OPEN: Final = ("rate", "arrival", "profile", "behaviour")  # what says when sessions of an open loop begin


class Slo(Struct, frozen=True):
    """The `slo` key: targets as durations, None where nothing is promised."""

    ttft: Any = None
    tpot: Any = None
    e2e: Any = None

    def targets(self, where: str) -> Targets:
        """In picoseconds."""
        limits = {name: positive_duration(value, f"{where}.{name}") for name, value in asdict(self).items()}
        return Targets(ttft_ps=limits["ttft"], tpot_ps=limits["tpot"], e2e_ps=limits["e2e"])

    def validate(self, where: str) -> Slo:
        self.targets(where)
        return self

    def explicit(self) -> Json:
        """The key as it would be written."""
        return present(asdict(self))


class ClosedLoop(Struct, frozen=True):
    """The `closed_loop` key: so many users, each of whom has one request under way or thinks."""

    concurrency: int
    think_time: Any = "1s"

    def validate(self, where: str) -> ClosedLoop:
        check_range(self.concurrency, 1, MOST_USERS, f"{where}.concurrency")
        durations.parse(self.think_time, f"{where}.think_time")
        return self


def positive_duration(value: object, where: str) -> int | None:
    """A duration in picoseconds; None where none is given."""
    return None if value is None else positive_duration_ps(value, where)


def read_closed_loop(keys: Json, place: dict[str, str]) -> ClosedLoop | None:
    """The closed loop of a tenant's keys, if it has one."""
    if keys.get("closed_loop") is None:
        return None
    loop = read(ClosedLoop, keys["closed_loop"], place["closed_loop"])
    for name in OPEN:
        if name in keys and keys[name] != "normal":
            raise HeadwayError(f"{place[name]}: in a closed loop requests come when others end; leave one of them out.")
    return loop


def check_class(name: str, where: str) -> str:
    """The name of an SLO class: policies and metrics go by it, so it may be any."""
    if not 1 <= len(name) <= LONGEST_NAME:
        raise HeadwayError(f"{where}: a class has a name of 1 to {LONGEST_NAME} characters, got {shown(name)}.")
    return name
