"""The stores below an instance's GPU, and what moves between them.

What happens there is decided only at scheduling changes (a request enters, leaves, yields or gives up, or its blocks
have arrived), never inside a run: what the GPU's cache has evicted, or stored, is noted and settled at the next change.

    lazy        what the GPU evicts moves down; what is loaded moves up again: the stores add to each other
    threshold   the same, but the GPU gives up its least recent content already above a level of use
    eager       what is computed is copied down at once; a load leaves the copy: the larger store counts
"""

from headway.errors import InvariantError
from headway.policies.prefix_index import GONE, GPU
from headway.results.recorder import Recorder, TierStats
from headway.results.records import KvMove, Thrash
from headway.sim.job import Job
from headway.sim.kv_cache import KvCache, Runs, Stretch
from headway.sim.link import Links, Load
from headway.sim.ranked_cache import RankedCache
from headway.sim.recent_values import MoveRate
from headway.sim.setup import EngineSetup
from headway.sim.tier import Tier
from headway.types import PS_PER_SECOND

THRASH_PS = PS_PER_SECOND  # what is loaded so soon after it was stored away need not have gone
Place = tuple[Tier, int, int]  # the fastest store that has them, first block, end block
Move = tuple[int, int, int, int, int]  # when, key, first block, from which level to which; to the GPU: the end block


