"""The requests that wait at a router: put off by admission, in its queue, or for an instance to come up."""

from __future__ import annotations

from copy import copy
from heapq import heappop
from typing import Any

from headway.control.flights import FlightBook
from headway.control.model_groups import Group, Stranded, grouped
from headway.policies.context import Context
from headway.types import NEVER, Priority, Request


class WaitingRoom(FlightBook):
    """What waits comes up again at `next_ps`, or when something has happened."""

    flow: Any  # the queue's policy; each group has its own

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.groups, self.by_model = grouped(context.instances)
        self.patience_ps = NEVER  # how long a request waits for an instance to come up
        # heap of what admission put off: when to ask again, id, how often it was put off
        self.held: list[tuple[int, int, int, Request]] = []
        self.asked_again = (-1, 0)  # which request came up last, and how often it had been put off
        self.put_off: dict[int, int] = {}  # when to ask again by id, of those that have not been given up
        self.next_ps = NEVER  # when the first of them comes up again, or the first in the queue has waited too long

    def due(self, now_ps: int) -> Request | None:
        """The next request that was put off until now, or until earlier where the caller's clock is late; it is to
        `arrive` again."""
        if not self.held or self.held[0][0] > now_ps:
            return None
        _, _, times, request = heappop(self.held)
        self.asked_again = (request.id, times)
        del self.put_off[request.id]
        self.set_next()
        return request

    def set_next(self) -> None:
        held = self.held
        while held and self.put_off.get(held[0][1]) != held[0][0]:  # given up meanwhile
            heappop(held)
        self.next_ps = held[0][0] if held else NEVER
        if self.flow is not None:
            self.next_ps = min(self.next_ps, *(group.flow.next_ps for group in self.groups))
        for group in self.groups:
            if group.stranded:
                self.next_ps = min(self.next_ps, next(iter(group.stranded.values())).until_ps)
            if not group.instances and group.flow is not None and len(group.flow):
                self.next_ps = min(self.next_ps, group.empty_ps + self.patience_ps)

    def strand(self, now_ps: int, request: Request, group: Group, priority: Priority | None = None) -> None:
        """A request finds no instance to go to, and waits for one."""
        group.stranded[request.id] = Stranded(now_ps + self.patience_ps, request, priority)
        self.set_next()

    def rescue(self) -> Stranded | None:
        """The next request that waited for an instance and now has one; it is to `arrive` again, or to be resent."""
        for group in self.groups:
            if group.stranded and group.instances:
                found = group.stranded.pop(next(iter(group.stranded)))
                self.set_next()
                return found
        return None

    def forsaken(self, now_ps: int) -> Request | None:
        """The next request that has waited for an instance as long as one may."""
        for group in self.groups:
            if group.stranded and next(iter(group.stranded.values())).until_ps <= now_ps:
                found = group.stranded.pop(next(iter(group.stranded)))
                self.set_next()
                return found.request
        return None

    def give_up(self, request_id: int) -> bool:
        """The client of a request that is put off or waits in the queue has gone. False if it is neither."""
        if self.put_off.pop(request_id, None) is not None:
            self.set_next()
            return True
        for group in self.groups:
            if group.stranded.pop(request_id, None) is not None:
                self.set_next()
                return True
        entry = None
        for group in self.groups if self.flow is not None else ():
            entry = group.flow.remove(request_id)
            if entry is not None:
                break
        if entry is None:
            return False
        if self.state is not None:
            self.state.left(entry.request)
        self.set_next()
        return True

    def pools_of(self, request: Request) -> tuple[str, ...]:
        """Where a request could go, were all instances up."""
        group = self.groups[0] if self.by_model is None else self.by_model.get(request.model)
        return () if group is None else group.pools

    def pending(self, pool: str) -> int:
        """Requests that wait here, and could go to a pool."""
        found = 0
        for group in self.groups:
            if pool in group.pools:
                found += len(group.stranded) + (0 if group.flow is None else len(group.flow))
        return found

    def regroup(self, now_ps: int) -> list[Request]:
        """Other instances have taken places, or serve other models. Whoever waits goes on waiting where the names of
        its group are the same; the others are given back, to `arrive` again."""
        self.views = {view.id: view for view in self.ordered if view.id}
        before = {group.names: group for group in self.groups}
        number = max(group.number for group in self.groups)
        self.groups, self.by_model = grouped(self.ordered)
        for group in self.groups:
            if group.names in before:
                group.follow(before.pop(group.names), now_ps)
                continue
            number += 1
            group.number = number
            group.regroup(now_ps)
            if self.flow is not None:
                group.flow = copy(self.flow)
                group.flow.bind(self.context)
        homeless = [request for group in before.values() for request in self.emptied(group)]
        self.set_next()
        return sorted(homeless, key=lambda request: request.id)

    def emptied(self, group: Group) -> list[Request]:
        """Those that wait in a group, taken out of it."""
        found = [stranded.request for stranded in group.stranded.values()]
        group.stranded.clear()
        while group.flow is not None and (entry := group.flow.oldest()) is not None:
            if self.state is not None:
                self.state.left(entry.request)
            found.append(entry.request)
        return found

    def leave(self) -> list[Request]:
        """All that wait here, in order of arrival, as another control plane takes over."""
        found = [request for _, number, _, request in self.held if number in self.put_off]
        for group in self.groups:
            found += self.emptied(group)
        return sorted(found, key=lambda request: request.id)
