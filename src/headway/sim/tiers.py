"""The tiers below an instance's GPU, and the moves of content between them.

Moves happen only at scheduling changes (a request enters, leaves, is preempted or gives up, or its blocks arrive), not
inside a run. Between two changes, the GPU's cache notes what it has evicted or stored.

    lazy        evicted content moves down and loads move it up again, so that the capacities add up
    threshold   like lazy, but the GPU also evicts its least recently used content if its use exceeds a threshold
    eager       computed content is copied down at once and loads keep the copy, so that only the larger capacity counts
"""

from headway.errors import InvariantError
from headway.policies.prefix_tiers import GONE, GPU, TIERS
from headway.results.recorder import Recorder
from headway.results.records import KvMove, Thrash
from headway.sim.engine_logs import Reporter
from headway.sim.job import Job
from headway.sim.kv_cache import LATER, KvCache, Runs, Stretch
from headway.sim.link import Links, Load
from headway.sim.ranked_cache import RankedCache
from headway.sim.recent_values import MoveRate
from headway.sim.setup import EngineSetup
from headway.sim.tier import Tier
from headway.types import PS_PER_SECOND

THRASH_PS = PS_PER_SECOND  # if content is loaded again within this time after its offload, it counts as thrashed
DOWN = ("offload", "swap_out")  # kinds of moves to a slower tier
Place = tuple[Tier, int, int]  # (fastest store that has the blocks, first block, end block)
# (time, LATER, key, block, source, target). For a move to the GPU, `block` is the block after the last moved one. For
# other moves, it is the first moved block.
Move = tuple[int, int, int, int, int, int]


