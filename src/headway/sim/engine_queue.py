"""The queue of an instance, in the order of its scheduling policy."""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.policies.queues import Ticket, queue_of
from headway.sim.job import WHOLE, Job
from headway.types import PS_PER_SECOND, Hints
from headway.views.engine import EngineView
from headway.views.instance import InstanceView

RECENT: Final = 100  # number of requests in the recent figures of an engine


class Sight:
    """What a scheduler sees of its engine. The view changes only when `look` is called, which is at scheduling changes,
    so that a scheduler decides alike however many steps are computed at once."""

    def __init__(self, view: InstanceView) -> None:
        self.view = EngineView(view.role, view.kv_blocks, view.max_batch_size, view.max_batch_tokens)
        self.changed = False  # whether there was a scheduling change since the last look
        self.now = 0  # time of the step that is being formed
        self.completed = self.preempted = 0
        self.outputs: deque[int] = deque(maxlen=RECENT)
        self.waits_ps: deque[int] = deque(maxlen=RECENT)

    def on_arrival(self, now: int, waiting: Iterable[Ticket]) -> None:
        self.changed = True
        self.view.now_ps, self.view.waiting = now, tuple(waiting)

    def on_entry(self, ticket: Ticket) -> None:
        if not ticket.preemptions:
            self.waits_ps.append(self.now - ticket.enqueued_ps)

    def on_end(self, output_tokens: int, completed: bool) -> None:
        self.changed = True
        if completed:
            self.completed += 1
            self.outputs.append(output_tokens)

    def look(self, waiting: Iterable[Ticket], running: Iterable[Job], kv_used: int) -> None:
        view, self.changed = self.view, False
        view.now_ps, view.waiting, view.kv_used = self.now, tuple(waiting), kv_used
        view.batch = tuple([job.ticket for job in running])
        view.completed, view.preempted = self.completed, self.preempted
        view.recent_output = sum(self.outputs) / len(self.outputs) if self.outputs else None
        waits = self.waits_ps
        view.recent_wait = sum(waits) / (len(waits) * PS_PER_SECOND) if waits else None


class EngineQueue:
    __slots__ = ("arrived", "chunk", "ended", "name", "policy", "refused", "sight", "waiting", "yields")

    def __init__(self, scheduler: Any, name: str, view: InstanceView | None = None) -> None:
        self.name = name  # name of the instance
        self.policy = queue_of(scheduler)
        self.chunk = getattr(self.policy, "chunk", None)
        self.ended = getattr(self.policy, "ended", None)  # the policy's callback for requests that have ended
        # Whether a running request yields to a waiting one; None if running requests never do.
        self.yields = getattr(self.policy, "yields", None)
        self.waiting: dict[Ticket, Job] = {}
        self.arrived = 0  # number of requests that have arrived so far
        self.refused: Ticket | None = None  # the first request in the policy's order, if it could not enter the batch
        self.sight: Sight | None = None  # set if the policy sees its engine
        if view is not None and hasattr(self.policy, "see"):
            self.sight = Sight(view)
            self.policy.see(self.sight.view)
            self.ended = self.on_end

    def add(self, job: Job, now: int, priority: float, hints: Hints) -> None:
        self.arrived += 1
        ticket = job.ticket = Ticket(job.request, priority, now, self.arrived, hints)
        ticket.expected_tokens = job.expected
        self.waiting[ticket] = job
        if self.sight is not None:
            self.sight.on_arrival(now, self.waiting)
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
        if self.sight is not None:
            self.sight.on_entry(job.ticket)

    def remove(self, job: Job) -> None:
        self.policy.remove(job.ticket)
        del self.waiting[job.ticket]
        if self.sight is not None:
            self.sight.changed = True

    def put_back(self, job: Job) -> None:
        """Queue a preempted request again."""
        self.waiting[job.ticket] = job
        if self.sight is not None:
            self.sight.changed = True
            self.sight.preempted += 1
        self.policy.put_back(job.ticket)
        if self.chunk is not None:
            self.limit_chunk(job)

    def is_refused(self) -> bool:
        """Whether the first request in order could not enter the batch, and nothing has changed since then that may let
        it enter."""
        if self.sight is not None and self.sight.changed:
            return False
        return self.refused is not None and (not self.waiting or self.policy.first() is self.refused)

    def on_end(self, ticket: Ticket, output_tokens: int, completed: bool) -> None:
        """Note that a running request has ended, and tell the policy if it wants to know."""
        assert self.sight is not None
        self.sight.on_end(output_tokens, completed)
        ended = getattr(self.policy, "ended", None)
        if ended is not None:
            ended(ticket, output_tokens, completed)

    def look(self, running: Iterable[Job], kv_used: int) -> None:
        """Show the policy the engine after a scheduling change, and let it order the waiting requests anew."""
        assert self.sight is not None
        self.sight.look(self.waiting, running, kv_used)
        self.policy.rerank()  # type: ignore[attr-defined]

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
