"""A link between stores of KV blocks, whose bandwidth the transfers on it share equally.

A transfer's bytes go over the link first, the more slowly the more others do, and arrive a fixed latency later. Time is
settled only when a transfer starts or somebody waits for its end: `progress` is how long each has had the whole link
to itself since the beginning, in fine units, so that who is further by its own length than at its start is through.
"""

from bisect import insort
from collections import deque
from heapq import heappop, heappush

from headway.sim.job import Job
from headway.types import NEVER, PS_PER_SECOND

FINE = 40  # bits of a picosecond
LOST = 1 << 20  # more than progress has lost by rounding down, which must not cost a whole picosecond


class Load:
    """Blocks of one request on their way to the instance that waits for them."""

    __slots__ = ("awaited", "end", "instance", "job", "left", "links", "start")

    def __init__(self, instance: int, job: Job, start: int, end: int) -> None:
        self.instance = instance
        self.job = job
        self.start = start  # its first block
        self.end = end  # and the one after its last
        self.left = 0  # transfers that have not arrived
        self.links: list[int] = []  # that they go over
        self.awaited = True  # until the request gives up


class Link:
    def __init__(self, bandwidth: int, latency_ps: int) -> None:
        self.bandwidth = bandwidth  # bytes a second
        self.latency_ps = latency_ps
        self.leaving: list[int] = []  # the progress at which the last byte of each transfer leaves, in order
        self.awaited: list[tuple[int, int, Load]] = []  # heap of those that somebody waits for
        self.under_way: deque[tuple[int, Load]] = deque()  # when they arrive
        self.progress = 0
        self.since = 0  # when it was settled
        self.clear_ps = 0  # when its last byte leaves, where one transfer has it to itself
        self.numbered = 0  # that somebody waited for; where they leave together they keep their order
        self.next_ps = NEVER  # when the first arrives that somebody waits for, if `sure`; else the earliest it can
        self.sure = True  # nothing that delays it has started since that was worked out
        self.busy_ps = 0  # with bytes on it
        self.moved_bytes = 0

    def start(self, now: int, amount: int, load: Load | None = None, after: int = 0) -> int:
        """A transfer of so many bytes begins; it takes at least a picosecond. Somebody may wait for it, and for earlier
        ones, the last of which leaves at the progress `after`; nobody does for what is stored away. The progress at
        which it leaves."""
        leaving = self.leaving
        alone_ps = -(-amount * PS_PER_SECOND // self.bandwidth) or 1
        if self.clear_ps <= now and not self.awaited:  # as `settle` would find; most have the link to themselves
            if leaving:
                self.progress = leaving.pop()
                self.busy_ps += self.clear_ps - self.since
            self.since = now
            self.clear_ps = now + alone_ps
        else:
            self.settle(now)
            self.clear_ps = NEVER if leaving else now + alone_ps
            self.sure = False
        goal = self.progress + (alone_ps << FINE)
        insort(leaving, goal)
        if load is not None:
            self.numbered += 1
            heappush(self.awaited, (goal if goal > after else after, self.numbered, load))
            self.next_ps = min(self.next_ps, now + alone_ps + self.latency_ps)
        self.moved_bytes += amount
        return goal

    def take_arrived(self, now: int) -> list[Load]:
        """What arrives at this instant, in the order in which the last bytes left; called at `next_ps`."""
        self.settle(now)
        loads = []
        while self.under_way and self.under_way[0][0] == now:
            loads.append(self.under_way.popleft()[1])
        self.set_next()
        return loads

    def settle(self, now: int) -> None:
        """Let everything leave whose last byte has left by now."""
        leaving = self.leaving
        if leaving:
            awaited, at, progress = self.awaited, self.since, self.progress
            left = count = len(leaving)
            for goal in leaving:
                leaves = at - ((progress - goal) * left + LOST >> FINE)
                if leaves > now:
                    progress += ((now - at) << FINE) // left
                    at = now
                    break
                left -= 1
                at = leaves
                progress = goal
                while awaited and awaited[0][0] <= goal:
                    self.under_way.append((at + self.latency_ps, heappop(awaited)[2]))
            if left < count:
                del leaving[: count - left]
            self.progress = progress
            self.busy_ps += at - self.since
        self.since = now

    def set_next(self) -> None:
        self.sure = True
        under_way, awaited = self.under_way, self.awaited
        while under_way and not under_way[0][1].awaited:
            under_way.popleft()
        while awaited and not awaited[0][2].awaited:
            heappop(awaited)
        if under_way:
            self.next_ps = under_way[0][0]
        else:
            self.next_ps = self.leaves(awaited[0][0]) + self.latency_ps if awaited else NEVER

    def leaves(self, last: int) -> int:
        """When a last byte leaves whose transfer has such a goal, if nothing is added: stage by stage, as `settle`."""
        at, progress, left = self.since, self.progress, len(self.leaving)
        for goal in self.leaving:
            if goal > last:
                break
            at -= (progress - goal) * left + LOST >> FINE
            progress = goal
            left -= 1
        return at


class Links:
    """All links of a cluster, and when something arrives next on any of them: not before `next_ps`. What starts only
    delays what is on its way, so when that arrives is worked out when it may be what happens next."""

    __slots__ = ("heap", "links", "next_ps")

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.heap: list[tuple[int, int]] = []  # when, which; an entry that its link no longer has is stale
        self.next_ps = NEVER

    def add(self, bandwidth: int, latency_ps: int) -> int:
        """A new link's number."""
        self.links.append(Link(bandwidth, latency_ps))
        return len(self.links) - 1

    def start(self, now: int, number: int, amount: int, load: Load, after: int = 0) -> None:
        """One begins that somebody waits for."""
        link = self.links[number]
        before = link.next_ps
        link.start(now, amount, load, after)
        load.links.append(number)
        if link.next_ps < before:  # then it is its first entry that counts
            heappush(self.heap, (link.next_ps, number))
            if link.next_ps < self.next_ps:
                self.next_ps = link.next_ps

    def make_sure(self, now: int) -> None:
        """If `next_ps` is no later than now, it is when something arrives."""
        heap = self.heap
        while heap and heap[0][0] <= now and not self.links[heap[0][1]].sure:
            _, number = heappop(heap)
            self.links[number].set_next()
            self._push(number, self.links[number])
            self._drop_stale()

    def forget(self, load: Load) -> None:
        """Nobody waits for it any more; what is on its way goes on, but its arrival is no event."""
        load.awaited = False
        for number in load.links:
            self.links[number].set_next()
            self._push(number, self.links[number])
        self._drop_stale()

    def take_arrived(self, now: int) -> list[Load]:
        """The loads whose last transfer arrives at this instant, by link; called at `next_ps`."""
        loads: list[Load] = []
        while self.heap and self.heap[0][0] == now:
            _, number = heappop(self.heap)
            link = self.links[number]
            if link.next_ps != now:
                continue
            if link.sure:
                for load in link.take_arrived(now):
                    load.left -= 1
                    if not load.left:
                        loads.append(load)
            else:
                link.set_next()
            self._push(number, link)
        self._drop_stale()
        return loads

    def _push(self, number: int, link: Link) -> None:
        if link.next_ps != NEVER:
            heappush(self.heap, (link.next_ps, number))

    def _drop_stale(self) -> None:
        heap = self.heap
        while heap and self.links[heap[0][1]].next_ps != heap[0][0]:
            heappop(heap)
        self.next_ps = heap[0][0] if heap else NEVER
