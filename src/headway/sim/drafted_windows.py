"""Speculation of models whose layers have sliding windows or states.

With states that are not kept for later requests, a run of steps leaps: each request has a fixed number of pages for
states. Windows move by the tokens that drafts gain, so no simple formula tells at which steps they release blocks. An
instance with windows therefore walks: each run is one step, before which the windows of all requests move.
"""

from __future__ import annotations

from headway.latency.verification import UNITS
from headway.results.recorder import InstanceStats
from headway.sim.grouped_cache import GroupedCache
from headway.sim.job import Job
from headway.sim.lanes import SpeculativeBatch
from headway.sim.setup import SpeculationSetup


class GroupedSpeculativeBatch(SpeculativeBatch):
    """A batch whose decodes verify drafts, of requests whose layers have sliding windows or states."""

    __slots__ = ("pages", "wasted")

    def __init__(self, block_tokens: int, setup: SpeculationSetup, cache: GroupedCache, stats: InstanceStats) -> None:
        super().__init__(block_tokens, setup, cache, stats)
        self.pages = cache
        self.wasted = 0  # contexts of decodes whose tokens of the next step are wasted, in layers with windows

    def enter(self, job: Job) -> None:
        super().enter(job)
        job.released = self.pages.groups.first_kept(job.computed, self.block_tokens)
        self.pages.take_pages(self.pages.groups.states)

    def start_decoding(self, job: Job) -> None:
        super().start_decoding(job)
        self.pages.decodes += 1

    def stop_decoding(self, job: Job) -> None:
        super().stop_decoding(job)
        self.pages.decodes -= 1

    def add_wasted(self, contexts: list[int], sign: int) -> None:
        super().add_wasted(contexts, sign)
        self.wasted += sign * UNITS * sum(min(context, self.pages.groups.window) for context in contexts)

    def near_context(self) -> int | None:
        """Return the sum of the contexts of the decodes in layers with windows, in units of 1/64 token."""
        window = self.pages.groups.window * UNITS
        if not window:
            return None
        near = self.wasted
        for job in self.running:
            if job.ends_at_step >= 0:
                context = job.request.prompt_tokens * UNITS + job.origin + self.steps * job.rate
                near += min(context, window)
        return near


class DraftedWindows:
    """Moves the windows of an instance that speculates."""

    __slots__ = ("batch", "cache")

    def __init__(self, batch: GroupedSpeculativeBatch) -> None:
        self.batch = batch
        self.cache = batch.pages

    def move(self) -> None:
        """Move the windows to the step that begins now, request by request in order of entry."""
        batch, cache = self.batch, self.cache
        for job in batch.running:
            computed = job.computed
            if job.ends_at_step >= 0:
                computed = job.request.prompt_tokens + batch.generated(job) - 1
            end = cache.groups.first_kept(computed, batch.block_tokens)
            if end > job.released:
                prompt = min(end, max(job.released, job.cached_to)) if cache.caching else end
                if prompt > job.released:
                    cache.move_window(job, job.released, prompt)
                if end > prompt:
                    cache.abandon(end - prompt)
                job.released = end
                job.skipped = 0
