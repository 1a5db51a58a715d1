"""The queues of schedulers. A queue contains the requests that wait at one instance, as tickets."""

from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, Final, Protocol

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.policies.user_policies import check_call, outside
from headway.views.engine import Ticket as Ticket


class Queue(Protocol):
    """The waiting requests of one instance, in the order in which they enter the batch. Only the methods below may
    change the order, so that the order stays constant between calls of these methods.

    Some methods are optional. `see(engine)` is called once, with the view of the engine. If a queue has this method,
    `rerank()` is called before `first` and `order` after each scheduling change (a request arrived, ended, gave up or
    was preempted): only then may the order change. `chunk(ticket)` returns the maximum number of prompt tokens of a
    request in one step.
    None means the whole token budget of the step. The engine calls `chunk` whenever the request begins to wait.
    `ended(ticket, output_tokens, completed)` is called when a running request completes or its client gives up.
    `yields(waiting, running)` says whether a running request is preempted if a waiting one then enters in its place.
    The engine asks only about running requests that are behind the waiting request in `order`, which then also
    gets the waiting request, as the last one. Calls with equal arguments must return the same answer.
    """

    def add(self, ticket: Ticket) -> None:
        """Add a new request."""

    def put_back(self, ticket: Ticket) -> None:
        """Add a running request that was preempted."""

    def first(self) -> Ticket:
        """Return the next request to enter the batch. If this request cannot enter, no other request enters. The engine
        calls this only while requests wait."""

    def take(self) -> None:
        """Remove the first request, which enters the batch."""

    def remove(self, ticket: Ticket) -> None:
        """Remove a waiting request whose client has given up."""

    def order(self, running: list[Ticket]) -> list[Ticket]:
        """Sort the running requests for preemption: when blocks run out, the last request of the result is preempted
        first. `running` is in order of entry into the batch. Calls with equal arguments must return the same order, or
        requests may never progress."""


SLACK: Final = 16  # number of removed entries that a queue may keep even if it is short
# The methods of a queue, required and optional, with the number of arguments of each method.
METHODS: Final = {"add": 1, "put_back": 1, "first": 0, "take": 0, "remove": 1, "order": 1}
OPTIONAL: Final = {"chunk": 1, "ended": 3, "yields": 2, "see": 1, "rerank": 0}


def queue_of(scheduler: Any) -> Queue:
    """Make the queue of one instance, and check its methods."""
    queue: Queue = scheduler.queue()
    for method in METHODS:
        if not callable(getattr(queue, method, None)):
            raise HeadwayError(
                f"policies.scheduler: {type(scheduler).__name__}.queue must return an object with the methods "
                f"{', '.join(METHODS)}; {shown(queue)} has no {method!r}."
            )
    if outside(type(queue)):
        for method, count in (METHODS | OPTIONAL).items():
            function = getattr(queue, method, None)
            if function is not None:
                check_call(function, count, f"policies.scheduler: {type(queue).__name__}.{method}")
    return queue


class Fifo(deque[Ticket]):
    """Orders requests by arrival. A preempted request returns to the front. The last request to enter the batch is
    preempted first."""

    add = deque.append
    put_back = deque.appendleft
    take = deque.popleft

    def __init__(self) -> None:
        self.removed: set[Ticket] = set()  # removed tickets that stay in the deque until `first` reaches them

    def first(self) -> Ticket:
        if self.removed:
            while self[0] in self.removed:
                self.removed.remove(self.popleft())
        return self[0]

    def remove(self, ticket: Ticket) -> None:
        self.removed.add(ticket)
        if 2 * len(self.removed) > len(self) + SLACK:
            left = [waiting for waiting in self if waiting not in self.removed]
            self.clear()
            self.extend(left)
            self.removed.clear()

    def order(self, running: list[Ticket]) -> list[Ticket]:
        return running


class Ranked:
    """Orders requests by key, the lowest first, and equal keys by arrival. The key is computed once, on arrival, so a
    preempted request returns to its old position. The running request with the highest key is preempted first. If
    `margin` is set, a running request yields to a waiting one whose key is lower by more than `margin`."""

    def __init__(self, key: Callable[[Ticket], float], chunk_tokens: int | None, margin: float | None = None) -> None:
        self.key = key
        self.margin = margin
        self.yields = None if margin is None else partial(yields_by_key, margin)
        self.chunk_tokens = chunk_tokens
        self.heap: list[tuple[float, int, Ticket]] = []
        self.removed: set[Ticket] = set()  # removed tickets that are still in the heap

    def add(self, ticket: Ticket) -> None:
        ticket.rank = (self.key(ticket), ticket.number)
        self.put_back(ticket)

    def put_back(self, ticket: Ticket) -> None:
        heappush(self.heap, (*ticket.rank, ticket))

    def first(self) -> Ticket:
        while self.heap[0][2] in self.removed:
            self.removed.remove(heappop(self.heap)[2])
        return self.heap[0][2]

    def take(self) -> None:
        self.first()
        heappop(self.heap)

    def remove(self, ticket: Ticket) -> None:
        self.removed.add(ticket)
        if 2 * len(self.removed) > len(self.heap) + SLACK:
            self.heap = [item for item in self.heap if item[2] not in self.removed]
            heapify(self.heap)
            self.removed.clear()

    def order(self, running: list[Ticket]) -> list[Ticket]:
        return sorted(running, key=lambda ticket: ticket.rank)

    def chunk(self, ticket: Ticket) -> int | None:
        return self.chunk_tokens


