"""Clients: what the sender of a request was promised, how long it waits before the next one, and what it does when one
fails."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from headway.config.section import read
from headway.config.units import duration_ps
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.results.recorder import Targets
from headway.types import Json
from headway.workload import durations
from headway.workload.traffic import Retry

MOST_USERS: Final = 100_000
MOST_RETRIES: Final = 30
LONGEST_NAME: Final = 100
OPEN: Final = ("rate", "arrival", "profile", "behaviour")  # what says when sessions of an open loop begin


class Slo(Struct, frozen=True):
    """The `slo` key: targets as durations, None where nothing is promised."""

    ttft: Any = None
    tpot: Any = None
    e2e: Any = None

    def targets(self, where: str) -> Targets:
        """In picoseconds."""
        found = {name: _longer_than_nothing(value, f"{where}.{name}") for name, value in asdict(self).items()}
        return Targets(ttft_ps=found["ttft"], tpot_ps=found["tpot"], e2e_ps=found["e2e"])


class ClosedLoop(Struct, frozen=True):
    """The `closed_loop` key: so many users, each of whom has one request under way or thinks."""

    concurrency: int
    think_time: Any = "1s"


class RetryKeys(Struct, frozen=True):
    """The `retry` key."""

    max: int = 0
    backoff: Any = "1s"


def slo(spec: object, where: str) -> Slo:
    found = read(Slo, spec, where)
    found.targets(where)
    return found


def timeout(value: object, where: str) -> int | None:
    """How long a client waits for its answer, in picoseconds; None: as long as it takes."""
    return _longer_than_nothing(value, where)


def _longer_than_nothing(value: object, where: str) -> int | None:
    if value is None:
        return None
    found = duration_ps(value, where)
    if found <= 0:
        raise HeadwayError(f"{where}: must be longer than nothing, got {shown(value)}.")
    return found


def explicit_slo(found: Slo) -> Json:
    return {name: value for name, value in asdict(found).items() if value is not None}


def closed_loop(keys: Json, place: dict[str, str]) -> ClosedLoop:
    """The closed loop of a tenant's keys."""
    where = place["closed_loop"]
    found = read(ClosedLoop, keys["closed_loop"], where)
    for name in OPEN:
        if name in keys and keys[name] != "normal":
            raise HeadwayError(f"{place[name]}: in a closed loop requests come when others end; leave one of them out.")
    if not 1 <= found.concurrency <= MOST_USERS:
        raise HeadwayError(f"{where}.concurrency: must lie between 1 and {MOST_USERS}, got {shown(found.concurrency)}.")
    durations.parse(found.think_time, f"{where}.think_time")
    return found


def retry(spec: object, where: str) -> Retry:
    found = read(RetryKeys, spec, where)
    if not 0 <= found.max <= MOST_RETRIES:
        raise HeadwayError(f"{where}.max: must lie between 0 and {MOST_RETRIES}, got {shown(found.max)}.")
    return Retry(found.max, duration_ps(found.backoff, f"{where}.backoff"))


def priority(name: str, where: str) -> str:
    """A class's name: policies and metrics go by it, so it may be any."""
    if not 1 <= len(name) <= LONGEST_NAME:
        raise HeadwayError(f"{where}: a class has a name of 1 to {LONGEST_NAME} characters, got {shown(name)}.")
    return name
