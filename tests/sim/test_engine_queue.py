"""The queue of an instance alone: the policy orders it, and wrong answers name their request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from engine_parts import new_job

from headway.errors import HeadwayError
from headway.policies.registry import build
from headway.sim.engine_queue import EngineQueue
from headway.types import NO_PRIORITY


def filled(scheduler: Any, priorities: Sequence[float]) -> EngineQueue:
    queue = EngineQueue(scheduler, "engine-0")
    for row, priority in enumerate(priorities):
        queue.add(new_job(row), 5, priority, NO_PRIORITY.hints)
    return queue


def test_requests_leave_in_the_order_of_the_policy() -> None:
    queue = filled(build("scheduler", "fcfs", "scheduler"), (0, 0, 0))
    queue.remove(queue.first())
    second = queue.first()
    queue.take(second)
    assert [job.row for job in queue.waiting.values()] == [2]
    queue.put_back(second)
    assert queue.first() is second  # it has come before the other
    assert [job.ticket.number for job in queue.waiting.values()] == [3, 2]


def test_a_request_is_refused_until_another_is_first() -> None:
    queue = filled(build("scheduler", "fcfs", "scheduler"), (0, 0))
    assert not queue.is_refused()
    queue.refused = queue.first().ticket
    assert queue.is_refused()
    queue.remove(queue.first())
    assert not queue.is_refused()


class Stranger:
    """A policy that names a request which is not there, and limits chunks to nothing."""

    def queue(self) -> Stranger:
        return self

    def add(self, ticket: Any) -> None: ...

    def first(self) -> Any:
        return "nobody"

    def order(self, tickets: list[Any]) -> list[Any]:
        return tickets[1:]

    put_back = remove = add

    def take(self) -> None: ...


def test_a_wrong_answer_of_the_policy_names_the_request_and_the_instance() -> None:
    queue = EngineQueue.__new__(EngineQueue)
    queue.name, queue.policy, queue.chunk, queue.waiting = "engine-0", Stranger(), None, {}
    queue.arrived, queue.sight = 0, None
    jobs = [new_job(7), new_job(8)]
    for job in jobs:
        queue.add(job, 0, 0.0, NO_PRIORITY.hints)
    with pytest.raises(HeadwayError, match=r"first must return a ticket that waits .* at request 7 on engine-0"):
        queue.first()
    with pytest.raises(HeadwayError, match="order must return the running requests, each once"):
        queue.sort(jobs)
