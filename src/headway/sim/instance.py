"""One serving engine: continuous batching over a paged KV cache, advanced run by run.

A scheduler forms each step, and a planner computes how often the step repeats: the repeated steps form a run. The
tokens, blocks and gaps of a run follow from its formula. These values are computed when the run ends, or earlier if
other code reads them earlier.

Events from outside may cut the current run at the next step boundary: a request arrives, a client gives up, or blocks
arrive. The instance cuts the run only if a request may enter or must leave the batch there.
"""

from fractions import Fraction
from heapq import heappop
from random import Random
from typing import Any

from headway.results.recorder import Recorder
from headway.sim import ahead as async_steps
from headway.sim.adapters import Adapters
from headway.sim.drafted_windows import DraftedWindows
from headway.sim.engine_logs import ENTRY, BatchLog, EqualSteps, GapLog, take_back
from headway.sim.engine_parts import new_batch, new_blocks, new_cache, new_latency, new_stats, new_windows
from headway.sim.engine_queue import EngineQueue
from headway.sim.job import Job
from headway.sim.kv_cache import Stretch
from headway.sim.leap import Run
from headway.sim.link import Links
from headway.sim.loader import Loader
from headway.sim.polling import BoundaryWatcher, History
from headway.sim.recent_values import BusyWindow
from headway.sim.run_planner import RunPlanner
from headway.sim.setup import EngineSetup
from headway.sim.step_scheduler import StepScheduler
from headway.sim.tier import Tier
from headway.sim.tiers import Tiers
from headway.types import NEVER, Hints
from headway.views.instance import InstanceView


