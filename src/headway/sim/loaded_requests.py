"""Admits requests whose blocks have been loaded, before the requests in the queue, which have no blocks yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.results.records import ADAPTER, KV, PROMPT, SLOTS
from headway.sim.engine_logs import GAP_FIELDS
from headway.sim.job import Job

if TYPE_CHECKING:
    from headway.sim.step_scheduler import StepScheduler


def admit_ready(scheduler: StepScheduler, budget: int) -> int:
    """Admit requests whose blocks have been loaded, before all other requests. Return the tokens left in the step,
    or 0 if no other request may enter."""
    cache, batch, adapters = scheduler.cache, scheduler.batch, scheduler.adapters
    ready, reserves = scheduler.loader.ready, scheduler.blocks.reserves
    while ready and budget > 0:
        job = ready[0]
        if job.resumes:
            want, tokens = batch.width, job.known + 1 + batch.ahead
            if want > budget:
                return 0
        else:
            want = min(job.known - job.computed, budget, job.chunk)
            tokens = job.known if reserves else job.computed + want
        need = -(-tokens // scheduler.size) - job.blocks
        if len(scheduler.batch.running) >= scheduler.max_batch_size:
            scheduler.limit = SLOTS
            return 0
        if adapters is not None and not adapters.has_room(job.request.adapter):
            scheduler.limit = ADAPTER
            return 0
        if need > cache.total - cache.held and not yield_to(scheduler, need):
            scheduler.limit = KV
            return 0
        del ready[0]
        scheduler.end_wait(job, cache.now)
        scheduler.join(job, cache.now)
        if adapters is not None:
            scheduler.load_adapter(job, adapters)
        cache.take(need)
        job.blocks += need
        budget -= want
        if job.resumes:
            resume(scheduler, job)
            continue
        scheduler.batch.enter(job)
        scheduler.run.chunks.append((job, want))
        scheduler.stirred = True
        if job.computed + want < job.known:
            scheduler.batch.partial = job
            scheduler.shut = True
            scheduler.limit = PROMPT
            return 0
    return budget


def yield_to(scheduler: StepScheduler, need: int) -> bool:
    """Return whether `need` blocks are free for the first ready request. If no request runs, free blocks: put ready
    requests back into the queue, last one first, until there are enough. Otherwise the ready requests would wait
    for each other's blocks forever."""
    cache, ready = scheduler.cache, scheduler.loader.ready
    while not scheduler.batch.running and len(ready) > 1 and need > cache.total - cache.held:
        job = ready[-1]
        scheduler.loader.drop(job, cache.now)
        scheduler.stir()
        scheduler.wait_again(job)
    return need <= cache.total - cache.held


def resume(scheduler: StepScheduler, job: Job) -> None:
    """Resume decoding of a request in the next step. The gap before its next token is longer than the other
    requests' gap and has its own log entry. Therefore the request's range of the common log begins one entry
    later."""
    job.resumes = False
    job.log_from = len(scheduler.gaps.runs) + GAP_FIELDS
    scheduler.batch.enter(job)
    scheduler.batch.start_decoding(job)
    scheduler.resuming.append(job)
    scheduler.stirred = True
