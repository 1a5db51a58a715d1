"""Generated workloads for the tests: from their section to the requests, by session, unserved or served for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import fsum, sqrt
from typing import Any

from fake_service import Service, serve

from headway.config.section import read
from headway.types import Request
from headway.workload.spec import WorkloadSpec
from headway.workload.traffic import Planned, Traffic

SIGMAS = 5  # how far a mean of draws may lie from what was asked, in standard errors


def spec(**section: Any) -> WorkloadSpec:
    return read(WorkloadSpec, section, "workload")


def plan(seed: int = 7, first: int | None = None, **section: Any) -> list[Planned]:
    """The requests as if each ended the moment it came."""
    return list(islice(spec(**section).plan(seed, "llama"), first))


def sessions(planned: Sequence[Planned]) -> list[list[Planned]]:
    """Requests by session in order of their turns; those of none are sessions of one."""
    by_session: dict[Any, list[Planned]] = {}
    for item in planned:
        request = item.request
        by_session.setdefault((request.tenant, request.session or request.id), []).append(item)
    return [sorted(turns, key=lambda item: item.request.turn) for turns in by_session.values()]


class Recorded:
    """A traffic that keeps what was taken."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self.planned: list[Planned] = []
        self.listens = traffic.listens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._traffic, name)

    def take(self) -> Planned:
        self.planned.append(self._traffic.take())
        return self.planned[-1]

    def __iter__(self) -> Iterator[Planned]:
        return iter(self._traffic)


def serve_workload(service: Service, seed: int = 7, horizon: int | None = None, **section: Any) -> Recorded:
    """The same where every request takes its time."""
    traffic = Recorded(spec(**section).plan(seed, "llama"))
    traffic.served = serve(traffic, service) if horizon is None else serve(traffic, service, horizon)  # type: ignore[arg-type]
    return traffic


def takes(duration_ps: int) -> Service:
    return lambda request: (duration_ps, True)


def uneven(request: Request) -> tuple[int, bool]:
    """Some requests take a thousand times as long as others."""
    return 1 + (request.prompt_tokens * 7919 + request.id * 104_729) % 1000 * 10**10, True


def mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def near(values: Sequence[float], expected: float, std: float | None = None) -> bool:
    """Whether the mean of independent draws is the one expected, given their deviation, or else as they have it."""
    average = mean(values)
    spread = sqrt(fsum((value - average) ** 2 for value in values) / len(values)) if std is None else std
    return abs(average - expected) <= SIGMAS * spread / sqrt(len(values)) + 1e-9


def share(flags: Sequence[bool], expected: float) -> bool:
    """Whether as many are true as independent draws of this probability give."""
    return near([float(flag) for flag in flags], expected, sqrt(expected * (1 - expected)))
