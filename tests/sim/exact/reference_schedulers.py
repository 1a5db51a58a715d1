"""The schedulers once more, for the naive simulator: whoever waits is looked through from the first to the last, and
turns are walked one by one. They share nothing with those of the package but the definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reference import Job

TARGETS = {"realtime": 3000, "standard": 9000}  # picoseconds
OTHER = 50_000


class Fcfs:
    """Of one instance."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit  # tokens of a prompt in one step
        self.came: list[Job] = []
        self.keys: dict[int, float] = {}  # by row
        self.completed: list[Job] = []

    def comes(self, job: Job, now: int) -> None:
        self.came.append(job)
        self.keys[job.row] = self.key(job, now)

    def key(self, job: Job, now: int) -> float:
        return 0

    def rank(self, job: Job) -> tuple[float, int]:
        return self.keys[job.row], self.came.index(job)

    def first(self, waiting: list[Job]) -> Job:
        return min(waiting, key=self.rank)

    def enters(self, job: Job) -> None:
        pass

    def yields(self, job: Job) -> None:
        pass

    def in_order(self, running: list[Job]) -> list[Job]:
        return sorted(running, key=self.rank)

    def ends(self, job: Job) -> None:
        self.completed.append(job)


class Fifo(Fcfs):
    """Who had to yield is the first again. Whoever entered last yields, which is not the newest where some wait for
    their blocks while others pass them."""

    def __init__(self) -> None:
        super().__init__()
        self.line: list[Job] = []

    def comes(self, job: Job, now: int) -> None:
        super().comes(job, now)
        self.line.append(job)

    def first(self, waiting: list[Job]) -> Job:
        return next(job for job in self.line if job in waiting)

    def enters(self, job: Job) -> None:
        self.line.remove(job)

    def yields(self, job: Job) -> None:
        self.line.insert(0, job)

    def in_order(self, running: list[Job]) -> list[Job]:
        return list(running)  # which is in order of entry


class ByPriority(Fcfs):
    def __init__(self, aging: float, limit: int | None) -> None:
        super().__init__(limit)
        self.aging = aging

    def key(self, job: Job, now: int) -> float:
        return self.aging * (now / 10**12) - job.priority


class ShortestJobFirst(ByPriority):
    def key(self, job: Job, now: int) -> float:
        expected: float = 256
        alike = [
            other.generated
            for other in self.completed
            if (other.request.tenant, other.request.kind) == (job.request.tenant, job.request.kind)
        ]
        if job.request.max_tokens is not None:
            expected = job.request.max_tokens
        elif alike:
            expected = sum(alike) / len(alike)
        return expected + self.aging * (now / 10**12)


class ShortestPrefill(ByPriority):
    def key(self, job: Job, now: int) -> float:
        return job.prompt + self.aging * (now / 10**12)


class SloSlack(Fcfs):
    def key(self, job: Job, now: int) -> float:
        return job.arrival + TARGETS.get(job.request.slo_class, OTHER)


class Fair(Fcfs):
    """A tenant's turn goes on while it can pay. Everybody is visited one by one until somebody can."""

    def __init__(self, quantum: int, limit: int | None) -> None:
        super().__init__(limit)
        self.quantum = quantum
        self.purse: dict[str, int] = {}
        self.ring: list[str] = []
        self.lines: dict[str, list[Job]] = {}
        self.back: list[Job] = []  # preempted, the oldest first
        self.entries: list[Job] = []

    def comes(self, job: Job, now: int) -> None:
        super().comes(job, now)
        tenant = job.request.tenant
        self.purse.setdefault(tenant, 0)
        self.lines.setdefault(tenant, []).append(job)
        if tenant not in self.ring:
            self.ring.append(tenant)
            if self.ring == [tenant]:
                self.go_round()

    def go_round(self) -> None:
        while self.ring:
            self.purse[self.ring[0]] += self.quantum
            if self.can_pay(self.ring[0]):
                break
            self.ring.append(self.ring.pop(0))

    def can_pay(self, tenant: str) -> bool:
        return self.purse[tenant] >= self.lines[tenant][0].prompt

    def first(self, waiting: list[Job]) -> Job:
        job = self.back[0] if self.back else self.lines[self.ring[0]][0]
        assert job in waiting
        return job

    def enters(self, job: Job) -> None:
        self.entries.append(job)
        if job in self.back:
            self.back.remove(job)
            return
        tenant = self.ring[0]
        assert self.lines[tenant].pop(0) is job
        self.purse[tenant] -= job.prompt
        if not self.lines[tenant]:
            self.ring.pop(0)
            self.purse[tenant] = min(0, self.purse[tenant])
            self.go_round()
        elif not self.can_pay(tenant):
            self.ring.append(self.ring.pop(0))
            self.go_round()

    def yields(self, job: Job) -> None:
        self.back.insert(0, job)

    def in_order(self, running: list[Job]) -> list[Job]:
        return list(running)  # which is in order of entry

    def ends(self, job: Job) -> None:
        self.purse[job.request.tenant] -= job.generated


def naive(spec: dict[str, Any]) -> Fcfs:
    """As the registry builds them from the same parameters."""
    name, limit = spec["name"], spec.get("chunk_tokens")
    if name == "fcfs":
        return Fcfs()
    if name == "slo-slack":
        return SloSlack(limit)
    if name == "fair":
        return Fair(spec["quantum"], limit)
    kind = {"priority": ByPriority, "sjf": ShortestJobFirst, "shortest-prefill": ShortestPrefill}[name]
    return kind(spec["aging"], limit)