class Tiers:
    def __init__(
        self, cache: KvCache, tiers: list[Tier], links: Links, engine: EngineSetup, recorder: Recorder
    ) -> None:
        self.cache = cache
        self.tiers = tiers  # the fastest first
        self.links = links
        self.index = engine.view.index
        self.recorder = recorder
        self.block_bytes = engine.block_bytes
        self.eager = engine.kv.offload == "eager"
        self.swaps = engine.kv.preemption == "swap"
        self.level = cache.total  # blocks that the GPU keeps
        if engine.kv.offload == "threshold":
            self.level = int(engine.kv.offload_level * cache.total)
        if self.eager:
            cache.stored = []
        else:
            cache.spilt = []
        self.counts = engine.kv.eviction == "lfu"
        for tier in tiers:
            tier.users.append(self)
        # what it leaves
        self.lent: dict[Job, list[tuple[Tier, int]]] = {}  # room that blocks on their way up leave in the stores
        self.began: dict[Job, int] = {}  # when those that wait for blocks began to
        self.waits: list[int] = []  # how long others have
        self.log: list[Move] | None = None  # where somebody wants to know what lies where
        self.down: MoveRate | None = None  # blocks that went down from the GPU, and up to it, where somebody asks
        self.up: MoveRate | None = None

    def hear(self) -> list[Move]:
        """Where everything that moves will be written down."""
        self.log = []
        if self.cache.spilt is None:
            self.cache.spilt = []
        return self.log

    # --- up --------------------------------------------------------------------------------------------------

    def match(self, runs: Runs, start: int, limit: int) -> int:
        """Where the blocks end that lie in some store without a gap from `start` on, at most `limit`."""
        places = self.places(runs, start, limit)
        return places[-1][2] if places else start

    def places(self, runs: Runs, start: int, limit: int) -> list[Place]:
        """Where the blocks from `start` on lie without a gap, at most up to `limit`: in the fastest store that has
        them."""
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
                    if first[0] <= at and to <= first[1]:  # as a rule
                        break
                    covered = tier.store.covered_to(key, at)
                    if covered > at:
                        to = min(covered, to)
                        break
                    to = tier.store.first_in(key, at, to)  # from there on it is this one that has them
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
        """The blocks of a request begin to move up."""
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
            if self.recorder.events is not None:
                self.tell_move(now, "reload", tier, last - first, job.row)
            if self.eager or tier.shared:  # it was used
                thrashed = tier.store.touch(content, self.counts, now - THRASH_PS)
            else:  # it moves
                thrashed = tier.store.younger(content, now - THRASH_PS)
                tier.lent += last - first
                tier.store.blocks += last - first
                tier.note(now)
                self.lent.setdefault(job, []).append((tier, last - first))
            if thrashed:
                tier.thrashed += thrashed
                self.recorder.thrashed.append(Thrash(now, self.index, job.row, tier.name, thrashed))
            load.left += 1
            self.links.start(now, tier.link, (last - first) * self.block_bytes, load)

    def on_loaded(self, now: int, job: Job, start: int, end: int) -> None:
        """They have arrived: where stores add to each other, each block lies in one of them."""
        self.waits.append(now - self.began.pop(job))
        if self.log is not None or self.counts:
            content = stretches(job.runs, start, end)
            if self.log is not None:
                self.log.extend((now, key, last, GONE, GPU) for key, _, last, _ in content)
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
        """A load has ended, or nobody wants it any more: the stores are as large as before."""
        for tier, count in self.lent.pop(job, ()):
            tier.lent -= count
            tier.store.blocks -= count
            self.spill(now, tier)

    def spill(self, now: int, tier: Tier) -> None:
        """What a store has no room for any more goes into the next."""
        content = tier.store.overflow()
        tier.note(now)
        if self.log is not None:
            self.tell_lost(now, tier, content)
        self.put(self.tiers[self.tiers.index(tier) + 1 :], now, content)

    def count_on(self, content: list[Stretch]) -> None:
        """What was loaded goes on counting its uses where the store has left off."""
        cache = self.cache
        assert isinstance(cache, RankedCache)
        for tier in reversed(self.tiers):
            own = 0 if self.eager or tier.shared else 1  # where the copy stays it has counted this use
            for key, first, last, _ in content:
                for _, left, right, count in tier.store.parts_of(key, first, last):
                    cache.lift(key, left, right, count + own)

    # --- who had to yield ----------------------------------------------------------------------------------------

    def swap_out(self, now: int, job: Job) -> bool:
        """The blocks of a request that has to yield come down as they are, if the first store can hold them."""
        tier = self.tiers[0]
        if not self.swaps or job.blocks > tier.store.blocks - tier.lent:
            return False
        tier.store.blocks -= job.blocks
        tier.swapped += job.blocks
        if self.recorder.events is not None:
            self.tell_move(now, "swap_out", tier, job.blocks, job.row)
        if self.down is not None:
            self.down.add(now, job.blocks)
        self.spill(now, tier)
        self.links.links[tier.link].start(now, job.blocks * self.block_bytes)
        return True

    def swap_in(self, now: int, load: Load) -> None:
        """They begin to move up again."""
        job = load.job
        load.left = 1
        if self.recorder.events is not None:
            self.tell_move(now, "swap_in", self.tiers[0], job.swapped, job.row)
        self.began[job] = now
        if self.up is not None:
            self.up.add(now, job.swapped)
        self.links.start(now, self.tiers[0].link, job.swapped * self.block_bytes, load)

    def end_swap(self, now: int, job: Job) -> None:
        """They have arrived, or nobody wants them any more."""
        tier = self.tiers[0]
        tier.store.blocks += job.swapped
        tier.swapped -= job.swapped
        tier.note(now)
        job.swapped = 0
        if job in self.began:
            self.waits.append(now - self.began.pop(job))

    # --- down ------------------------------------------------------------------------------------------------

    def settle(self, now: int) -> None:
        """A scheduling change: what the GPU's cache has let go, or stored, since the last one comes down."""
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
                self.log.extend((now, key, start, GPU, level) for key, start, _, _ in cache.spilt)
            if self.down is not None:
                self.come_down(now, cache.spilt)
            else:
                self.put(self.tiers, now, cache.spilt)
            cache.spilt.clear()

    def come_down(self, now: int, content: list[Stretch]) -> None:
        """Content of the GPU comes into the stores."""
        stored = self.tiers[0].stored
        self.put(self.tiers, now, content)
        if self.down is not None and (fresh := self.tiers[0].stored - stored):
            self.down.add(now, fresh)

    def put(self, tiers: list[Tier], now: int, content: list[Stretch]) -> None:
        """Content comes into the first of the stores, and what that loses into the next."""
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
                if self.recorder.events is not None:
                    self.tell_move(now, "offload", tier, fresh, -1)
                self.links.links[tier.link].start(now, fresh * self.block_bytes)

    def clear(self, now: int) -> None:
        """The instance's own stores lose all they have; those that others read too keep it."""
        for tier in self.tiers:
            if not tier.shared:
                tier.store.clear()
                tier.note(now)

    # --- what it leaves ----------------------------------------------------------------------------------------

    def stats(self, id: str, pool: str, block_tokens: int, now: int) -> list[TierStats]:
        """At the end of a run."""
        links = self.links.links
        return [tier.stats(pool if tier.shared else id, links[tier.link], block_tokens, now) for tier in self.tiers]

    # --- what is told of it ------------------------------------------------------------------------------------

    def tell_move(self, now: int, kind: str, tier: Tier, blocks: int, row: int) -> None:
        """Where events are written down."""
        assert self.recorder.events is not None
        self.recorder.events.append(KvMove(now, self.index, kind, tier.name, blocks, row))

    def tell_places(self, now: int, content: list[Stretch]) -> None:
        """Copies of what the GPU has let go lie where they lie, if there are any."""
        if self.log is None:
            return
        for key, start, end, _ in content:
            moves: list[Move] = []
            at = start
            while at < end:
                for tier, first, last in self.places(((key, end),), at, end):
                    moves.append((now, key, first, GPU, tier.level))
                    at = last
                if at < end:
                    moves.append((now, key, at, GPU, GONE))
                    at = min(tier.store.first_in(key, at, end) for tier in self.tiers)
            self.log.extend(reversed(moves))

    def tell_lost(self, now: int, tier: Tier, content: list[Stretch]) -> None:
        """A store loses content to the next one, or for good; that concerns all who use it."""
        if tier.log is not None:
            tier.tell(now, content, False)
        for user in tier.users if content else ():
            if user.log is None:
                continue
            place = self.tiers.index(tier) + 1
            below = self.tiers[place] if place < len(self.tiers) else None
            target = below.level if below is not None and (user is self or below.shared) else GONE
            user.log.extend((now, key, start, tier.level, target) for key, start, _, _ in content)

    def check(self) -> None:
        """Conservation: what each store says it has is what lies there."""
        for tier in self.tiers:
            if tier.users[0] is not self:  # a store that is shared is looked through once
                continue
            tier.store.check()
            if tier.swapped < 0 or tier.lent < 0:
                raise InvariantError(f"The tier {tier.name} keeps {tier.swapped} blocks of requests that had to yield.")


def stretches(runs: Runs, start: int, end: int, level: float = 0.0) -> list[Stretch]:
    """The blocks from `start` to `end` by key, the last first, so that the head is the most recent."""
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
