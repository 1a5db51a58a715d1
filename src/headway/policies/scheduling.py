"""Schedulers: in which order the requests of one instance enter its batch, and who yields when memory runs out.

A scheduler is called only when a request enters, is put back or must yield. Its jobs are the engine's own objects,
which it orders and never looks into.
"""

from __future__ import annotations

from collections import deque
from typing import Any, TypeVar

from headway.registry import policy

Job = TypeVar("Job")


@policy("scheduler", "fcfs", reported=())
class Fcfs:
    """Serves requests in order of arrival at their instance, as vLLM does by default.

    A preempted request goes back to the front of the queue. The victim of a block shortage is the newest running
    request, so the oldest always progresses.
    """

    def enqueue(self, waiting: deque[Job], job: Job) -> None:
        """A request has come to this instance."""
        waiting.append(job)

    def requeue(self, waiting: deque[Job], job: Job) -> None:
        """A preempted request comes back: it arrived before all that still wait."""
        waiting.appendleft(job)

    def victim(self, running: dict[Any, Job]) -> Job:
        """Who yields its blocks; `running` is in order of entry."""
        return running[next(reversed(running))]
