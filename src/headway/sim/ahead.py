"""Asynchronous scheduling: each step is scheduled while the step before it runs.

The engine forms step k + 1 as soon as step k has begun. This has three effects:

* What arrives during step k is first seen when step k + 2 is formed. If no step k + 1 could be formed, the next step is
  formed at the end of step k with everything that has arrived.
* A request that ends with step k keeps its slot, its blocks and its adapter while step k + 1 is formed.
* If the scheduler could not know that the request would end, step k + 1 also computes a token for it, which is wasted.

The simulator forms step k + 1 when step k ends, from what the engine knew when step k began.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headway.sim.job import Job
from headway.sim.link import Load
from headway.sim.step_scheduler import StepScheduler
from headway.types import NEVER, Hints

if TYPE_CHECKING:
    from headway.sim.instance import Instance


class Unseen(NamedTuple):
    """A new request that the scheduler does not see yet."""

    job: Job
    step: int  # the scheduler sees the request when this number of steps of the instance have ended
    arrived_ps: int
    priority: float
    hints: Hints


class Loaded(NamedTuple):
    """A request whose blocks have arrived. The scheduler does not know that yet."""

    job: Job
    step: int  # as in `Unseen`
    load: Load


class Ahead:
    """What the scheduler does not know yet about requests that have arrived or ended."""

    __slots__ = ("joint", "leaving", "loaded", "paused", "scheduler", "unseen", "wasted", "wastes")

    def __init__(self, scheduler: StepScheduler) -> None:
        self.scheduler = scheduler
        # Both are in order of arrival, and so in order of the step.
        self.unseen: deque[Unseen] = deque()
        self.loaded: deque[Loaded] = deque()
        self.leaving: list[tuple[Job, bool]] = []  # requests that ended with the last step, and whether to keep blocks
        self.wasted: list[int] = []  # context lengths of the decodes of the next step that are wasted
        self.paused = True  # whether the GPU waits for the host before the next step
        self.joint = False  # whether the instance is a rank that waits for other ranks in each step
        self.wastes = scheduler.view.role != "prefill"  # a prefill instance computes exactly one token
        scheduler.unseen = self.unseen

    def release(self, job: Job, keeps_blocks: bool = False) -> None:
        """Remove a request that has ended from the batch. Its slot and blocks become free after the next step is
        formed."""
        scheduler = self.scheduler
        del scheduler.batch.running[job]
        scheduler.stirred = True
        scheduler.queue.refused = None
        self.leaving.append((job, keeps_blocks))
        decoding = job.ends_at_step >= 0 and self.wastes
        if decoding and (job.expired or not self.foresees_end(job)):
            self.wasted.append(job.computed + 1)

    def foresees_end(self, job: Job) -> bool:
        """Return whether the scheduler knew that the last step would be the last one of a request."""
        return job.output_tokens == job.request.max_tokens and self.scheduler.batch.foresees_end(job)

    def form(self, now: int) -> bool:
        """Form the next step as the engine did before the last step ended. Return whether the step after it may have
        different requests even if no event happens in between."""
        scheduler, loader = self.scheduler, self.scheduler.loader
        for job, _, load in self.loaded:
            loader.ready.remove(job)
            loader.loading[job] = load
        wasted = len(self.wasted) * scheduler.batch.width
        scheduler.max_batch_size -= len(self.leaving)
        scheduler.max_batch_tokens -= wasted
        once = scheduler.form_step(now)
        scheduler.max_batch_size += len(self.leaving)
        scheduler.max_batch_tokens += wasted
        for job, _, _ in self.loaded:
            del loader.loading[job]
            loader.ready.append(job)
        return once

    def free(self) -> None:
        """Free the slots and blocks of the requests that have ended."""
        scheduler = self.scheduler
        for job, keeps_blocks in self.leaving:
            if not keeps_blocks:
                scheduler.cache.release(job.holds, job.blocks, None, job.released + job.skipped)
            if scheduler.adapters is not None:
                scheduler.adapters.leave(job.request.adapter)
        if self.leaving:
            scheduler.stir()
            self.leaving.clear()

    def forget(self, job: Job) -> bool:
        """Forget a request whose client has given up. Return whether the scheduler has never seen it."""
        for entry in self.unseen:
            if entry.job is job:
                self.unseen.remove(entry)
                return True
        for loaded in self.loaded:
            if loaded.job is job:
                self.loaded.remove(loaded)
                break
        return False


def part_of(instance: Instance) -> Ahead:
    assert instance.ahead is not None
    return instance.ahead


def enqueue(instance: Instance, job: Job, now: int, priority: float, hints: Hints) -> bool:
    """Add a request to an instance. Return whether a step can begin at this instant."""
    if is_idle(instance):
        instance.queue.add(job, now, priority, hints)
    else:
        part_of(instance).unseen.append(Unseen(job, steps_at(instance, now), now, priority, hints))
    instance.view.queued = instance.scheduler.count_queued()
    return wake(instance, now)


def note_loaded(instance: Instance, job: Job, load: Load, now: int) -> bool:
    """Note that the blocks of a request have arrived. Return whether a step can begin at this instant."""
    if instance.run.end >= 0 and (instance.queue.waiting or part_of(instance).unseen):
        instance.cut(now)  # a waiting request may hit these blocks when the next step is formed
    if not is_idle(instance):
        part_of(instance).loaded.append(Loaded(job, steps_at(instance, now), load))
    return wake(instance, now)


def is_idle(instance: Instance) -> bool:
    """Whether no step runs and none has just ended. Then the scheduler sees everything at once."""
    return instance.run.end < 0 and instance.busy_from < 0


def wake(instance: Instance, now: int) -> bool:
    """End the run at the boundary at which a request that arrives now may enter the batch. Return whether a step can
    begin at this instant."""
    run, batch = instance.run, instance.batch
    if run.end < 0:
        return True
    full = batch.partial is not None or len(batch.running) >= instance.view.max_batch_size
    if not full or instance.scheduler.yields is not None:
        run.cut_later(now)
    return False


def steps_at(instance: Instance, now: int) -> int:
    """Return how many steps of the instance have ended at the first step boundary at or after this instant."""
    run, steps = instance.run, instance.batch.steps
    return steps if run.end < 0 else steps + run.count_begun(now)


def settle(instance: Instance, now: int) -> None:
    """Let the scheduler see what arrived before the last step boundary before this instant."""
    ahead = part_of(instance)
    if ahead.unseen or ahead.loaded:
        show(instance, now, steps_at(instance, now))


def show(instance: Instance, now: int, before: int) -> None:
    """Let the scheduler see what it sees when fewer than `before` steps of the instance have ended."""
    ahead, batch, run, scheduler = part_of(instance), instance.batch, instance.run, instance.scheduler
    unseen, loaded = ahead.unseen, ahead.loaded
    full = batch.partial is not None or len(batch.running) >= instance.view.max_batch_size
    while (unseen and unseen[0].step < before) or (loaded and loaded[0].step < before):
        if not loaded or (unseen and unseen[0].step <= loaded[0].step):
            entry = unseen.popleft()
            step = entry.step
            instance.queue.add(entry.job, entry.arrived_ps, entry.priority, entry.hints)
        else:
            step = loaded.popleft().step
        lost = step > batch.steps and run.end < 0  # the request arrived during a step that has no end
        at = now if step == batch.steps else run.boundary(step - batch.steps)
        if full and at <= now and not lost:
            scheduler.note_waiting(at)


def flush(instance: Instance, now: int) -> None:
    """Let the scheduler see everything, and free what ended requests hold, because the instance stops."""
    ahead = part_of(instance)
    show(instance, now, NEVER)
    ahead.free()
    ahead.wasted.clear()


def form(instance: Instance, now: int) -> bool:
    """Form the next step. Return whether it does not repeat. For a rank in lockstep, `form_again` completes this when
    all ranks have formed their steps."""
    ahead, batch = part_of(instance), instance.batch
    ahead.paused = instance.busy_from < 0
    update_stores(instance, now)
    once = ahead.form(now)
    if ahead.joint:
        return once
    return form_again(instance, now, once, not batch.running and not ahead.wasted)


def form_again(instance: Instance, now: int, once: bool, empty: bool) -> bool:
    """Let the scheduler see all that has arrived or ended. If no step could be formed ahead (`empty`), the GPU has to
    wait, and the step is formed now. Return whether the step does not repeat; `once` says so of the step as formed
    before."""
    ahead, scheduler = part_of(instance), instance.scheduler
    news = bool(ahead.leaving or ahead.unseen or ahead.loaded)
    ahead.paused = ahead.paused or empty
    if news:
        reveal(instance, now)
        if empty:
            once = ahead.form(now)
        elif scheduler.waiting or scheduler.ready:
            once = True
    update_stores(instance, now)
    instance.view.queued = scheduler.count_queued()
    if instance.equal_steps is not None:
        instance.equal_steps.note(now)
    return once


def has_work(instance: Instance) -> bool:
    """Whether a formed step computes anything, be it wasted tokens alone."""
    return bool(instance.batch.running) or (instance.ahead is not None and bool(instance.ahead.wasted))


def reveal(instance: Instance, now: int) -> None:
    """Let the scheduler see all that has arrived or ended."""
    part_of(instance).free()
    show(instance, now, instance.batch.steps + 1)


def plan(instance: Instance, now: int, once: bool) -> int:
    """Plan the next run of steps, including the wasted decodes of its first step."""
    ahead, batch, planner = part_of(instance), instance.batch, instance.planner
    wasted = ahead.wasted
    batch.add_wasted(wasted, 1)
    end = planner.plan_after_pause(now) if ahead.paused else planner.plan(now, once or bool(wasted))
    batch.add_wasted(wasted, -1)
    wasted.clear()
    return end


def update_stores(instance: Instance, now: int) -> None:
    if instance.tiers is not None:
        instance.settle_stores(now)
