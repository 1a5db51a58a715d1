"""The queue of an instance, in the order of its scheduling policy."""

from collections.abc import Iterable
from typing import Any

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.policies.queues import Ticket, queue_of
from headway.sim.job import WHOLE, Job
from headway.types import Hints


class EngineQueue:
    __slots__ = ("arrived", "chunk", "ended", "name", "policy", "refused", "waiting", "yields")

    def __init__(self, scheduler: Any, name: str) -> None:
        self.name = name  # name of the instance
        self.policy = queue_of(scheduler)
        self.chunk = getattr(self.policy, "chunk", None)
        self.ended = getattr(self.policy, "ended", None)  # the policy's callback for requests that have ended
        # Whether a running request yields to a waiting one; None if running requests never do.
        self.yields = getattr(self.policy, "yields", None)
        self.waiting: dict[Ticket, Job] = {}
        self.arrived = 0  # number of requests that have arrived so far
        self.refused: Ticket | None = None  # the first request in the policy's order, if it could not enter the batch

    def add(self, job: Job, now: int, priority: float, hints: Hints) -> None:
        self.arrived += 1
        ticket = job.ticket = Ticket(job.request, priority, now, self.arrived, hints)
        ticket.expected_tokens = job.expected
        self.waiting[ticket] = job
        self.policy.add(ticket)
        if self.chunk is not None:
            self.limit_chunk(job)

    def first(self) -> Job:
        """Return the next request in the policy's order. The queue must not be empty."""
        ticket = self.policy.first()
        try:
            return self.waiting[ticket]
        except (KeyError, TypeError):
            right = "first must return a ticket that waits at the instance"
            raise self.mistake(right, ticket, next(iter(self.waiting))) from None

    def take(self, job: Job) -> None:
        """Remove the first request in the policy's order, because its turn has come."""
        self.policy.take()
        del self.waiting[job.ticket]

    def remove(self, job: Job) -> None:
        self.policy.remove(job.ticket)
        del self.waiting[job.ticket]

    def put_back(self, job: Job) -> None:
        """Queue a preempted request again."""
        self.waiting[job.ticket] = job
        self.policy.put_back(job.ticket)
        if self.chunk is not None:
            self.limit_chunk(job)

    def is_refused(self) -> bool:
        """Whether the first request in order could not enter the batch, and nothing has changed since then that may let
        it enter."""
        return self.refused is not None and (not self.waiting or self.policy.first() is self.refused)

    def limit_chunk(self, job: Job) -> None:
        """Ask the policy for the maximum chunk size of a request that begins to wait."""
        assert self.chunk is not None
        most = self.chunk(job.ticket)
        if most is None:
            most = WHOLE
        elif type(most) is not int or most < 1:
            raise self.mistake("chunk must return a number of tokens, at least 1, or None", most, job.ticket)
        job.chunk = most

    def sort(self, running: Iterable[Job]) -> list[Job]:
        """Return the running requests in the policy's order; the last one is preempted first."""
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
        """Return the error for a wrong answer of the policy about a request."""
        place = f"at request {ticket.request.id} on {self.name}"
        return HeadwayError(f"policies.scheduler: {type(self.policy).__name__}.{right}, got {shown(answer)}, {place}.")
