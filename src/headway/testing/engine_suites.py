"""Suites for schedulers and latency models."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

import msgspec

from headway.latency.base import Chunk, LatencyModel, scale_model
from headway.policies.queues import Queue, Ticket, queue_of
from headway.testing.bench import requests
from headway.testing.suite import PolicySuite, same_twice
from headway.types import Request

COUNT = 60  # number of requests in a script
# Each step: the number of decoding sequences, the sum of their context tokens, and the prefill chunks.
STEPS: Final[list[tuple[int, int, list[Chunk]]]] = [
    (1, 1, []),
    (1, 4096, []),
    (7, 9000, []),
    (256, 500_000, []),
    (0, 0, [(1, 0)]),
    (0, 0, [(512, 0)]),
    (0, 0, [(512, 4096)]),
    (3, 2000, [(512, 1024)]),
    (8, 8000, [(100, 0), (200, 700)]),
]


class SchedulerSuite(PolicySuite):
    """Tests of a scheduler: its queue returns every waiting request once, and reading the queue does not change its
    order."""

    stage = "scheduler"
    ties: bool = True  # whether requests of equal rank must enter the batch in order of arrival

    def queue(self) -> Queue:
        return queue_of(self.make())

    @staticmethod
    def tickets(script: Sequence[Request]) -> list[Ticket]:
        return [
            Ticket(
                request, float(request.id % 3), request.arrival_ps, number, expected_tokens=40 + 13 * request.id % 50
            )
            for number, request in enumerate(script)
        ]

    def play(self, count: int = COUNT) -> list[int]:
        """Run a script in which requests arrive, enter the batch, are preempted, are abandoned and end. Return the
        order in which they enter the batch."""
        queue = self.queue()
        waiting: list[Ticket] = []
        running: list[Ticket] = []
        entered: list[int] = []
        for ticket in self.tickets(requests(count)):
            request = msgspec.structs.astuple(ticket.request)
            queue.add(ticket)
            waiting.append(ticket)
            chunk = queue.chunk(ticket) if hasattr(queue, "chunk") else None
            right = f"`chunk` must return a positive whole number or None, got {chunk}."
            assert chunk is None or (type(chunk) is int and chunk >= 1), right
            if ticket.number % 5 == 4:
                quitter = waiting.pop(0)
                queue.remove(quitter)
            if ticket.number % 3 == 2 and waiting:
                entered.append(self._enter(queue, waiting, running))
            if ticket.number % 7 == 6 and running:
                self._check_order(queue, running)
                victim = queue.order(list(running))[-1]
                running.remove(victim)
                victim.preemptions += 1
                queue.put_back(victim)
                waiting.append(victim)
            if ticket.number % 11 == 10 and running:
                ended = running.pop(0)
                if hasattr(queue, "ended"):
                    queue.ended(ended, 20, True)
            assert msgspec.structs.astuple(ticket.request) == request
        while waiting:
            entered.append(self._enter(queue, waiting, running))
        return entered

    @staticmethod
    def _enter(queue: Queue, waiting: list[Ticket], running: list[Ticket]) -> int:
        first = queue.first()
        assert first in waiting, "`first` returned a request that is not waiting."
        assert queue.first() is first, "`first` returned another request when it was called again."
        queue.take()
        waiting.remove(first)
        running.append(first)
        return first.number

    @staticmethod
    def _check_order(queue: Queue, running: list[Ticket]) -> None:
        before = list(running)
        order = list(queue.order(before))
        numbers = [sorted(ticket.number for ticket in tickets) for tickets in (order, running)]
        assert numbers[0] == numbers[1], "`order` must return each running request once."
        assert list(queue.order(list(running))) == order, "`order` returned another order when it was called again."

    def test_the_same_inputs_give_the_same_order(self) -> None:
        same_twice(self.play, "order of entry")

    def test_every_request_enters_once_and_the_order_is_stable(self) -> None:
        assert self.play()

    def test_a_long_queue_is_served_to_its_end(self) -> None:
        assert len(self.play(500)) >= 400

    def test_one_request_enters_and_an_empty_queue_takes_another(self) -> None:
        queue = self.queue()
        for ticket in self.tickets(requests(2)):
            queue.add(ticket)
            assert queue.first() is ticket
            queue.take()

    def test_equal_requests_enter_in_order_of_arrival(self) -> None:
        if not self.ties:
            return
        queue = self.queue()
        (request,) = requests(1)
        tickets = [Ticket(request, 0.0, request.arrival_ps, number) for number in range(5)]
        for ticket in tickets:
            queue.add(ticket)
        entered: list[Ticket] = []
        for _ in tickets:
            entered.append(queue.first())
            queue.take()
        assert entered == tickets, "Equal requests do not enter the batch in order of arrival."


class LatencyModelSuite:
    """Tests of the latency model `model`. `headway.latency.base` specifies what its method `run` must return."""

    model: LatencyModel

    def check_run(self, model: LatencyModel, decodes: int, context: int, chunks: list[Chunk]) -> None:
        before = list(chunks)
        run = model.run(decodes, context, chunks)
        assert chunks == before, "`run` changed the list of chunks."
        right = f"`run` must return three whole numbers (first, increment, k_max), got {run}."
        assert isinstance(run, tuple) and len(run) == 3 and all(type(number) is int for number in run), right
        first, increment, k_max = run
        assert first >= 1 and k_max >= 1, f"first and k_max must be at least 1, got {run}."
        assert model.run(decodes, context, chunks) == run, "For the same step, `run` returned another duration."
        for step in {1, 2, 17, 1000, k_max - 1}:
            if not 0 < step < min(k_max, 1 << 20) or len(chunks) > 1:
                continue
            moved = [(tokens, past + step * tokens) for tokens, past in chunks]
            later = model.run(decodes, context + step * decodes, moved)[0]
            planned = first + step * increment
            assert later == planned, f"Step {step} of a run is planned to take {planned} ps, but takes {later} ps."

    def test_a_run_is_what_its_steps_are(self) -> None:
        for decodes, context, chunks in STEPS:
            self.check_run(self.model, decodes, context, list(chunks))

    def test_a_slower_engine_keeps_the_promise_too(self) -> None:
        slower = scale_model(self.model, Fraction(3, 2))
        for decodes, context, chunks in STEPS:
            self.check_run(slower, decodes, context, list(chunks))
            usual, slow = self.model.run(decodes, context, chunks)[0], slower.run(decodes, context, chunks)[0]
            assert slow >= usual, f"A step takes {usual} ps, but only {slow} ps on an engine that is 1.5 times slower."
