"""The policies in the policy language for the parts of a cluster: schedulers of instances, and autoscalers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from heapq import heapify
from typing import Any, Final

from headway.errors import HeadwayError
from headway.policies.code.coded import Coded, Values
from headway.policies.code.decision import LEAST_STEPS
from headway.policies.code.program import Running
from headway.policies.code.rejection import Exhausted
from headway.policies.code.router_stages import NOTHING
from headway.policies.queues import Queue, Ranked, Ticket
from headway.types import Scale
from headway.views.engine import EngineView
from headway.views.pool import PoolView

STEPS_A_TICKET: Final = 100  # steps that a decision about several requests has in addition, for each request
MOST_PREEMPTIONS: Final = 8  # a request that was preempted so often is preempted after all others that were not


class CodedScheduler(Coded):
    stage = "scheduler"
    chunk_tokens: int | None = None

    def compile(self, source: str, name: str, values: Values) -> None:
        super().compile(source, name, values)
        self.sees = self.program.arity["key"] > 1 or bool(self.program.hooks)
        decision = self.program.decision
        self.remembers = self.program.remembers
        self.free = not decision.counts and decision.steps <= LEAST_STEPS  # a ranking is always within the limit

    def queue(self) -> Queue:
        """Make the queue of one instance, with its own memory."""
        running = self.program.start(self.memory_keys)
        if self.sees:
            return CodedQueue(self, running)
        key = self.decision(running, self.answer)
        return Ranked(key if self.free else partial(self.key, running, key), self.chunk_tokens)

    def key(self, running: Running, decide: Callable[[Ticket], float], ticket: Ticket) -> float:
        self.charge(running)
        return decide(ticket)

    def charge(self, running: Running, requests: int = 1, steps: int | None = None) -> None:
        """Begin to rank this number of requests, which share the limit of steps."""
        if self.free:
            return
        left = (self.steps if steps is None else steps) - self.program.decision.steps * requests
        if left < 0:
            raise self.fail(Exhausted(), None)
        running.begin(left, NOTHING, None)

    def answer(self, result: Any, ticket: Ticket) -> float:
        return self.number(result, ticket.request)

    def failed(self, error: BaseException, subject: Ticket) -> HeadwayError:
        return self.fail(error, subject.request)


class CodedQueue(Ranked):
    """The queue of a program that sees its engine. If `key` reads the engine, the order of the waiting requests is
    computed anew after each scheduling change. What the program does not define follows the order."""

    def __init__(self, policy: CodedScheduler, running: Running) -> None:
        super().__init__(self._rank, policy.chunk_tokens)
        self.policy, self.running = policy, running
        self.engine = EngineView("both", 1, 1, 1)
        self.arity = policy.program.arity
        self.decide = policy.decision(running, policy.answer)
        self.ranks = self.arity["key"] > 1
        functions = running.functions
        self.victim = functions.get("victim")
        for hook, method in (("chunk", self._chunk), ("yields", self._yields), ("ended", self._ended)):
            if hook in functions:
                setattr(self, hook, method)

    def see(self, engine: EngineView) -> None:
        self.engine = engine

    def _begin(self, requests: int = 0) -> None:
        self.running.begin(self.policy.steps + STEPS_A_TICKET * requests, NOTHING, None)

    def _rank(self, ticket: Ticket) -> float:
        self.policy.charge(self.running)
        return self.decide(ticket, self.engine) if self.ranks else self.decide(ticket)  # type: ignore[no-any-return]

    def rerank(self) -> None:
        """Order the waiting requests anew, after a scheduling change. All of them share one limit of steps."""
        if not self.ranks:
            return
        waiting = [ticket for _, _, ticket in self.heap if ticket not in self.removed]
        self.removed.clear()
        policy, decide, engine = self.policy, self.decide, self.engine
        policy.charge(self.running, len(waiting), policy.steps + STEPS_A_TICKET * len(waiting))
        if policy.remembers:  # so that the program's memory does not depend on the order of the heap
            waiting.sort(key=lambda ticket: ticket.number)
        self.heap = heap = []
        for ticket in waiting:
            rank, number = decide(ticket, engine), ticket.number
            ticket.rank = (rank, number)
            heap.append((rank, number, ticket))
        heapify(heap)

    def order(self, running: list[Ticket]) -> list[Ticket]:
        """Sort by the order of entry, or by `victim`. A request that was preempted often stays, so that requests cannot
        preempt each other forever."""
        if self.victim is None:
            return super().order(running)
        values = self._values(running)
        return sorted(
            running,
            key=lambda ticket: (
                (0, 0.0, ticket.number)
                if ticket.preemptions >= MOST_PREEMPTIONS
                else (1, values[ticket.number], ticket.number)
            ),
        )

    def _values(self, running: Iterable[Ticket]) -> dict[int, float]:
        tickets, policy = list(running), self.policy
        self._begin(len(tickets))
        values = {}
        for ticket in tickets:
            value = policy.ask(self.victim, ticket.request, *self._arguments("victim", ticket))  # type: ignore[arg-type]
            if type(value) not in (int, float) or not abs(value) <= 1e15:
                raise policy.wrong(value, ticket.request, "victim")
            values[ticket.number] = float(value)
        return values

    def _hook(self, name: str, ticket: Ticket, *arguments: Any) -> Any:
        self._begin()
        return self.policy.ask(self.running.functions[name], ticket.request, *self._arguments(name, *arguments))

    def _arguments(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """Return the arguments of a function of the program, with the engine if it takes one more."""
        return (*arguments, self.engine) if self.arity[name] > len(arguments) else arguments

    def _chunk(self, ticket: Ticket) -> int | None:
        tokens = self._hook("chunk", ticket, ticket)
        if tokens is None:
            return self.chunk_tokens
        if type(tokens) is not int or tokens < 1:
            raise self.policy.wrong(tokens, ticket.request, "chunk")
        return tokens

    def _yields(self, waiting: Ticket, running: Ticket) -> bool:
        answer = self._hook("yields", waiting, waiting, running)
        if not isinstance(answer, bool):
            raise self.policy.wrong(answer, waiting.request, "yields")
        return answer

    def _ended(self, ticket: Ticket, output_tokens: int, completed: bool) -> None:
        self._hook("ended", ticket, ticket, output_tokens, completed)


class CodedScaling(Coded):
    stage = "scaling"

    def scale(self, pool: PoolView) -> Scale | None:
        raise NotImplementedError  # `restart` replaces it

    def restart(self) -> None:
        super().restart()
        setattr(self, "scale", self.decision(self.running, self.answer))  # noqa: B010  (mypy takes it for a method)

    def answer(self, result: Any, pool: PoolView) -> Scale | None:
        replicas = min(max(round(self.number(result, None, 1e9)), pool.minimum), pool.maximum)
        return None if replicas == pool.replicas else Scale(replicas, f"{self.program.name} wants {replicas}")

    def failed(self, error: BaseException, subject: PoolView) -> HeadwayError:
        return self.fail(error, None)

    def bind(self, context: Any) -> None:
        self.restart()
