"""The queue of an instance: who waits, in the order that the scheduling policy gives them."""

from collections.abc import Iterable
from typing import Any

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.policies.queues import Ticket, queue_of
from headway.sim.job import WHOLE, Job
from headway.types import Hints


class EngineQueue:
    __slots__ = ("arrived", "chunk", "ended", "name", "policy", "refused", "waiting")

    def __init__(self, scheduler: Any, name: str) -> None:
        self.name = name  # of the instance
        self.policy = queue_of(scheduler)
        self.chunk = getattr(self.policy, "chunk", None)
        self.ended = getattr(self.policy, "ended", None)  # the policy wants to hear who has left for good
        self.waiting: dict[Ticket, Job] = {}
        self.arrived = 0  # how many ever came
        self.refused: Ticket | None = None  # the first in order that last was found to lack blocks or a slot

    def add(self, job: Job, now: int, priority: float, hints: Hints) -> None:
        """A request comes to the instance."""
        self.arrived += 1
        ticket = job.ticket = Ticket(job.request, priority, now, self.arrived, hints)
        self.waiting[ticket] = job
        self.policy.add(ticket)
        if self.chunk is not None:
            self.limit_chunk(job)

    def first(self) -> Job:
        """The next in order; there is one."""
        ticket = self.policy.first()
        try:
            return self.waiting[ticket]
        except (KeyError, TypeError):
            right = "first must return one of those that wait at the instance"
            raise self.mistake(right, ticket, next(iter(self.waiting))) from None

    def take(self, job: Job) -> None:
        """The first in order leaves: its turn has come."""
        self.policy.take()
        del self.waiting[job.ticket]

    def remove(self, job: Job) -> None:
        """Any of them leaves."""
        self.policy.remove(job.ticket)
        del self.waiting[job.ticket]

    def put_back(self, job: Job) -> None:
        """A request that had to yield waits again."""
        self.waiting[job.ticket] = job
        self.policy.put_back(job.ticket)
        if self.chunk is not None:
            self.limit_chunk(job)

    def is_refused(self) -> bool:
        """Whether the first in order was refused, and nothing has changed since that might let it enter."""
        return self.refused is not None and (not self.waiting or self.policy.first() is self.refused)

    def limit_chunk(self, job: Job) -> None:
        """The policy says how large a chunk may be, whenever a request begins to wait."""
        assert self.chunk is not None
        most = self.chunk(job.ticket)
        if most is None:
            most = WHOLE
        elif type(most) is not int or most < 1:
            raise self.mistake("chunk must return a number of tokens, at least 1, or None", most, job.ticket)
        job.chunk = most

    def sort(self, running: Iterable[Job]) -> list[Job]:
        """The running requests as the policy would keep them."""
        jobs = {job.ticket: job for job in running}
        order = self.policy.order(list(jobs))
        try:
            ranked = [jobs[ticket] for ticket in order]
        except (KeyError, TypeError):
            ranked = []
        if len(ranked) != len(jobs) or len(dict.fromkeys(ranked)) != len(jobs):
            raise self.mistake("order must return the running requests, each once", order, next(iter(jobs)))
        return ranked

    def mistake(self, right: str, answer: object, ticket: Ticket) -> HeadwayError:
        """What is wrong with a policy's answer, and a request that it is about."""
        place = f"at request {ticket.request.id} on {self.name}"
        return HeadwayError(f"policies.scheduler: {type(self.policy).__name__}.{right}, got {shown(answer)}, {place}.")