def yields_by_key(margin: float, waiting: Ticket, running: Ticket) -> bool:
    return bool(running.rank[0] - waiting.rank[0] > margin)


class RankedByRest(Ranked):
    """Orders requests by a key that falls as they generate tokens. A preempted request gets a new key."""

    def put_back(self, ticket: Ticket) -> None:
        ticket.rank = (self.key(ticket), ticket.number)
        super().put_back(ticket)


class RankedByLength(Ranked):
    """Orders requests by expected output tokens, the fewest first. The expectation is max_tokens, or else the mean
    output of completed requests of the same tenant and kind."""

    def __init__(self, unknown_tokens: int, aging: float, chunk_tokens: int | None) -> None:
        super().__init__(self.expected_tokens, chunk_tokens)
        self.unknown_tokens = unknown_tokens
        self.aging = aging
        # (tenant, kind) -> (number of completed requests, sum of their output tokens)
        self.history: dict[tuple[str, str], tuple[int, int]] = {}

    def expected_tokens(self, ticket: Ticket) -> float:
        request = ticket.request
        tokens: float = self.unknown_tokens
        if request.max_tokens is not None:
            tokens = request.max_tokens
        elif history := self.history.get((request.tenant, request.kind)):
            tokens = history[1] / history[0]
        return tokens + self.aging * ticket.enqueued

    def ended(self, ticket: Ticket, output_tokens: int, completed: bool) -> None:
        if completed:
            name = (ticket.request.tenant, ticket.request.kind)
            count, tokens = self.history.get(name, (0, 0))
            self.history[name] = (count + 1, tokens + output_tokens)


class DeficitRoundRobin:
    """Serves tenants in turn, each with as many tokens as its deficit counter allows. The requests of a tenant are
    served in order of arrival.

    The tenant at the front of the ring has its turn. A turn adds a quantum to the counter and lasts until the counter
    cannot pay for the tenant's next prompt. While the tenant has waiting requests, it keeps the remaining tokens.
    Output tokens are charged when a request ends and may leave a debt. A preempted request has already paid and returns
    to the front.
    """

    def __init__(self, quantum: int, chunk_tokens: int | None) -> None:
        self.quantum = quantum
        self.chunk_tokens = chunk_tokens
        self.returned: deque[Ticket] = deque()
        self.queues: dict[str, deque[Ticket]] = {}  # waiting requests of each tenant in the ring
        self.ring: deque[str] = deque()
        self.deficits: dict[str, int] = {}  # tenant -> number of tokens that it may still spend; a debt is negative

    def add(self, ticket: Ticket) -> None:
        tenant = ticket.request.tenant
        if tenant in self.queues:
            self.queues[tenant].append(ticket)
            return
        self.queues[tenant] = deque([ticket])
        self.deficits.setdefault(tenant, 0)
        self.ring.append(tenant)
        if len(self.ring) == 1:
            self.next_turn()

    def put_back(self, ticket: Ticket) -> None:
        self.returned.appendleft(ticket)

    def first(self) -> Ticket:
        return self.returned[0] if self.returned else self.queues[self.ring[0]][0]

    def take(self) -> None:
        if self.returned:
            self.returned.popleft()
            return
        tenant = self.ring[0]
        ticket = self.queues[tenant].popleft()
        self.deficits[tenant] -= ticket.request.prompt_tokens
        if not self.queues[tenant]:
            self.leave(tenant)
        elif self.lacks(tenant) > 0:
            self.ring.rotate(-1)
            self.next_turn()

    def remove(self, ticket: Ticket) -> None:
        if ticket in self.returned:
            self.returned.remove(ticket)
            return
        tenant = ticket.request.tenant
        self.queues[tenant].remove(ticket)
        if not self.queues[tenant]:
            self.leave(tenant)

    def leave(self, tenant: str) -> None:
        """Remove a tenant without waiting requests: its turn ends, and it keeps no credit."""
        had_turn = self.ring[0] == tenant
        self.ring.remove(tenant)
        del self.queues[tenant]
        self.deficits[tenant] = min(0, self.deficits[tenant])
        if had_turn:
            self.next_turn()

    def next_turn(self) -> None:
        """Rotate the ring until a tenant can pay for its next prompt."""
        visited = 0
        while self.ring:
            tenant = self.ring[0]
            self.deficits[tenant] += self.quantum
            if self.lacks(tenant) <= 0:
                return
            self.ring.rotate(-1)
            visited += 1
            if visited == len(self.ring):  # skip all rounds in which no tenant could pay
                visited = 0
                rounds = min(-(-self.lacks(waiting) // self.quantum) for waiting in self.ring) - 1
                for waiting in self.ring:
                    self.deficits[waiting] += rounds * self.quantum

    def lacks(self, tenant: str) -> int:
        return self.queues[tenant][0].request.prompt_tokens - self.deficits[tenant]

    def order(self, running: list[Ticket]) -> list[Ticket]:
        return running

    def chunk(self, ticket: Ticket) -> int | None:
        return self.chunk_tokens

    def ended(self, ticket: Ticket, output_tokens: int, completed: bool) -> None:
        self.deficits[ticket.request.tenant] -= output_tokens
