"""Clients: the SLO targets and the closed loops of tenants."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import asdict

from headway.config.keys import DURATION, Form
from headway.config.section import check_range, read
from headway.config.units import positive_duration_ps
from headway.errors import HeadwayError
from headway.results.recorder import Targets
from headway.types import Json
from headway.workload import durations
from headway.workload.traces.record import present

MOST_USERS: Final = 100_000
OPEN: Final = ("rate", "arrival", "profile", "behaviour")  # the keys that set the starts of sessions in an open loop


class Slo(Struct, frozen=True):
    """The `slo` key: the duration of each target. None means no target."""

    ttft: Annotated[Any, DURATION, "time to first token"] = None
    tpot: Annotated[Any, DURATION, "mean time per output token of a request"] = None
    e2e: Annotated[Any, DURATION, "from arrival to the last token"] = None

    def targets(self, where: str) -> Targets:
        """Return the targets in picoseconds."""
        limits = {name: positive_duration(value, f"{where}.{name}") for name, value in asdict(self).items()}
        return Targets(ttft_ps=limits["ttft"], tpot_ps=limits["tpot"], e2e_ps=limits["e2e"])

    def validate(self, where: str) -> Slo:
        self.targets(where)
        return self

    def explicit(self) -> Json:
        """Return the `slo` key as a mapping of the targets that are set."""
        return present(asdict(self))


class ClosedLoop(Struct, frozen=True):
    """The `closed_loop` key: a fixed number of users. At any time, a user either waits for one request or thinks."""

    concurrency: Annotated[int, Form.of(Annotated[int, Meta(ge=1, le=MOST_USERS)]), "number of users"]
    think_time: Annotated[durations.Durations, "time between the sessions of a user"] = "1s"

    def validate(self, where: str) -> ClosedLoop:
        check_range(self.concurrency, 1, MOST_USERS, f"{where}.concurrency")
        durations.parse(self.think_time, f"{where}.think_time")
        return self


def positive_duration(value: object, where: str) -> int | None:
    """Return a duration in picoseconds. If the value is None, return None."""
    return None if value is None else positive_duration_ps(value, where)


def read_closed_loop(keys: Json, place: dict[str, str]) -> ClosedLoop | None:
    """Return the closed loop of a tenant. If the tenant has no closed loop, return None."""
    if keys.get("closed_loop") is None:
        return None
    loop = read(ClosedLoop, keys["closed_loop"], place["closed_loop"])
    for name in OPEN:
        if name in keys and keys[name] != "normal":
            raise HeadwayError(
                f"{place[name]}: is not valid with a closed loop, because users set the load. Remove it."
            )
    return loop
