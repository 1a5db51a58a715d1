"""Traffic served by nobody: each request takes as long as the test says, and ends as it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from headway.types import NEVER, Path, Request
from headway.workload.sessions import Session, Turn
from headway.workload.traffic import SessionStart, Traffic

Service = Callable[[Request], tuple[int, bool]]  # how long a request takes, and whether it is completed


def starts(sessions: Iterable[tuple[int, Session]]) -> Iterator[SessionStart]:
    """Sessions that are made already, as a source hands them out."""
    for start_ps, session in sessions:
        yield start_ps, lambda session=session: session  # type: ignore[misc]


@dataclass
class Served:
    requests: list[Request] = field(default_factory=list)  # as they came
    ends: dict[int, tuple[int, bool]] = field(default_factory=dict)  # by request: when, and whether completed
    most_at_once: dict[str, int] = field(default_factory=dict)  # by tenant

    def names(self) -> list[tuple[int, str | None, int]]:
        return [(request.arrival_ps, request.session, request.turn) for request in self.requests]


def serve(traffic: Traffic, service: Service, horizon: int = NEVER - 1) -> Served:
    """Arrivals of an instant first, then its endings by request, then what follows from them at once."""
    served = Served()
    ends: list[tuple[int, int, bool]] = []
    here: dict[str, int] = {}
    while True:
        now = min(traffic.next_ps, ends[0][0] if ends else NEVER)
        if now > horizon:
            traffic.stop()
        if now > horizon or now == NEVER:
            return served
        while traffic.next_ps == now:
            request = traffic.take().request
            assert request.arrival_ps == now and request.id == len(served.requests)
            served.requests.append(request)
            here[request.tenant] = here.get(request.tenant, 0) + 1
            served.most_at_once[request.tenant] = max(served.most_at_once.get(request.tenant, 0), here[request.tenant])
            takes, completed = service(request)
            heappush(ends, (now + takes, request.id, completed))
        assert traffic.next_ps > now
        while ends and ends[0][0] == now:
            _, row, completed = heappop(ends)
            request = served.requests[row]
            here[request.tenant] -= 1
            served.ends[row] = (now, completed)
            traffic.on_ended(request, now, completed)


def turn(delay: int = 0, tokens: int = 4, output: int = 2) -> Turn:
    return Turn(tokens, output, Path((1,), (tokens,)), output_key=7, delay_ps=delay)
