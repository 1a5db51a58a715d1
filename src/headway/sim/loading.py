"""Requests of an instance whose blocks are on their way to it: they hold their place in memory and wait.

A request whose prompt lies in a store below the GPU's does not compute it again. When its turn comes it takes blocks
for what is to be loaded and leaves the queue; the others go on meanwhile. Once all has arrived it is ready, and enters
the batch before anybody who waits.
"""

from __future__ import annotations

from headway.policies.queues import Ticket
from headway.sim.batch import Batch
from headway.sim.handover import Handover
from headway.sim.job import Job
from headway.sim.link import Links
from headway.sim.load import Load
from headway.sim.tiers import Place, Tiers
from headway.views.instance import InstanceView


class Loading(Batch):
    __slots__ = ("links", "loading", "loads", "peak", "places", "ready", "refused", "stirred", "tiers")

    def __init__(self, view: InstanceView, links: Links, block_tokens: int, caching: bool) -> None:
        super().__init__(view, block_tokens, caching)
        self.links = links
        self.peak = 0  # most blocks held
        self.loads = False  # whether blocks come from elsewhere
        self.tiers: Tiers | None = None  # where there are any
        self.places: list[Place] = []  # of what the request whose turn has come can load from there
        self.loading: dict[Job, Load] = {}  # what each of them waits for
        self.ready: list[Job] = []  # those whose blocks have come, in that order
        self.refused: Ticket | None = None  # the first in order that last was found to lack blocks or a slot
        self.stirred = False  # a scheduling change since the stores were settled

    def reach(self, job: Job, hits: int) -> int:
        """Where the blocks end that a request whose turn has come can load."""
        if job.awaits is not None:
            return -(-job.known // self.block_tokens)
        if job.swapped:
            return job.swapped
        if self.tiers is None:
            return hits
        self.places = self.tiers.places(job.runs, hits, (job.known - 1) // self.block_tokens)
        return self.places[-1][2] if self.places else hits

    def load(self, job: Job, hits: int, end: int, now: int) -> None:
        """A request's blocks up to `end` are to be loaded, but for those that are here."""
        if hits:
            job.holds = self.cache.hold(job.runs, hits, job.ticket.priority)
        self.cache.take(end - hits)
        self.peak = max(self.peak, self.cache.held)
        job.blocks = end
        load = self.loading[job] = Load(self.view.index, job, hits, end)
        self.stirred = True
        if job.swapped:
            assert self.tiers is not None
            self.tiers.swap_in(now, load)
            return
        job.computed = hits * self.block_tokens
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
        handover.sent = load.start * self.block_tokens
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
        self.stir()
        if job.awaits is not None:
            self.offer(job, job.known // self.block_tokens)
            job.resumes = job.awaits.transfer.first_token
            job.computed = job.known if job.resumes else job.known - 1
            job.awaits = None
            return
        assert self.tiers is not None
        if job.swapped:
            self.tiers.end_swap(now, job)
            job.resumes = True
            return
        job.computed = end * self.block_tokens
        self.offer(job, end)
        self.tiers.loaded(now, job, start, end)

    def unload(self, job: Job, now: int) -> None:
        """A request that waits for blocks, or is ready, gives up its own."""
        if job in self.loading:
            self.links.forget(self.loading.pop(job))
            if self.tiers is not None:
                self.tiers.began.pop(job, None)
                self.tiers.take_back(now, job)
            if job.swapped and self.tiers is not None:
                self.tiers.end_swap(now, job)
        else:
            self.ready.remove(job)
        self.cache.release(job.holds, job.blocks)
        self.stir()

    def stir(self) -> None:
        """A change after which somebody may enter who could not."""
        self.stirred = True
        self.refused = None

    def settle_stores(self, now: int) -> None:
        if self.stirred:
            self.stirred = False
            if self.tiers is not None:
                self.tiers.settle(now)
