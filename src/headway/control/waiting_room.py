"""The requests that wait at a router. There are three types:

delayed     admission delayed these requests, and decides again after the delay
queued      these requests are in a queue of flow control; each group of instances has its own queue
stranded    these requests wait for an instance that can serve them, for at most `patience_ps`
"""

from collections.abc import Callable
from copy import copy
from heapq import heappop, heappush
from typing import Any

from headway.control.model_groups import Group, ModelGroups, Stranded
from headway.policies.context import Context
from headway.types import NEVER, Priority, Request

DELAYED, RESCUED, OVERDUE = range(3)  # types of turns; turns that are due at the same time are taken in this order
STALE = (-1, "")  # stands for a delayed request whose client gave up
Turn = tuple[int, int]  # (type, request id); the id is 0 unless the type is DELAYED


class WaitingRoom:
    """The waiting requests. `next_ps` is the next time at which a delay ends or a request times out."""

    def __init__(
        self, context: Context, groups: ModelGroups, flow: Any, patience_ps: int, on_dequeued: Callable[[Request], None]
    ) -> None:
        """Create an empty waiting room. `flow` is the flow-control policy, or None if there are no queues.
        `on_dequeued` is called for each request that leaves a queue."""
        self.context = context
        self.groups = groups
        self.flow = flow
        self.patience_ps = patience_ps  # maximum time that a request waits for an instance to start
        self.on_dequeued = on_dequeued
        self.next_ps = NEVER
        self.delayed: list[tuple[int, int, int, Request]] = []  # heap: (end of delay, id, number of delays, request)
        # request id -> (end of its delay, its model); removed if the client gives up
        self.delayed_until: dict[int, tuple[int, str]] = {}
        self._asked_again = (-1, 0)  # (id, number of delays) of the request whose delay ended last
        self._add_queues()

    def _add_queues(self) -> list[Any]:
        """Give each new group its own queue, so that requests for a saturated model do not block requests for other
        models. Return the new queues."""
        groups = [group for group in self.groups if group.flow is None] if self.flow is not None else []
        for group in groups:
            group.flow = self.flow if group.number == 0 else copy(self.flow)
        return [group.flow for group in groups]

    def queues(self) -> list[Any]:
        return [group.flow for group in self.groups if group.flow is not None]

    def set_next(self) -> None:
        delayed = self.delayed
        while delayed and self.delayed_until.get(delayed[0][1], STALE)[0] != delayed[0][0]:
            heappop(delayed)
        self.next_ps = delayed[0][0] if delayed else NEVER
        for group in self.groups:
            if group.flow is not None:
                self.next_ps = min(self.next_ps, group.flow.next_ps)
                if not group.instances and len(group.flow):
                    self.next_ps = min(self.next_ps, group.empty_ps + self.patience_ps)
            if group.stranded:
                self.next_ps = min(self.next_ps, group.first_stranded.until_ps)

    def delays(self, request_id: int) -> int:
        """If the delay that ended most recently was a delay of this request, return how often the request was delayed.
        Otherwise return 0."""
        last, times = self._asked_again
        return times if last == request_id else 0

    def delay(self, until_ps: int, request: Request) -> None:
        heappush(self.delayed, (until_ps, request.id, self.delays(request.id) + 1, request))
        self.delayed_until[request.id] = until_ps, request.model
        self._count_delayed(request.model, 1)
        self.set_next()

    def strand(self, now_ps: int, request: Request, group: Group, priority: Priority | None = None) -> None:
        """Let a request wait until an instance can serve it. If the request was routed before, `priority` is the
        priority that it got then."""
        group.stranded[request.id] = Stranded(now_ps + self.patience_ps, request, priority)
        self.set_next()

    def next_turn(self, now_ps: int) -> Turn | None:
        """Return the next waiting request that is due, as (type, request id); the id is 0 unless the type is DELAYED.
        The caller must then call the `take_` method of this type. If no request is due, return None."""
        if self.delayed and self.delayed[0][0] <= now_ps:
            return DELAYED, self.delayed[0][1]
        overdue: Turn | None = None
        for group in self.groups:
            if group.stranded:
                if group.instances:
                    return RESCUED, 0
                if group.first_stranded.until_ps <= now_ps:
                    overdue = OVERDUE, 0
        return overdue

    def take_delayed(self) -> Request:
        _, _, times, request = heappop(self.delayed)
        self._asked_again = (request.id, times)
        del self.delayed_until[request.id]
        self._count_delayed(request.model, -1)
        self.set_next()
        return request

    def _count_delayed(self, model: str, change: int) -> None:
        group = self.groups.of(model)
        if group is not None:  # an instance that left may have been the last with this model
            group.delayed += change

    def take_rescued(self) -> Stranded:
        """Remove and return the first request that waited for an instance and can now be served."""
        return self._take_stranded(next(group for group in self.groups if group.stranded and group.instances))

    def take_overdue(self, now_ps: int) -> Request:
        """Remove and return the first request that has waited too long for an instance."""
        late = (group for group in self.groups if group.stranded and group.first_stranded.until_ps <= now_ps)
        return self._take_stranded(next(late)).request

    def _take_stranded(self, group: Group) -> Stranded:
        _, stranded = group.stranded.popitem(last=False)
        self.set_next()
        return stranded

    def give_up(self, request_id: int) -> bool:
        """Remove a request whose client has disconnected. Return False if the request does not wait here."""
        removed = self._remove(request_id)
        if removed:
            self.set_next()
        return removed

    def _remove(self, request_id: int) -> bool:
        delayed = self.delayed_until.pop(request_id, None)
        if delayed is not None:
            self._count_delayed(delayed[1], -1)
            return True
        if any(group.stranded.pop(request_id, None) is not None for group in self.groups):
            return True
        for group in self.groups:
            entry = None if group.flow is None else group.flow.remove(request_id)
            if entry is not None:
                self.on_dequeued(entry.request)
                return True
        return False

    def regroup(self, now_ps: int) -> list[Request]:
        """Form the groups of instances again. Return the requests that waited for groups that no longer exist; the
        caller must let them arrive again."""
        dissolved = self.groups.regroup(self.context.instances, now_ps)
        for queue in self._add_queues():
            queue.bind(self.context)
        for group in self.groups:
            group.delayed = 0
        for _, model in self.delayed_until.values():
            self._count_delayed(model, 1)
        homeless = [request for group in dissolved for request in self._empty(group)]
        self.set_next()
        return sorted(homeless, key=lambda request: request.id)

    def leave(self) -> list[Request]:
        """Remove and return all waiting requests in order of arrival, so that another control plane can take them
        over."""
        waiting = [request for _, number, _, request in self.delayed if number in self.delayed_until]
        for group in self.groups:
            waiting += self._empty(group)
        return sorted(waiting, key=lambda request: request.id)

    def _empty(self, group: Group) -> list[Request]:
        waiting = [stranded.request for stranded in group.stranded.values()]
        group.stranded.clear()
        while group.flow is not None and (entry := group.flow.oldest()) is not None:
            self.on_dequeued(entry.request)
            waiting.append(entry.request)
        return waiting

    @property
    def queued(self) -> int:
        """Number of requests in the queues of flow control."""
        return sum([len(queue) for queue in self.queues()])

    def pending(self, pool: str) -> int:
        """Return the number of waiting requests that a pool could serve. Requests that admission has delayed count
        too."""
        count = 0
        for group in self.groups:
            if pool in group.pools:
                count += group.delayed + len(group.stranded) + (0 if group.flow is None else len(group.flow))
        return count
