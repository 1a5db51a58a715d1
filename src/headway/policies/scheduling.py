"""Schedulers: the order in which requests enter an instance's batch, prefill chunks, and whom a shortage preempts.

A scheduler makes a queue for each instance, which is called at scheduling changes only. A request's key is fixed as it
arrives at its instance; `aging` adds time to the key, so that no request starves. A waiting request never preempts a
running one.
"""

from dataclasses import field
from typing import Annotated, Any

from headway.policies.classes import TTFT, class_targets
from headway.policies.queues import DeficitRoundRobin, Fifo, Queue, Ranked, RankedByLength, Ticket
from headway.policies.registry import Bounds, policy

Tokens = Annotated[int, Bounds(1, 1_000_000, log=True)]
ChunkTokens = Annotated[int | None, Bounds(1, 1_000_000, log=True)]  # of a prompt in one step; None: the budget
Aging = Annotated[float, Bounds(0, 1_000_000)]  # of the key's unit a second


@policy("scheduler", "fcfs", reported=())
class Fcfs:
    """Serves requests in order of arrival at their instance, as vLLM does by default.

    A preempted request goes back to the front of the queue. The victim of a block shortage is the newest running
    request, so the oldest always progresses.
    """

    def queue(self) -> Queue:
        return Fifo()


@policy("scheduler", "priority", reported=())
class ByPriority:
    """Serves the highest priority first, as the router gave it; ties in order of arrival.

    A second of waiting counts as much as `aging` of priority, so a request is passed only by those that come within
    (difference ÷ `aging`) seconds; with 0 the order is strict, and low priorities may starve. The victim of a block
    shortage is the running request that is last in this order. `chunk_tokens`, here as in the others, is the most
    tokens of a prompt in one step; while a prompt is unfinished no other begins.
    """

    aging: Aging = 0.01
    chunk_tokens: ChunkTokens = None

    def queue(self) -> Queue:
        return Ranked(self.key, self.chunk_tokens)

    def key(self, ticket: Ticket) -> float:
        return self.aging * ticket.enqueued - ticket.priority


@policy("scheduler", "sjf", reported=())
class ShortestJobFirst:
    """Serves first who is expected to generate least.

    Expected is what the client allows (max_tokens); without that, the mean output of the requests of the same tenant
    and kind that the instance has completed when the request arrives; before the first of them, `unknown_tokens`. A
    second of waiting counts as much as `aging` tokens; with 0 long requests may starve. The victim of a block shortage
    is the running request that is last in this order.
    """

    unknown_tokens: Tokens = 256
    aging: Aging = 10.0
    chunk_tokens: ChunkTokens = None

    def queue(self) -> Queue:
        return RankedByLength(self.unknown_tokens, self.aging, self.chunk_tokens)


@policy("scheduler", "shortest-prefill", reported=())
class ShortestPrefill:
    """Serves the shortest prompt first, whether or not some of it is cached.

    A second of waiting counts as much as `aging` tokens; with 0 long prompts may starve. The victim of a block shortage
    is the running request that is last in this order.
    """

    aging: Aging = 100.0
    chunk_tokens: ChunkTokens = None

    def queue(self) -> Queue:
        return Ranked(self.key, self.chunk_tokens)

    def key(self, ticket: Ticket) -> float:
        return ticket.request.prompt_tokens + self.aging * ticket.enqueued


@policy("scheduler", "slo-slack", reported=())
class SloSlack:
    """Serves first whose first token is due next: least slack to the TTFT target of its class, from its arrival on.

    `targets` gives the target of each class, `other` that of the classes it does not name. The victim of a block
    shortage is the running request that is due last. Whoever waits is passed only by those that are due before it, so
    nobody starves.
    """

    targets: dict[str, Any] = field(default_factory=lambda: dict(TTFT))
    other: str | int | float = "1h"
    chunk_tokens: ChunkTokens = None

    def __post_init__(self) -> None:
        self.target_ps = class_targets(self.targets, "targets")
        self.other_ps = class_targets({"other": self.other}, "slo-slack")["other"]

    def queue(self) -> Queue:
        return Ranked(self.key, self.chunk_tokens)

    def key(self, ticket: Ticket) -> int:
        request = ticket.request
        return request.arrival_ps + self.target_ps.get(request.slo_class, self.other_ps)


@policy("scheduler", "fair", reported=())
class Fair:
    """Gives every tenant the same share of tokens while it has requests waiting: deficit round robin.

    Tenants have turns. Each turn a tenant gets `quantum` tokens, spends them on the prompts of its requests in order of
    arrival, and keeps what the next prompt is too long for; output tokens are charged when a request ends. A preempted
    request goes back to the front; the victim of a block shortage is the newest running request.
    """

    quantum: Tokens = 1024
    chunk_tokens: ChunkTokens = None

    def queue(self) -> Queue:
        return DeficitRoundRobin(self.quantum, self.chunk_tokens)
