"""The event loop: joins workload, control plane and instances.

At one instant: (a) all step ends, by instance; (b) first tokens reach the router, then arrivals are admitted and
routed, then what admission put off until now comes up again, then clients whose deadline this is give up, then what
ended at this instant reaches the router, each by request; where the router has a queue of its own, those that have
waited too long leave it, the oldest first, then requests are sent in the queue's order, then what is beyond its
capacity is turned away, the newest first; and what follows from all this at once goes the same way again; (c) step
begins, by instance. Every reader at t sees the steps ended at or before t.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush

from headway.errors import HeadwayError
from headway.results.recorder import Recorder
from headway.sim.cluster import Cluster, by_row
from headway.sim.fleet import INDEX_BITS
from headway.types import NEVER
from headway.workload.traffic import Traffic

PROGRESS_EVERY = 1000  # arrivals
LAST = (1 << 63) - 1  # the columns' last picosecond
TOO_LONG = (
    "The run would go on beyond 106 days of simulated time, where the clock ends; "
    "shorten it with 'horizon', or look at the figures of the latency model and of the links."
)


COLLECT_AFTER = 200_000  # objects more; a run makes many that live long, and hardly ever a circle of them


@contextmanager
def collecting_seldom() -> Iterator[None]:
    before = gc.get_threshold()
    if 0 < before[0] < COLLECT_AFTER:
        gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Simulation(Cluster):
    """One run. `run` may be called once."""

    def run(self, traffic: Traffic, progress: Callable[[int, int], None] | None = None) -> Recorder:
        with collecting_seldom():
            return self._run(traffic, progress)

    def _run(self, traffic: Traffic, progress: Callable[[int, int], None] | None) -> Recorder:
        ends, begins, done, first_tokens = self.ends, self.begins, self.done, self.first_tokens
        instances, first_token, routers = self.instances, self.control.first_token, self.routers
        mask = (1 << INDEX_BITS) - 1
        horizon = LAST if self.setup.horizon_ps is None else min(self.setup.horizon_ps, LAST)
        hears = self.signals.vary and bool(self.control.observers)  # a policy may look when it is told something
        queues = self.queues
        stirred = False  # something has happened after which the router looks at its queue, or the autoscaler looks
        listens = self.listens = traffic.listens
        capacity = self.capacity
        watches = queues or capacity is not None
        follows = listens or watches  # whether what happens at an instant may bring on more at the same
        prepares = routers is not None or watches or hears  # whether something precedes what the router is told
        links = self.links
        loads = bool(links.links)
        arrival = traffic.next_ps
        self.started_ps = self.now = min(0 if arrival == NEVER else arrival, horizon)
        self.watch()
        if capacity is not None:
            capacity.start(self.now)
        while True:
            end = ends[0] >> INDEX_BITS
            now = end if end < arrival else arrival
            if capacity is not None and arrival == NEVER and capacity.deserted():
                break
            if self.timer < now:
                now = self.timer
            if loads and links.next_ps <= now:
                links.make_sure(now)
                if links.next_ps < now:
                    now = links.next_ps
            if now > horizon:
                break
            # (a) step ends
            while end == now:
                index = heappop(ends) & mask
                instance = instances[index]
                if instance.end == now:
                    instance.finish_run(now)
                    begins.append(index)
                end = ends[0] >> INDEX_BITS
            if not begins and arrival != now and self.timer != now and links.next_ps != now:  # only stale entries
                continue
            self.now = now
            if prepares:
                if routers is not None and now >= routers.sync_at:
                    routers.sync(now)
                if watches:
                    stirred = bool(first_tokens or done) or now in (arrival, self.timer, links.next_ps)
                if hears and (first_tokens or done or self.handed):
                    self.signals.refresh(now)
            if first_tokens:
                if len(first_tokens) > 1:
                    first_tokens.sort(key=by_row)
                for job in first_tokens:
                    first_token(now, job.row)
                first_tokens.clear()
            if self.handed:
                self.pass_on(now)
            # (b) arrivals, what was held back until now, clients that give up; then what the router hears of endings,
            # what it sends from its queue, and what follows from them at once
            while True:
                while arrival == now:
                    planned = traffic.take()
                    self.arrive(now, planned)
                    if progress is not None and planned.request.id % PROGRESS_EVERY == 0:
                        progress(planned.request.id, now)
                    arrival = traffic.next_ps
                if loads and links.next_ps == now:
                    self.deliver(now)
                if self.timer == now:
                    self.ring(now)
                if done:
                    self.complete(now, traffic if listens else None)
                if not follows:
                    break
                if capacity is not None and stirred and capacity.wanted(now):
                    capacity.manage(now)
                if stirred and queues:
                    self.pump(now)
                if listens:
                    if self.refused:
                        self.tell_refused(now, traffic)
                    arrival = traffic.next_ps
                if arrival != now and self.timer != now and not (stirred and done):
                    break
            # (c) step begins
            if begins:
                if len(begins) > 1:
                    begins.sort()
                for index in begins:
                    instance = instances[index]
                    if instance.end < 0 and instance.begin(now):
                        heappush(ends, instance.end << INDEX_BITS | index)
                begins.clear()
        self.ended_ps = self.now
        if arrival != NEVER or self.held or any(instance.running or instance.queued() for instance in instances):
            if self.setup.horizon_ps is None:
                raise HeadwayError(TOO_LONG)
            if routers is not None and horizon >= routers.sync_at:
                routers.sync(horizon)
            self.stop(horizon)
            if self.losses is not None:
                self.losses.stop()
            traffic.stop()
        self.recorder.not_issued = traffic.not_issued
        self.recorder.abandoned = traffic.abandoned
        self.recorder.retried = traffic.retried
        self.close()
        return self.recorder