class Tiers:
    def __init__(
        self, cache: KvCache, tiers: list[Tier], links: Links, engine: EngineSetup, recorder: Recorder
    ) -> None:
        self.cache = cache
        self.tiers = tiers  # the stores, fastest first
        self.links = links
        self.index = engine.view.index
        self.recorder = recorder
        self.block_bytes = engine.block_bytes
        self.eager = engine.kv.offload == "eager"
        self.swaps = engine.kv.preemption == "swap"
        self.level = cache.total  # maximum number of blocks that the GPU may have in use or cached
        if engine.kv.offload == "threshold":
            self.level = int(engine.kv.offload_level * cache.total)
        if self.eager:
            cache.stored = []
        else:
            cache.spilt = []
        self.counts = engine.kv.eviction == "lfu"
        for tier in tiers:
            tier.users.append(self)
        self.moved: Reporter | None = None  # set if a policy observes moves of blocks
        # job -> (store, number of blocks that are moving from the store to the GPU)
        self.lent: dict[Job, list[tuple[Tier, int]]] = {}
        self.began: dict[Job, int] = {}  # request -> time at which it began to wait for its blocks
        self.waits: list[int] = []  # durations of the waits for blocks that have ended
        self.log: list[Move] | None = None  # log of moves; None if they are not reported
        self.down: MoveRate | None = None  # rate of moves from the GPU; None if no policy reads it
        self.up: MoveRate | None = None  # rate of moves to the GPU; None if no policy reads it

    def hear(self) -> list[Move]:
        """Begin to log moves, and return the log."""
        self.log = []
        if self.cache.spilt is None:
            self.cache.spilt = []
        return self.log

    def match(self, runs: Runs, start: int, limit: int) -> int:
        """Return the first block at or after block `start` that no store has, but at most `limit`."""
        places = self.places(runs, start, limit)
        return places[-1][2] if places else start

    def places(self, runs: Runs, start: int, limit: int) -> list[Place]:
        """Return from which store to load each block: the fastest store that has it. The result covers the blocks from
        `start` to `limit`, or to the first block that no store has."""
        lying: list[Place] = []
        last: Tier | None = None
        at = since = start
        for key, end in runs:
            if end <= at:
                continue
            if end > limit:
                end = limit
            while at < end:
                to = end
                for tier in self.tiers:
                    spans = tier.store.spans.get(key)
                    if spans is None:
                        continue
                    first = spans[0]
                    if first[0] <= at and to <= first[1]:  # the most frequent case: the first span has all these blocks
                        break
                    covered = tier.store.covered_to(key, at)
                    if covered > at:
                        to = min(covered, to)
                        break
                    to = tier.store.first_in(key, at, to)  # this store has no block between `at` and the new `to`
                else:
                    if last is not None:
                        lying.append((last, since, at))
                    return lying
                if tier is not last:
                    if last is not None:
                        lying.append((last, since, at))
                    last, since = tier, at
                at = to
            if at >= limit:
                break
        if last is not None:
            lying.append((last, since, at))
        return lying

    def load(self, now: int, load: Load, places: list[Place]) -> None:
        """Start to load the blocks of a request from the stores that `places` names."""
        job = load.job
        self.began[job] = now
        if self.up is not None:
            self.up.add(now, load.end - load.start)
        for tier, first, last in places:
            content = stretches(job.runs, first, last, job.ticket.priority)
            tier.loaded += last - first
            if not job.started:
                tier.hits += last - first
                self.recorder.loaded_from[job.row] = max(tier.level, self.recorder.loaded_from[job.row])
            move = None
            if self.recorder.events is not None or self.moved is not None:
                move = self.tell_move(now, "reload", tier, last - first, job)
            if self.eager or tier.shared:  # the store keeps its copy
                thrashed = tier.store.touch(content, self.counts, now - THRASH_PS)
            else:
                thrashed = tier.store.younger(content, now - THRASH_PS)
                tier.lent += last - first
                tier.store.blocks += last - first
                tier.note(now)
                self.lent.setdefault(job, []).append((tier, last - first))
            if thrashed:
                tier.thrashed += thrashed
                self.recorder.thrashed.append(Thrash(now, self.index, job.row, tier.name, thrashed))
            load.left += 1
            goal = self.links.start(now, tier.link, (last - first) * self.block_bytes, load)
            if move is not None:
                self.links.follow(tier.link, goal, move)

    def on_loaded(self, now: int, job: Job, start: int, end: int) -> None:
        """Remove loaded blocks from the stores, unless the stores keep copies."""
        self.end_wait(now, job)
        if self.log is not None or self.counts:
            content = stretches(job.runs, start, end)
            if self.log is not None:
                self.log.extend((now, LATER, key, last, GONE, GPU) for key, _, last, _ in content)
            if self.counts:
                self.count_on(content)
        if self.eager:
            return
        for tier in self.tiers:
            if not tier.shared:
                store = tier.store
                for key, last in job.runs:
                    if key in store.spans:
                        store.discard(key, start, end if end < last else last)
                tier.note(now)
        self.take_back(now, job)

    def take_back(self, now: int, job: Job) -> None:
        """Remove the extra capacity that the stores had during a load, after the load has ended or was cancelled."""
        for tier, count in self.lent.pop(job, ()):
            tier.lent -= count
            tier.store.blocks -= count
            self.spill(now, tier)

    def spill(self, now: int, tier: Tier) -> None:
        """Move the content that exceeds the capacity of a store to the next store."""
        content = tier.store.overflow()
        tier.note(now)
        if self.log is not None:
            self.tell_lost(now, tier, content)
        self.put(self.tiers[self.tiers.index(tier) + 1 :], now, content)

    def count_on(self, content: list[Stretch]) -> None:
        """Copy the use counts of loaded content from the stores to the GPU's cache."""
        cache = self.cache
        assert isinstance(cache, RankedCache)
        for tier in reversed(self.tiers):
            # If the store keeps its copy, its use count already includes this load.
            own = 0 if self.eager or tier.shared else 1
            for key, first, last, _ in content:
                for left, right, _, _, count, _ in tier.store.within(key, first, last):
                    cache.lift(key, left, right, count + own)

    def swap_out(self, now: int, job: Job) -> bool:
        """Swap the blocks of a preempted request out to the first store. Return False if that store has no room, or if
        preemption does not swap."""
        tier = self.tiers[0]
        if not self.swaps or job.blocks > tier.store.blocks - tier.lent:
            return False
        tier.store.blocks -= job.blocks
        tier.swapped += job.blocks
        move = None
        if self.recorder.events is not None or self.moved is not None:
            move = self.tell_move(now, "swap_out", tier, job.blocks, job)
        if self.down is not None:
            self.down.add(now, job.blocks)
        self.spill(now, tier)
        goal = self.links.links[tier.link].start(now, job.blocks * self.block_bytes)
        if move is not None:
            self.links.follow(tier.link, goal, move)
        return True

    def swap_in(self, now: int, load: Load) -> None:
        job = load.job
        load.left = 1
        move = None
        if self.recorder.events is not None or self.moved is not None:
            move = self.tell_move(now, "swap_in", self.tiers[0], job.swapped, job)
        self.began[job] = now
        if self.up is not None:
            self.up.add(now, job.swapped)
        goal = self.links.start(now, self.tiers[0].link, job.swapped * self.block_bytes, load)
        if move is not None:
            self.links.follow(self.tiers[0].link, goal, move)

    def end_swap(self, now: int, job: Job) -> None:
        """Free the swapped-out blocks of a request, after they were loaded or if they are no longer needed."""
        tier = self.tiers[0]
        tier.store.blocks += job.swapped
        tier.swapped -= job.swapped
        tier.note(now)
        job.swapped = 0
        if job in self.began:
            self.end_wait(now, job)

    def end_wait(self, now: int, job: Job) -> None:
        """Record how long a request has waited for its blocks."""
        waited = now - self.began.pop(job)
        self.waits.append(waited)
        if not job.generated:  # later loads are part of the time that a preemption costs
            self.recorder.loading_ps[job.row] += waited

    def settle(self, now: int) -> None:
        """Offload the content that the GPU's cache has evicted since the last scheduling change. If offload is eager,
        instead offload the content that the cache has stored since that change."""
        cache = self.cache
        if self.eager:
            assert cache.stored is not None
            if cache.stored:
                self.come_down(now, cache.stored)
                cache.stored.clear()
            if cache.spilt:
                self.tell_places(now, cache.spilt)
                cache.spilt.clear()
            return
        assert cache.spilt is not None
        if self.level < cache.total:
            over = min(cache.held + cache.idle - self.level, cache.idle)
            if over > 0:
                cache.evict(over)
        if cache.spilt:
            if self.log is not None:
                level = self.tiers[0].level
                self.log.extend((now, LATER, key, start, GPU, level) for key, start, _, _ in cache.spilt)
            self.come_down(now, cache.spilt)
            cache.spilt.clear()

    def come_down(self, now: int, content: list[Stretch]) -> None:
        """Put content that comes from the GPU into the stores, and count its blocks for the offload rate."""
        stored = self.tiers[0].stored
        self.put(self.tiers, now, content)
        if self.down is not None and (fresh := self.tiers[0].stored - stored):
            self.down.add(now, fresh)

    def put(self, tiers: list[Tier], now: int, content: list[Stretch]) -> None:
        """Put content into the first store. If a store then evicts content, put that content into the next store."""
        for tier in tiers:
            if not content:
                break
            store = tier.store
            used = store.used
            fresh = store.put(content, now)
            if tier.log is not None:
                tier.tell(now, content, True)
            content = []
            if store.used > store.blocks:
                content = store.overflow()
                if self.log is not None:
                    self.tell_lost(now, tier, content)
            if store.used != used:
                tier.note(now)
            if fresh:
                tier.stored += fresh
                move = None
                if self.recorder.events is not None or self.moved is not None:
                    move = self.tell_move(now, "offload", tier, fresh)
                goal = self.links.links[tier.link].start(now, fresh * self.block_bytes)
                if move is not None:
                    self.links.follow(tier.link, goal, move)

    def clear(self, now: int) -> None:
        """Clear the stores that are not shared."""
        for tier in self.tiers:
            if not tier.shared:
                tier.store.clear()
                tier.note(now)

    def tell_move(self, now: int, kind: str, tier: Tier, blocks: int, job: Job | None = None) -> KvMove | None:
        """Report a move to policies that observe moves, and return its record; None if moves are not recorded."""
        move = None
        if self.recorder.events is not None:
            above = self.tiers.index(tier)
            upper = self.tiers[above - 1].name if kind == "offload" and above else TIERS[GPU]
            source, target = (upper, tier.name) if kind in DOWN else (tier.name, upper)
            move = KvMove(now, self.index, kind, tier.name, blocks, -1 if job is None else job.row, source, target)
            self.recorder.events.append(move)
        if self.moved is not None:
            self.moved.report(now, None if job is None else job.request, kind, tier.name, blocks)
        return move

    def tell_places(self, now: int, content: list[Stretch]) -> None:
        """Log which store, if any, still has a copy of content that left the GPU."""
        if self.log is None:
            return
        for key, start, end, _ in content:
            moves: list[Move] = []
            at = start
            while at < end:
                for tier, first, last in self.places(((key, end),), at, end):
                    moves.append((now, LATER, key, first, GPU, tier.level))
                    at = last
                if at < end:
                    moves.append((now, LATER, key, at, GPU, GONE))
                    at = min(tier.store.first_in(key, at, end) for tier in self.tiers)
            self.log.extend(reversed(moves))

    def tell_lost(self, now: int, tier: Tier, content: list[Stretch]) -> None:
        """Log content that a store evicts, for every instance that uses the store."""
        if tier.log is not None:
            tier.tell(now, content, False)
        for user in tier.users if content else ():
            if user.log is None:
                continue
            place = self.tiers.index(tier) + 1
            below = self.tiers[place] if place < len(self.tiers) else None
            target = below.level if below is not None and (user is self or below.shared) else GONE
            user.log.extend((now, LATER, key, start, tier.level, target) for key, start, _, _ in content)

    def check(self) -> None:
        for tier in self.tiers:
            if tier.users[0] is not self:  # a shared store is checked only once
                continue
            tier.store.check()
            if tier.swapped < 0 or tier.lent < 0:
                counts = f"{tier.swapped} swapped and {tier.lent} lent blocks"
                raise InvariantError(f"The tier {tier.name} has {counts}, but counts must not be negative.")


def stretches(runs: Runs, start: int, end: int, level: float = 0.0) -> list[Stretch]:
    """Return the blocks from `start` to `end` as one stretch per key, last key first. A store that puts them in this
    order puts the head of the sequence last, so that the head is the most recent content."""
    content: list[Stretch] = []
    first = 0
    for key, last in runs:
        if last > start:
            content.append((key, first if first > start else start, last if last < end else end, level))
            if last >= end:
                break
        first = last
    content.reverse()
    return content
