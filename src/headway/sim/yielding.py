"""Preemption for a waiting request: running requests that are behind it in the scheduler's order, and less urgent by
more than the scheduler's threshold, yield to it.

Running requests yield only if the waiting request then enters in the same step. The scheduler's order of two requests
never changes, so a request never yields to one that has yielded to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headway.policies.queues import Ticket
from headway.sim.job import Job

if TYPE_CHECKING:
    from headway.sim.step_scheduler import StepScheduler

Yields = Callable[[Ticket, Ticket], bool]  # (waiting request, running request)


def make_way(scheduler: StepScheduler, yields: Yields) -> bool:
    """Preempt running requests before a step is formed, so that the first waiting request can enter. Return False if
    no running request can yield to it before the next scheduling change."""
    batch, queue = scheduler.batch, scheduler.queue
    job = scheduler.first()
    if scheduler.loader.active or (scheduler.gated and scheduler.find_gate(job)):
        return False
    order = queue.sort([*batch.running, job])
    behind = order[order.index(job) + 1 :]
    if batch.partial is not None and (batch.partial not in behind or not may_yield(yields, job, batch.partial)):
        return False  # no request enters while a prefill is unfinished
    if fits(scheduler, job):
        return True
    candidates = [victim for victim in reversed(behind) if may_yield(yields, job, victim)]
    if batch.partial is not None:  # without it, the others would yield in vain
        candidates.remove(batch.partial)
        candidates.insert(0, batch.partial)
    victims: list[Job] = []
    for victim in candidates:
        victims.append(victim)
        if suffices(scheduler, job, victims):
            for each in victims:
                scheduler.preempt(each)
            break
    return bool(candidates)


def may_yield(yields: Yields, waiting: Job, running: Job) -> bool:
    return yields(waiting.ticket, running.ticket)


def fits(scheduler: StepScheduler, job: Job) -> bool:
    """Whether the request can enter the next step without a preemption."""
    batch, cache = scheduler.batch, scheduler.cache
    budget = scheduler.max_batch_tokens - batch.decodes * batch.width
    if batch.partial is not None or len(batch.running) >= scheduler.max_batch_size or budget <= 0:
        return False
    hits = cached_blocks(scheduler, job)
    need = blocks_to_enter(scheduler, job, hits, budget)
    room = cache.total - cache.held - batch.decode_blocks(batch.steps, 1)
    return need <= room or need - hits <= room - cache.idle_in(job.runs, hits)


def suffices(scheduler: StepScheduler, job: Job, victims: list[Job]) -> bool:
    """Whether the request can certainly enter the next step if these running requests yield. Cached blocks of its
    prompt count as blocks that it needs, because they may be those of the victims."""
    batch, cache = scheduler.batch, scheduler.cache
    decodes, room = batch.decodes, cache.total - cache.held - batch.decode_blocks(batch.steps, 1)
    for victim in victims:
        blocks = victim.blocks
        if victim.ends_at_step >= 0:
            blocks = batch.held_blocks(victim, 0)
            room += batch.next_blocks(victim)  # what it would have needed in the next step
            decodes -= 1
        room += blocks - cache.shared_with_others(victim.holds)
    budget = scheduler.max_batch_tokens - decodes * batch.width
    if len(batch.running) - len(victims) >= scheduler.max_batch_size or budget <= 0:
        return False
    return blocks_to_enter(scheduler, job, cached_blocks(scheduler, job), budget) <= room


def cached_blocks(scheduler: StepScheduler, job: Job) -> int:
    if not scheduler.blocks.caching:
        return 0
    return scheduler.cache.match(job.runs, (job.known - 1) // scheduler.size)


def blocks_to_enter(scheduler: StepScheduler, job: Job, hits: int, budget: int) -> int:
    """Return how many blocks must be free for the request's first chunk, including its cached blocks."""
    tokens = job.known
    if not scheduler.whole_prompts:
        tokens = min(tokens, hits * scheduler.size + min(budget, job.chunk))
    return -(-tokens // scheduler.size)
