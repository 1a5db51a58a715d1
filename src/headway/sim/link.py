"""A link between stores of KV blocks. Concurrent transfers share its bandwidth equally.

A transfer leaves the link when its last byte does, and arrives a fixed latency after that. The state of a link is
updated only when a transfer starts or when an awaited transfer arrives. `progress` is the virtual time of the link, in
units of 2**-40 ps: while n transfers share the link, it grows by 1/n ps in each picosecond. A transfer leaves the link
when `progress` has grown by the time that the transfer needs if it is alone on the link.
"""

from bisect import insort
from collections import deque
from heapq import heappop, heappush

from headway.results.records import KvMove
from headway.sim.job import Job
from headway.types import NEVER, PS_PER_SECOND

FINE = 40  # number of bits in `progress` for fractions of a picosecond
LOST = 1 << 20  # tolerance, larger than the rounding error of `progress`, so that this error does not add a picosecond


class Load:
    """Blocks of one request that are being loaded to the instance where the request waits."""

    __slots__ = ("awaited", "end", "instance", "job", "left", "links", "start")

    def __init__(self, instance: int, job: Job, start: int, end: int) -> None:
        self.instance = instance
        self.job = job
        self.start = start  # first block of the load
        self.end = end  # block after the last block of the load
        self.left = 0  # number of the load's transfers that have not arrived
        self.links: list[int] = []  # numbers of the links that carry the transfers
        self.awaited = True  # False after the request's client has given up


class Link:
    def __init__(self, bandwidth: int, latency_ps: int) -> None:
        self.bandwidth = bandwidth  # bytes per second
        self.latency_ps = latency_ps
        self.leaving: list[int] = []  # for each transfer, the `progress` at which it leaves the link; sorted
        # Heap of transfers that requests wait for: (`progress` at which the transfer leaves the link, number, load).
        self.awaited: list[tuple[int, int, Load]] = []
        self.under_way: deque[tuple[int, Load]] = deque()  # transfers that have left the link: (arrival, load)
        self.progress = 0
        self.since = 0  # time of the last update of `progress`
        self.clear_ps = 0  # time at which the link becomes idle, if it has only one transfer
        self.numbered = 0  # number of awaited transfers so far; it orders transfers that leave together
        self.next_ps = NEVER  # time of the next awaited arrival if `sure`, otherwise a lower bound of that time
        self.sure = True  # whether no transfer has started since `next_ps` was computed
        self.busy_ps = 0  # total time in which the link had transfers
        self.moved_bytes = 0

    def start(self, now: int, amount: int, load: Load | None = None, after: int = 0) -> int:
        """Start a transfer, and return the progress at which it leaves the link. If a `load` waits for the transfer, it
        also waits for its own earlier transfers, which have left the link when `progress` reaches `after`. A transfer
        takes at least one picosecond."""
        leaving = self.leaving
        alone_ps = -(-amount * PS_PER_SECOND // self.bandwidth) or 1
        if self.clear_ps <= now and not self.awaited:  # the link is idle, as in most cases: a short form of `settle`
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
        """Return the loads that arrive at this instant, in the order in which they left the link. Call this only at
        `next_ps`."""
        self.settle(now)
        loads = []
        while self.under_way and self.under_way[0][0] == now:
            loads.append(self.under_way.popleft()[1])
        self.set_next()
        return loads

    def settle(self, now: int) -> None:
        """Update `progress`, and remove the transfers that have left the link by now."""
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
        """Return when `progress` reaches `last` if no other transfer starts. The computation must match `settle`."""
        at, progress, left = self.since, self.progress, len(self.leaving)
        for goal in self.leaving:
            if goal > last:
                break
            at -= (progress - goal) * left + LOST >> FINE
            progress = goal
            left -= 1
        return at


class TracedLink(Link):
    """A link that also notes when recorded moves arrive. Other links track only the transfers that requests wait
    for."""

    def __init__(self, bandwidth: int, latency_ps: int) -> None:
        super().__init__(bandwidth, latency_ps)
        # heap of (`progress` at which the move leaves the link, number, move)
        self.moves: list[tuple[int, int, KvMove]] = []
        self.followed = 0  # number of moves so far

    def follow(self, goal: int, move: KvMove) -> None:
        """Set `end_ps` of the move when its transfer has arrived. The transfer leaves the link when `progress` reaches
        `goal`."""
        self.followed += 1
        heappush(self.moves, (goal, self.followed, move))

    def start(self, now: int, amount: int, load: Load | None = None, after: int = 0) -> int:
        self.note_ends(now)
        return super().start(now, amount, load, after)

    def settle(self, now: int) -> None:
        self.note_ends(now)
        super().settle(now)

    def note_ends(self, now: int) -> None:
        moves = self.moves
        while moves and (left_ps := self.leaves(moves[0][0])) <= now:
            heappop(moves)[2].end_ps = left_ps + self.latency_ps


class Links:
    """All links of a cluster. Nothing arrives on any of them before `next_ps`. A new transfer can only delay the other
    transfers of its link. Therefore exact arrival times are computed only when an arrival may be the next event."""

    __slots__ = ("heap", "links", "next_ps", "traced")

    def __init__(self, traced: bool = False) -> None:
        """`traced` says whether the links note when recorded moves arrive."""
        self.traced = traced
        self.links: list[Link] = []
        self.heap: list[tuple[int, int]] = []  # heap of (arrival, link); stale if it differs from the link's `next_ps`
        self.next_ps = NEVER

    def add(self, bandwidth: int, latency_ps: int) -> int:
        """Add a link, and return its number."""
        self.links.append((TracedLink if self.traced else Link)(bandwidth, latency_ps))
        return len(self.links) - 1

    def start(self, now: int, number: int, amount: int, load: Load, after: int = 0) -> int:
        """Start a transfer that a load waits for, and return the link's progress at which it leaves the link."""
        link = self.links[number]
        before = link.next_ps
        goal = link.start(now, amount, load, after)
        load.links.append(number)
        if link.next_ps < before:
            heappush(self.heap, (link.next_ps, number))
            if link.next_ps < self.next_ps:
                self.next_ps = link.next_ps
        return goal

    def follow(self, number: int, goal: int, move: KvMove) -> None:
        """Note in a recorded move when its transfer arrives."""
        link = self.links[number]
        assert isinstance(link, TracedLink)
        link.follow(goal, move)

    def make_sure(self, now: int) -> None:
        """Make sure that `next_ps` is exact if it is not later than now. To do so, compute exact arrival times link by
        link."""
        heap = self.heap
        while heap and heap[0][0] <= now and not self.links[heap[0][1]].sure:
            _, number = heappop(heap)
            self.links[number].set_next()
            self._push(number, self.links[number])
            self._drop_stale()

    def forget(self, load: Load) -> None:
        """Stop waiting for a load. Its transfers continue, but their arrival is not an event."""
        load.awaited = False
        for number in load.links:
            self.links[number].set_next()
            self._push(number, self.links[number])
        self._drop_stale()

    def take_arrived(self, now: int) -> list[Load]:
        """Return the loads whose last transfer arrives at this instant, in order of link. Call only at `next_ps`."""
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