class Instance:
    __slots__ = (
        "adapters", "ahead", "batch", "batches", "blocks", "busy_from", "cache", "ended", "equal_steps", "expiring",
        "first_tokens", "gaps", "handed", "handing", "history", "idle_watts", "links", "loader", "log", "plain",
        "planner", "queue", "rank_counts", "recorder", "release", "run", "scheduler", "size", "span_watts", "stats",
        "tick", "tiers", "transfer", "view", "windows",
    )  # fmt: skip

    def __init__(
        self,
        view: InstanceView,
        engine: EngineSetup,
        scheduler: Any,
        recorder: Recorder,
        *,
        block_tokens: int,
        caching: bool,
        walks: bool,
        cuts: Random | None,
        first_tokens: list[Job],
        ended: list[Job],
        handed: list[Job],
        links: Links,
        tiers: list[Tier] | None,
        run: Run,
    ) -> None:
        self.view = view
        self.recorder = recorder
        self.links = links
        self.size = block_tokens
        self.transfer = engine.transfer
        self.stats = new_stats(view, engine)
        groups = engine.groups
        if groups is not None and not groups.caches:
            caching = False  # an engine keeps no states for later requests
        self.cache = new_cache(view, engine, block_tokens, caching)
        self.tiers = None if tiers is None else Tiers(self.cache, tiers, links, engine, recorder)
        slots = view.adapter_slots
        self.adapters = None if slots is None else Adapters(slots, engine.adapter_load_ps)
        self.queue = EngineQueue(scheduler, view.id, view)
        self.batch = new_batch(block_tokens, engine, self.cache, self.stats)
        self.run = run
        windows = new_windows(self.batch, self.run)
        self.blocks = new_blocks(view, self.cache, self.batch, self.run, caching, windows)
        walks = walks or isinstance(windows, DraftedWindows)
        loads = tiers is not None or view.role == "decode"
        self.loader = Loader(view.index, self.blocks, links, self.tiers, loads)
        self.gaps = GapLog()
        self.scheduler = StepScheduler(
            view,
            self.queue,
            self.batch,
            self.run,
            self.blocks,
            self.loader,
            self.adapters,
            recorder,
            self.stats,
            self.gaps,
            whole_prompts=engine.kv.entry == "prompt",
            gated=slots is not None or (engine.transfer is not None and engine.transfer.spec.max_incoming is not None),
            windows=windows,
        )
        # Set if each step is scheduled while the step before it runs.
        self.ahead = async_steps.Ahead(self.scheduler) if engine.schedules_ahead else None
        # Whether only the scheduler acts when a step is formed. False with `rank_counts` or `equal_steps`.
        self.plain = self.ahead is None and tiers is None
        self.release = self.scheduler.release if self.ahead is None else self.ahead.release
        latency = new_latency(engine, self.batch, windows)
        self.planner = RunPlanner(self.run, self.batch, self.blocks, self.adapters, latency, walks, cuts)
        self.expiring: list[Job] = []  # running requests whose clients have given up during the current run of steps
        self.handing: dict[Job, None] = {}  # requests in handover whose prompts this instance has computed
        # Requests with a first token, an end or a handover at this instant. All instances share the three lists.
        self.first_tokens = first_tokens
        self.ended = ended
        self.handed = handed  # requests whose prompt, or its first chunk, has been computed for another instance
        self.log = self.gaps.runs.frombytes
        self.batches: BatchLog | None = None  # set if changes of the batch are recorded
        self.rank_counts: BoundaryWatcher | None = None  # set if a front end chooses between this rank and others
        self.equal_steps: EqualSteps | None = None  # set if a policy observes the runs of equal steps
        self.busy_from = -1  # when the instance last became busy; -1 if it is idle
        self.windows: tuple[BusyWindow, ...] = ()  # set if a policy reads `busy` or `watts`
        self.idle_watts = engine.idle_watts
        self.span_watts = engine.busy_watts - engine.idle_watts
        self.history: History | None = None  # set if the instance's values are read at ticks
        self.tick = NEVER  # time of the first tick that `history` has not recorded

    def begin(self, now: int) -> int:
        """Form the next step and plan how often it repeats. Return when this run of steps ends. If there is nothing to
        do, or the last run has not ended, return -1."""
        if self.run.end >= 0:
            return -1
        ahead = self.ahead
        if self.plain:  # the same as `form`, but faster
            if self.history is not None and now >= self.tick:
                self.history.record(self, now)
            once = self.scheduler.form_step(now)
        else:
            once = self.form(now)
        if not self.batch.running and (ahead is None or not ahead.wasted):
            self.go_idle(now)
            return -1
        if self.busy_from < 0:
            self.busy_from = now
        if self.batches is not None:
            self.batches.note(now)
        return self.planner.plan(now, once) if ahead is None else async_steps.plan(self, now, once)

    def form(self, now: int) -> bool:
        """Form the next step. Return whether it does not repeat."""
        if self.history is not None and now >= self.tick:
            self.history.record(self, now)
        if self.rank_counts is not None:
            self.rank_counts.note_boundary(self)
        if self.ahead is not None:
            self.cache.now = now
            return async_steps.form(self, now)
        scheduler, tiers = self.scheduler, self.tiers
        if tiers is None:
            once = scheduler.form_step(now)
        else:
            if scheduler.stirred:
                scheduler.stirred = False
                self.cache.now = now
                tiers.settle(now)
            once = scheduler.form_step(now)
            if scheduler.stirred:
                scheduler.stirred = False
                tiers.settle(now)
        if self.equal_steps is not None:
            self.equal_steps.note(now)
        return once

    def go_idle(self, now: int) -> None:
        """Wait for requests, because there is nothing to do."""
        self.rest(now)
        if (report := self.blocks.report) is not None:
            report.kv_used = self.cache.held

    def finish_run(self, now: int) -> None:
        """End the run: count its tokens, report first tokens, release finished requests."""
        # Record only earlier ticks: a tick at this instant sees the state after the step.
        if self.history is not None and now > self.tick:
            self.history.record(self, now - 1)
        if self.ahead is not None:
            async_steps.settle(self, now)
        run, batch = self.run, self.batch
        blocks, cache = self.blocks, self.cache
        length = run.length
        if length > blocks.taken_steps:
            blocks.take_to(length)
        if cache.held > blocks.peak:
            blocks.peak = cache.held
        run.end = -1
        cache.now = now
        steps = batch.steps = batch.steps + length
        if batch.decodes:
            batch.context += batch.growth * length
            if self.scheduler.resuming:
                self.log_resumed()
            else:
                self.log(ENTRY(run.first, run.increment, length, batch.counted))
        if batch.partial is not None and length > 1 and (batch.decodes or cache.stores is not None):
            blocks.offer_steps(length - 1)  # cache the blocks of all steps but the last one, whose blocks follow below
        if self.expiring:
            self.drop_decodes()
        ending = batch.ending
        while ending and ending[0][0] == steps:
            self.leave(heappop(ending)[2])
        if run.chunks:
            for job, want in run.chunks:
                self.advance(job, want * length, now)
        if blocks.report is not None:
            blocks.report.kv_used = cache.held
            blocks.reported_to = NEVER

    def log_resumed(self) -> None:
        """Log the gaps between the tokens of a run in which preempted requests resume. The first gap of a resumed
        request is longer than the first gap of other requests."""
        run, resuming = self.run, self.scheduler.resuming
        first, increment = run.first, run.increment
        later, others = run.length - 1, self.batch.counted
        for job in resuming:
            others -= job.counted
            # If the client has given up and the run has only one step, the token of that step does not count.
            if later or job not in self.expiring:
                self.note_resumed(job, run.start + first)
        self.log(ENTRY(first, increment, 1, others))
        if later:
            self.log(ENTRY(first + increment, increment, later, self.batch.counted))
        resuming.clear()

    def note_resumed(self, job: Job, now: int) -> None:
        """Record the first token after a preemption, or after a handover from a prefill instance."""
        if job.ticket.preemptions:
            self.recorder.preempted_ps[job.row] += now - job.last_token_ps
        self.gaps.resume(job, now)

    def advance(self, job: Job, tokens: int, now: int) -> None:
        """Advance the prefill of a request. When the prefill ends, the request generates its next token."""
        batch = self.batch
        job.computed += tokens
        self.blocks.offer(job, job.computed // self.size, now)
        self.count_prefill(job, job.computed)
        if job.expired:
            self.drop(job)
            return
        if job.computed < job.known:
            if job.pipelined:
                handover = job.handover
                assert handover is not None
                if handover.load is not None:
                    handover.send(now, self.links)
                elif not handover.begun:
                    self.handed.append(job)
            return
        if job is batch.partial:
            batch.partial = None
        self.queue.refused = None  # a refused request that shares blocks of this prompt may now need fewer new blocks
        if self.cache.stored is not None:
            self.cache.note(job.holds)
            self.scheduler.stirred = True
        if job.handover is not None:
            self.hand_over(job, now)
            return
        job.generated += 1
        if job.generated == 1:
            self.recorder.first_token_ps[job.row] = now
            self.first_tokens.append(job)
        else:
            self.note_resumed(job, now)
        job.log_from = len(self.gaps.runs)
        batch.start_decoding(job)
        if job.ends_at_step == batch.steps:
            self.leave(job)

    def count_prefill(self, job: Job, computed: int) -> None:
        """Count the prompt tokens of a request that are computed for the first time."""
        prompt = job.request.prompt_tokens
        total = computed if computed < prompt else prompt
        if total > job.prefilled and not job.withdrawn:
            self.stats.prefill_tokens += total - job.prefilled
            job.prefilled = total

    def count_ended(self, job: Job, now: int) -> None:
        """Count the prompt tokens of a request that the ended steps of the current run have computed."""
        run = self.run
        if run.end >= 0 and job is self.batch.partial:
            self.count_prefill(job, job.computed + run.chunks[0][1] * run.count_ended(now))

    def leave(self, job: Job) -> None:
        """Finish a request that has generated its last token."""
        self.scheduler.stop_decoding(job)
        self.release(job)
        self.view.running = len(self.batch.running)
        self.stats.output_tokens += job.generated
        if self.queue.ended is not None:
            self.queue.ended(job.ticket, job.generated, True)
        self.ended.append(job)

    def hand_over(self, job: Job, now: int) -> None:
        """Hand over a request whose prompt is computed. Its blocks stay here until the transfer is complete."""
        assert job.handover is not None
        if job.handover.first_token:
            self.recorder.first_token_ps[job.row] = now
            self.first_tokens.append(job)
        self.release(job, keeps_blocks=True)
        self.view.running = len(self.batch.running)
        if self.queue.ended is not None:
            self.queue.ended(job.ticket, 0, True)
        self.handing[job] = None
        job.handover.computed = True
        self.handed.append(job)

    def drop_decodes(self) -> None:
        """Remove the decoding requests whose clients gave up during the step that has just ended. Their tokens of that
        step are wasted."""
        for job in self.expiring:
            if job.ends_at_step >= 0:
                self.drop(job, wasted=True)
        self.expiring.clear()

    def drop(self, job: Job, wasted: bool = False) -> None:
        """End a running request before its last token. Its generated tokens count; if `wasted` is set, those of the
        step that has just ended do not."""
        batch = self.batch
        if job.ends_at_step >= 0:
            self.scheduler.stop_decoding(job)
            batch.forget_end(job)
            self.gaps.close(job, 0)
            if wasted:
                job.generated = batch.generated_before(job)
        elif job is batch.partial:
            batch.partial = None
        self.release(job)
        self.view.running = len(batch.running)
        if self.queue.ended is not None:
            self.queue.ended(job.ticket, job.generated, False)
        self.finish_expired(job)

    def finish_expired(self, job: Job) -> None:
        self.stats.output_tokens += job.generated
        take_back(job)
        self.ended.append(job)

    def rest(self, now: int) -> None:
        """End the current busy period."""
        if self.busy_from >= 0:
            self.stats.busy_ps += now - self.busy_from
            for window in self.windows:
                window.add(self.busy_from, now)
            self.busy_from = -1

    def settle_stores(self, now: int) -> None:
        """Update the stores below the GPU with the changes since the last call."""
        if self.scheduler.stirred:
            self.scheduler.stirred = False
            if self.tiers is not None:
                self.tiers.settle(now)

    # --- events from outside; a method that returns a bool says whether a step can begin at this instant ----------

    def enqueue(self, job: Job, now: int, priority: float, hints: Hints) -> bool:
        """Add a request to the queue."""
        if self.history is not None and now >= self.tick:
            self.history.record(self, now)
        if self.ahead is not None:
            return async_steps.enqueue(self, job, now, priority, hints)
        queue = self.queue
        queue.add(job, now, priority, hints)
        self.view.queued = self.scheduler.count_queued() if self.loader.active else len(queue.waiting)
        return self.run.end < 0 or self.cut_to_enter(now)

    def cut_to_enter(self, now: int) -> bool:
        """End the run at the next step boundary if a waiting request might enter the batch there. No request can enter
        while a prefill is unfinished, the batch is full, or the first request in the queue lacks blocks or an adapter
        slot. In these cases, the run ends by itself at the change that lets a request enter. If running requests may
        yield to waiting ones, a full batch or an unfinished prefill keeps no request out."""
        batch = self.batch
        full = batch.partial is not None or len(batch.running) >= self.view.max_batch_size
        if full and self.scheduler.yields is None:
            self.scheduler.note_waiting(now)
            return False
        if self.queue.refused is not None and not self.loader.ready and self.queue.is_refused():
            return False
        if not self.run.cut(now):
            return False
        self.finish_run(now)
        return True

    def cut(self, now: int) -> bool:
        """End the run at the first step boundary at or after this instant. Return whether the run ends now."""
        if self.run.cut(now):
            self.finish_run(now)
            return True
        return False

    def expire(self, job: Job, now: int) -> bool:
        """End a request whose client gives up: a waiting request ends now, a running one at the next step boundary. If
        the current step still generates a token for it, that token is wasted."""
        if self.history is not None and now >= self.tick:
            self.history.record(self, now)
        if job not in self.batch.running:
            job.expired = job.between_steps = True
            self.withdraw(job, now)
            self.finish_expired(job)
            return self.nudge(now)
        if self.run.end >= 0 and not self.cut(now):
            job.expired = True
            self.expiring.append(job)
            return False
        job.expired = job.between_steps = True
        self.drop(job)
        if (report := self.blocks.report) is not None:
            report.kv_used = self.cache.held
        return True

    def withdraw(self, job: Job, now: int) -> None:
        if self.ahead is not None:
            async_steps.settle(self, now)
        self.scheduler.end_wait(job, now)
        if self.ahead is not None and self.ahead.forget(job):
            pass
        elif job.ticket in self.queue.waiting:
            self.queue.remove(job)
            self.loader.drop_swapped(job, now)
        else:
            self.forget_load(job, now)
        self.view.queued = self.scheduler.count_queued()
        self.scheduler.note_empty(now)

    def nudge(self, now: int) -> bool:
        """Check again whether a waiting request can enter the batch."""
        if self.ahead is not None:
            async_steps.settle(self, now)
        if not self.queue.waiting and not self.loader.ready:
            return False
        return self.run.end < 0 or self.cut_to_enter(now)

    def forget_load(self, job: Job, now: int) -> None:
        """Free the blocks of a request that is loading blocks or has loaded them."""
        self.blocks.settle(now)
        self.blocks.note_peak()
        held = self.cache.held
        self.loader.drop(job, now)
        self.scheduler.stir()
        if (report := self.blocks.report) is not None:
            report.kv_used -= held - self.cache.held
        self.settle_stores(now)

    def on_loaded(self, job: Job, now: int) -> bool:
        """Mark a request as ready after its blocks have arrived."""
        if self.history is not None and now >= self.tick:
            self.history.record(self, now)
        self.blocks.settle(now)
        load = self.loader.arrive(job, now)
        self.scheduler.stir()
        if self.tiers is not None:
            self.settle_stores(now)
        if self.ahead is not None:
            return async_steps.note_loaded(self, job, load, now)
        return self.run.end < 0 or self.cut_to_enter(now)

    def let_go(self, job: Job, now: int) -> bool:
        """Free the blocks of a prompt that was computed for another instance, when the other instance has a copy or no
        longer needs one."""
        if self.history is not None and now >= self.tick:
            self.history.record(self, now)
        self.blocks.settle(now)
        self.blocks.note_peak()
        held = self.cache.held
        removed = self.part_with(job, now)
        if (report := self.blocks.report) is not None:
            report.kv_used -= held - self.cache.held
        self.scheduler.stir()
        if self.tiers is not None:
            self.settle_stores(now)
            self.tiers.tell_places(now, removed)
        return self.nudge(now)

    def part_with(self, job: Job, now: int) -> list[Stretch]:
        """Release the blocks of a prompt computed for another instance. Return the content removed from the cache."""
        del self.handing[job]
        self.cache.now = now
        if self.transfer is not None and not self.transfer.spec.keep_prefill_copy:
            return self.cache.remove(job.holds, job.blocks)
        self.cache.release(job.holds, job.blocks)
        return []

    def slow(self, now: int, factor: Fraction, until: int) -> bool:
        """Slow the instance down by `factor`, from the next step on and until time `until`."""
        self.planner.slow(now, factor, until)
        return self.run.end >= 0 and self.cut(now)
