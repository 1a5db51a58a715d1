"""Schedulers decide the order in which requests enter an instance's batch, the size of their prefill chunks, and which
request is preempted.

A scheduler makes one queue for each instance. The engine calls the queue only at scheduling changes: when a request
arrives, enters the batch, leaves or is preempted. A request's key is fixed when it arrives at its instance. `aging`
adds the arrival time to the key, so that no request starves. A waiting request preempts a running one only if
`preempts` is set.
"""

from dataclasses import field
from typing import Annotated

from headway.policies.classes import TTFT, ClassTargets, OneDuration, class_targets
from headway.policies.queues import DeficitRoundRobin, Fifo, Queue, Ranked, RankedByLength, RankedByRest, Ticket
from headway.policies.registry import Bounds, policy

Tokens = Annotated[int, Bounds(1, 1_000_000, log=True)]
# Maximum number of prompt tokens that a request computes in one step; None: the whole budget of the step.
ChunkTokens = Annotated[int | None, Bounds(1, 1_000_000, log=True)]
# A running request yields to a waiting one if its priority is lower by more than this. None: it never yields.
Margin = Annotated[float | None, Bounds(0, 1_000_000)]
# how much the sort key grows for each second that a request arrives later
Aging = Annotated[float, Bounds(0, 1_000_000)]


@policy("scheduler", "fcfs", reported=())
class Fcfs:
    """Serves requests in order of arrival at their instance, as vLLM does by default.

    A preempted request returns to the front of the queue. If blocks run out, the newest running request is preempted,
    so the oldest always progresses.
    """

    def queue(self) -> Queue:
        return Fifo()


@policy("scheduler", "priority", reported=())
class ByPriority:
    """Serves the highest priority first, as the router assigned it; ties in order of arrival.

    A second of waiting counts as much as `aging` of priority. So a request overtakes an earlier request only if it
    arrives within (difference of priorities ÷ `aging`) seconds after it. With 0 the order is strict, and low priorities
    may starve. If blocks run out, the running request that is last in this order is preempted. `chunk_tokens` is the
    most tokens of a prompt in one step; while a prompt is unfinished, no other begins. If `preempts` is set, running
    requests whose priority is lower by more than `preempts` yield to a waiting request that cannot enter otherwise, the
    last in this order first; `aging` counts as above. They yield only if the waiting request then enters.
    """

    aging: Aging = 0.01
    chunk_tokens: ChunkTokens = None
    preempts: Margin = None

    def queue(self) -> Queue:
        return Ranked(self.key, self.chunk_tokens, self.preempts)

    def key(self, ticket: Ticket) -> float:
        return self.aging * ticket.enqueued - ticket.priority


@policy("scheduler", "sjf", reported=())
class ShortestJobFirst:
    """Serves the request with the fewest expected output tokens first.

    The expectation is max_tokens if the client set it. Otherwise it is the mean output of the requests of the same
    tenant and kind that the instance completed before this one arrived, or `unknown_tokens` if there are none. A second
    of waiting counts as much as `aging` tokens; with 0 long requests may starve. If blocks run out, the running request
    that is last in this order is preempted.
    """

    unknown_tokens: Tokens = 256
    aging: Aging = 10.0
    chunk_tokens: ChunkTokens = None

    def queue(self) -> Queue:
        return RankedByLength(self.unknown_tokens, self.aging, self.chunk_tokens)


@policy("scheduler", "shortest-expected", exact=("expected_tokens",), reported=())
class ShortestExpected:
    """Serves the request with the fewest tokens left to generate first, by the estimator's expectation.

    What is left is the expectation minus the tokens that the request had generated when it was last preempted, and at
    least 1. A second of waiting counts as much as `aging` tokens; with 0 long requests may starve. If blocks run out,
    the running request that is last in this order is preempted.
    """

    aging: Aging = 10.0
    chunk_tokens: ChunkTokens = None

    def queue(self) -> Queue:
        return RankedByRest(self.key, self.chunk_tokens)

    def key(self, ticket: Ticket) -> float:
        return max(1, ticket.expected_tokens - ticket.generated) + self.aging * ticket.enqueued


@policy("scheduler", "shortest-prefill", reported=())
class ShortestPrefill:
    """Serves the shortest prompt first, counting cached tokens too.

    A second of waiting counts as much as `aging` tokens; with 0 long prompts may starve. If blocks run out, the running
    request that is last in this order is preempted.
    """

    aging: Aging = 100.0
    chunk_tokens: ChunkTokens = None

    def queue(self) -> Queue:
        return Ranked(self.key, self.chunk_tokens)

    def key(self, ticket: Ticket) -> float:
        return ticket.request.prompt_tokens + self.aging * ticket.enqueued


@policy("scheduler", "slo-slack", reported=())
class SloSlack:
    """Serves the request whose first token is due next: arrival + the TTFT target of its class.

    `targets` are by class; other classes have `other`. If blocks run out, the running request that is due last is
    preempted. Only requests that are due earlier overtake another, so no request starves.
    """

    targets: ClassTargets = field(default_factory=lambda: dict(TTFT))
    other: OneDuration = "1h"
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
    """Gives every tenant the same share of tokens while it has waiting requests: deficit round robin.

    In each turn a tenant gets `quantum` tokens and spends them on the prompts of its requests in order of arrival. If
    the rest is too small for its next prompt, it keeps the rest. Output tokens are charged when a request ends. A
    preempted request returns to the front. If blocks run out, the newest running request is preempted.
    """

    quantum: Tokens = 1024
    chunk_tokens: ChunkTokens = None

    def queue(self) -> Queue:
        return DeficitRoundRobin(self.quantum, self.chunk_tokens)
