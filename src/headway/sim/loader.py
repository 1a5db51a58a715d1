"""Loads the blocks of requests from stores below the GPU, or from another instance.

If a request has blocks to load when its turn comes, it leaves the queue and allocates GPU blocks for the content that
it loads. Other requests continue meanwhile. When all its blocks have arrived, the request is ready, and enters the
batch before the requests in the queue.
"""

from headway.policies.prefix_tiers import GPU, TIERS
from headway.results.records import Batch, KvMove
from headway.sim.engine_logs import Reporter
from headway.sim.handover import Handover
from headway.sim.job import Job
from headway.sim.kv_cache import LATER
from headway.sim.link import Links, Load
from headway.sim.run_blocks import RunBlocks
from headway.sim.tiers import Place, Tiers


class Loader:
    __slots__ = (
        "active", "began", "blocks", "cache", "events", "index", "links", "loading", "places", "ready", "received",
        "size", "tiers",
    )  # fmt: skip

    def __init__(self, index: int, blocks: RunBlocks, links: Links, tiers: Tiers | None, active: bool) -> None:
        self.index = index  # index of the instance
        self.blocks = blocks
        self.cache = blocks.cache
        self.size = blocks.size
        self.links = links
        self.tiers = tiers
        self.active = active  # whether requests may load blocks
        self.places: list[Place] = []  # stores of the blocks that the first request in the queue can load
        self.loading: dict[Job, Load] = {}
        self.ready: list[Job] = []  # requests whose blocks have arrived, in order of arrival
        self.began: Reporter | None = None  # set if a policy observes the start of transfers
        self.received: Reporter | None = None  # set if a policy observes the end of transfers
        self.events: list[Batch | KvMove] | None = None  # records of the run; set if they include transfers

    def reach(self, job: Job, hits: int) -> int:
        """For the request whose turn has come, return the position after the last block that can be loaded. If no block
        can be loaded, return `hits`."""
        if job.awaits is not None:
            return -(-job.known // self.size)
        if job.swapped:
            return job.swapped
        if self.tiers is None:
            return hits
        self.places = self.tiers.places(job.runs, hits, (job.known - 1) // self.size)
        return self.places[-1][2] if self.places else hits

    def load(self, job: Job, hits: int, end: int, now: int) -> None:
        """Start to load a request's blocks up to `end`, except the first `hits` blocks, which are on the GPU."""
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
        """Start the transfer of the prompt tokens that the prefill instance has computed so far."""
        handover.load = load
        load.left = 1
        handover.sent = load.start * self.size
        handover.begun_ps = now
        if self.began is not None:
            self.began.report(now, handover.target.request, handover.prefill)
        if self.events is not None:
            blocks, row = load.end - load.start, load.job.row
            handover.move = KvMove(now, handover.prefill, "pd_handoff", TIERS[GPU], blocks, row, to_instance=self.index)
            self.events.append(handover.move)
        handover.send(now, self.links)

    def swap_out(self, job: Job) -> None:
        """Swap out the blocks of a preempted request that was decoding, if the store has room."""
        if self.tiers is not None and self.tiers.swap_out(self.cache.now, job):
            job.swapped = job.blocks

    def arrive(self, job: Job, now: int) -> Load:
        """Mark a request as ready after all its blocks have arrived. Return the load that brought them."""
        load = self.loading.pop(job)
        start, end = load.start, load.end
        self.ready.append(job)
        job.waits_from, job.was_ready = now, True
        if job.awaits is not None:
            self.blocks.offer(job, job.known // self.size, now, LATER)
            job.resumes = job.awaits.first_token
            job.computed = job.known if job.resumes else job.known - 1
            job.awaits = None
            return load
        assert self.tiers is not None
        if job.swapped:
            self.tiers.end_swap(now, job)
            job.resumes = True
            return load
        job.computed = end * self.size
        self.blocks.offer(job, end, now, LATER)
        self.tiers.on_loaded(now, job, start, end)
        return load

    def drop(self, job: Job, now: int) -> None:
        """Free the blocks of a request that is loading or ready. Its current transfers continue without effect."""
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
        """Free the swapped-out blocks of a request."""
        if job.swapped and self.tiers is not None:
            self.tiers.end_swap(now, job)
