"""Ends the work of an instance: empties it, clears its cache, stops it at the horizon, and checks its invariants."""

from headway.sim.ahead import flush, settle
from headway.sim.engine_logs import take_back
from headway.sim.instance import Instance
from headway.sim.job import Job
from headway.sim.recent_values import HitRate
from headway.types import NEVER


def vacate(instance: Instance, now: int) -> list[Job]:
    """Remove all requests from an instance, and return them in order of arrival. Tokens of ended steps count; the
    current step is lost. The cache keeps its content."""
    if instance.history is not None and now >= instance.tick:
        instance.history.record(instance, now)
    instance.blocks.settle(now)
    if instance.ahead is not None:
        settle(instance, now)
    last_token_ps = halt(instance, now)
    if instance.ahead is not None:
        flush(instance, now)
    if instance.equal_steps is not None:
        instance.equal_steps.close(now)
    instance.cache.now = now
    batch, loader, scheduler = instance.batch, instance.loader, instance.scheduler
    waiting = [*instance.queue.waiting.values()]
    jobs = [*batch.running, *loader.loading, *loader.ready, *waiting, *instance.handing]
    for job in [*batch.running]:
        if job.ends_at_step >= 0:
            scheduler.stop_decoding(job)
            instance.gaps.close(job, job.last_token_ps if job in scheduler.resuming else last_token_ps)
        scheduler.release(job)
        if instance.queue.ended is not None:
            instance.queue.ended(job.ticket, job.generated, False)
    batch.partial = None
    batch.ending.clear()
    scheduler.resuming.clear()
    instance.run.chunks = []
    for job in [*loader.loading, *loader.ready]:
        loader.drop(job, now)
    for job in waiting:
        instance.queue.remove(job)
        loader.drop_swapped(job, now)
    left = [stretch for job in [*instance.handing] for stretch in instance.part_with(job, now)]
    scheduler.stir()
    instance.settle_stores(now)
    if instance.tiers is not None:
        instance.tiers.tell_places(now, left)
    instance.view.queued = instance.view.running = 0
    scheduler.note_empty(now)
    if instance.blocks.report is not None:
        instance.blocks.report.kv_used = instance.cache.held
        instance.blocks.reported_to = NEVER
    instance.rest(now)
    for job in jobs:
        job.waits_from = -1
    jobs.sort(key=lambda job: job.ticket.number)
    return jobs


def halt(instance: Instance, now: int) -> int:
    """Stop the current run. Return when its last complete step ended."""
    run, batch = instance.run, instance.batch
    if run.end < 0 or instance.cut(now):
        return now
    ended = run.length - 1  # the current step is the last step of the cut run, and it has not ended
    instance.blocks.take_to(run.length)
    instance.blocks.note_peak()
    instance.cache.release([], batch.decode_blocks(batch.steps + ended, 1))
    expiring, instance.expiring = instance.expiring, []
    last_token_ps = run.boundary(ended)
    run.length = ended
    if ended:
        instance.finish_run(now)
    run.end = -1
    for job in expiring:
        if job in batch.running:
            job.between_steps = True
            instance.drop(job)
    return last_token_ps


def cool(instance: Instance, now: int) -> None:
    """Clear the caches of an instance without requests, and end its faults, because a new instance may replace it."""
    if instance.history is not None and now >= instance.tick:
        instance.history.record(instance, now)
    if instance.ahead is not None:
        flush(instance, now)
        if instance.run.end >= 0:  # all tokens of the step are wasted
            instance.run.end = -1
            instance.rest(now)
    instance.planner.replace(now)
    cache, evicted = instance.cache, instance.cache.evicted
    cache.now = now
    cache.evict(cache.idle)
    cache.evicted = evicted  # the statistics count only evictions caused by a lack of blocks
    if cache.spilt is not None:
        cache.spilt.clear()
    if cache.stored is not None:
        cache.stored.clear()
    if instance.tiers is not None:
        instance.tiers.clear(now)
    if instance.adapters is not None:
        instance.adapters.users.clear()
        instance.adapters.loading_ps = 0
        instance.view.adapters = ()
    if instance.scheduler.hits is not None:
        instance.scheduler.hits = HitRate()
        instance.view.hit_rate = 0.0


def stop_instance(instance: Instance, now: int) -> None:
    """Stop an instance at the horizon: count the tokens of ended steps, and remove the gaps of requests in flight."""
    run, batch, loader = instance.run, instance.batch, instance.loader
    if instance.ahead is not None:
        flush(instance, now)
    if run.end >= 0:
        begun = run.count_begun(now + 1)  # also counts a step that begins at the horizon; all but the last have ended
        instance.blocks.take_to(begun)
        instance.blocks.note_peak()
        instance.blocks.taken_steps = 1
        batch.steps += begun - 1
        for job, want in run.chunks:
            instance.count_prefill(job, job.computed + want * (begun - 1))
    for job in [*batch.running, *loader.loading, *loader.ready, *instance.queue.waiting.values()]:
        instance.scheduler.end_wait(job, now)
        if job.ends_at_step >= 0:
            job.generated = batch.generated(job)
            batch.count_drafts(job)
            instance.gaps.close(job, now)
        instance.recorder.output_tokens[job.row] = job.generated
        instance.stats.output_tokens += job.generated
        take_back(job)
    instance.rest(now)


def check_instance(instance: Instance) -> None:
    """Check that the blocks of the requests add up to the blocks that the cache counts as held."""
    private = 0
    batch, loader = instance.batch, instance.loader
    # number of steps whose blocks are allocated, but whose tokens are not counted yet
    begun = instance.blocks.taken_steps if instance.run.end >= 0 else 0
    for job in batch.running:
        blocks = job.blocks
        if job.ends_at_step >= 0:
            blocks = batch.held_blocks(job, begun)
        batch.note_released(job)
        private += instance.cache.pages_of(blocks, job.released + job.skipped) - sum(
            end - start for _, start, end in job.holds
        )
    for job in [*loader.loading, *loader.ready, *instance.handing]:
        private += job.blocks - sum(end - start for _, start, end in job.holds)
    instance.cache.check(private)
    if instance.tiers is not None:
        instance.tiers.check()
    if instance.adapters is not None:
        instance.adapters.check([job.request.adapter for job in batch.running if job.request.adapter is not None])
