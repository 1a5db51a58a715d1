"""Requests of an instance whose blocks are on their way to it: they hold their place in memory and wait.

A request whose prompt lies in a store below the GPU's does not compute it again. When its turn comes it takes blocks
for what is to be loaded and leaves the queue; the others go on meanwhile. Once all has arrived it is ready, and enters
the batch before anybody who waits.
"""

from headway.sim.handover import Handover
from headway.sim.job import Job
from headway.sim.link import Links, Load
from headway.sim.run_blocks import RunBlocks
from headway.sim.tiers import Place, Tiers


class Loader:
    __slots__ = ("active", "blocks", "cache", "index", "links", "loading", "places", "ready", "size", "tiers")

    def __init__(self, index: int, blocks: RunBlocks, links: Links, tiers: Tiers | None, active: bool) -> None:
        self.index = index  # of the instance
        self.blocks = blocks
        self.cache = blocks.cache
        self.size = blocks.size
        self.links = links
        self.tiers = tiers  # where there are any
        self.active = active  # whether blocks come from elsewhere
        self.places: list[Place] = []  # of what the request whose turn has come can load from the stores
        self.loading: dict[Job, Load] = {}  # what each of them waits for
        self.ready: list[Job] = []  # those whose blocks have come, in that order

    def reach(self, job: Job, hits: int) -> int:
        """Where the blocks end that a request whose turn has come can load."""
        if job.awaits is not None:
            return -(-job.known // self.size)
        if job.swapped:
            return job.swapped
        if self.tiers is None:
            return hits
        self.places = self.tiers.places(job.runs, hits, (job.known - 1) // self.size)
        return self.places[-1][2] if self.places else hits

    def load(self, job: Job, hits: int, end: int, now: int) -> None:
        """Load a request's blocks up to `end`, but for those that are here."""
        if hits:
            job.holds = self.cache.hold(job.runs, hits, job.ticket.priority)
        self.cache.take(end - hits)
        self.blocks.note_peak()
        job.blocks = end
        load = self.loading[job] = Load(self.index, job, hits, end)
        if job.swapped:
            assert self.tiers is not None
            self.tiers.swap_in(now, load)
            return
        job.computed = hits * self.size
        job.cached_to = hits
        if job.awaits is not None:
            self.fetch(job.awaits, load, now)
        else:
            assert self.tiers is not None
            self.tiers.load(now, load, self.places)

    def fetch(self, handover: Handover, load: Load, now: int) -> None:
        """The blocks come from the instance that computes the prompt, as far as it has."""
        handover.load = load
        load.left = 1
        handover.sent = load.start * self.size
        handover.begun_ps = now
        handover.send(now, self.links)

    def swap_out(self, job: Job) -> None:
        """A decode that has to yield keeps what it has computed in the store below, if that has room."""
        if self.tiers is not None and self.tiers.swap_out(self.cache.now, job):
            job.swapped = job.blocks

    def arrive(self, job: Job, now: int) -> None:
        """What a request waited for is here."""
        load = self.loading.pop(job)
        start, end = load.start, load.end
        self.ready.append(job)
        if job.awaits is not None:
            self.blocks.offer(job, job.known // self.size)
            job.resumes = job.awaits.transfer.first_token
            job.computed = job.known if job.resumes else job.known - 1
            job.awaits = None
            return
        assert self.tiers is not None
        if job.swapped:
            self.tiers.end_swap(now, job)
            job.resumes = True
            return
        job.computed = end * self.size
        self.blocks.offer(job, end)
        self.tiers.on_loaded(now, job, start, end)

    def drop(self, job: Job, now: int) -> None:
        """A request that waits for blocks, or is ready, gives up its own; what is on its way comes for nobody."""
        if job in self.loading:
            self.links.forget(self.loading.pop(job))
            if self.tiers is not None:
                self.tiers.began.pop(job, None)
                self.tiers.take_back(now, job)
            self.drop_swapped(job, now)
        else:
            self.ready.remove(job)
        self.cache.release(job.holds, job.blocks)

    def drop_swapped(self, job: Job, now: int) -> None:
        """What a request that had to yield has in a store below is not wanted any more."""
        if job.swapped and self.tiers is not None:
            self.tiers.end_swap(now, job)
