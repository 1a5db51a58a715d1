"""The steps of an instance: how a run of them is formed, planned and ended, and what becomes of its requests with it.

A *run* is a stretch of steps with the same decoding set and the same chunk of prefill. It is planned to the first
boundary at which anything can change. What happens inside (tokens, blocks, gaps) follows from its formula and is
settled when it ends or when somebody looks.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from random import Random
from typing import Any

from headway.results.recorder import Recorder
from headway.sim.adapters import Adapters
from headway.sim.batch_log import BatchLog
from headway.sim.batching import Batching
from headway.sim.busy import BusyWindow
from headway.sim.gap_log import ENTRY, take_back
from headway.sim.job import Job
from headway.sim.leap import duration, steps_begun
from headway.sim.link import Links
from headway.sim.pace import Pace
from headway.sim.polling import History
from headway.sim.ranked_cache import RankedCache
from headway.sim.setup import EngineSetup
from headway.sim.tier import Tier
from headway.sim.tiers import Tiers
from headway.types import NEVER
from headway.views.instance import InstanceView


class Stepping(Batching):
    __slots__ = (
        "arrived",
        "batches",
        "busy_from",
        "cuts",
        "ended",
        "expiring",
        "finished",
        "first_tokens",
        "handed",
        "handing",
        "history",
        "idle_watts",
        "log",
        "pace",
        "paced_until",
        "span_watts",
        "step_times",
        "tick",
        "transfer",
        "walks",
        "windows",
    )

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
        finished: list[Job],
        handed: list[Job],
        links: Links,
        tiers: list[Tier] | None,
    ) -> None:
        super().__init__(view, scheduler, recorder, links, block_tokens=block_tokens, caching=caching)
        self.stats.gpus = engine.gpus
        self.stats.usd_per_gpu_hour = engine.usd_per_gpu_hour
        self.stats.idle_watts = engine.idle_watts
        self.stats.busy_watts = engine.busy_watts
        if view.adapter_slots is not None:
            self.adapters = Adapters(view.adapter_slots, engine.adapter_load_ps)
        self.whole_prompts = engine.whole_prompts
        if engine.eviction != "lru":
            self.cache = RankedCache(view.kv_blocks, engine.eviction == "lfu")
        if tiers is not None:
            self.tiers = Tiers(self.cache, tiers, links, engine, recorder)
        self.loads = tiers is not None or view.role == "decode"
        self.transfer = engine.transfer
        self.gated = self.adapters is not None or (self.transfer is not None and self.transfer.incoming is not None)
        self.handing: dict[Job, None] = {}  # prompts computed for others that have not got them yet
        self.pace = Pace(engine.latency)
        self.paced_until = NEVER  # how long the step times hold
        self.step_times = engine.latency.run
        self.idle_watts = engine.idle_watts
        self.span_watts = engine.busy_watts - engine.idle_watts
        self.ended = getattr(self.queue, "ended", None)
        self.walks = walks  # plan single steps
        self.cuts = cuts  # cut runs at random places, to show that a cut leaves no trace
        self.arrived = 0  # how many ever came
        self.expiring: list[Job] = []  # running requests whose clients have given up during the run
        # what it leaves
        self.first_tokens = first_tokens  # of runs ended at this instant, on any instance
        self.finished = finished
        self.handed = handed  # requests whose prompts, or first chunks of them, are computed and go on elsewhere
        self.log = self.gaps.runs.frombytes
        self.busy_from = -1  # when it last became busy; -1 when idle
        self.batches: BatchLog | None = None  # where it is to be told how the batch changes
        self.windows: tuple[BusyWindow, ...] = ()  # where somebody asks how busy it was
        self.tick = NEVER  # the first that has not been written down, where the signals are polled
        self.history: History

    def begin(self, now: int) -> bool:
        """Form the next step and plan how often it repeats. False if there is nothing to do."""
        if now >= self.tick:
            self.history.record(self, now)
        self.chunks = []
        self.cache.now = now
        if self.stirred and self.tiers is not None:
            self.stirred = False
            self.tiers.settle(now)
        again = shut = False
        if now >= self.paced_until:
            model, self.paced_until = self.pace.at(now)
            self.step_times = model.run
        if self.partial is not None:
            again, shut = self.schedule_partial()
        elif self.running and (need := self.phases[self.steps % self.block_tokens]):
            if need <= self.cache.total - self.cache.held:
                self.cache.take(need)
            else:
                again = True
                self.make_room(0)
        # Who had to yield does not come back at once, unless nobody is left: those that are ready hold blocks too.
        if (self.waiting or self.ready) and not (shut or (again and self.running)):
            again = self.admit(now)
            view = self.view
            view.queued = len(self.waiting) if not self.loads else self.queued()
            view.running = len(self.running)
        if self.stirred and self.tiers is not None:
            self.stirred = False
            self.tiers.settle(now)
        if self.running:
            if self.busy_from < 0:
                self.busy_from = now
        else:
            self.rest(now)
            if self.tells_kv:
                self.view.kv_used = self.cache.held
            return False
        if self.batches is not None:
            self.batches.note(now, self)
        self.plan(now, again)
        return True

    def plan(self, now: int, once: bool) -> None:
        """How long the step lasts, and how many like it follow before anything can change."""
        cache, chunks, decodes = self.cache, self.chunks, self.decodes
        if chunks:
            shape = [(want, job.computed) for job, want in chunks]
            first, increment, steps = self.step_times(decodes, self.context, shape)
            job, want = chunks[0]
            if len(chunks) == 1 and not job.pipelined and self.repeats(job, want):
                # A prefill that uses up the budget and does not end repeats; nothing else can enter meanwhile.
                steps = min(steps, (job.known - job.computed - 1) // want)
            else:
                steps = 1
            if self.adapters is not None and self.adapters.loading_ps:
                first += self.adapters.take_loading()
                steps = 1
        else:
            first, increment, steps = self.step_times(decodes, self.context, ())
        if once or self.walks:
            steps = 1
        elif steps > 1:
            if decodes and (left := self.ending[0][0] - self.steps) < steps:
                steps = left
            if chunks or decodes * (steps // self.block_tokens + 1) > cache.total - cache.held:
                steps = self.affordable(steps)
            if self.paced_until < NEVER:  # a step takes the factor in force when it begins
                steps = min(steps, steps_begun(first, increment, self.paced_until - now))
            if self.cuts is not None:
                steps = self.cuts.randint(1, steps)
        self.start = now
        self.first = first
        self.increment = increment
        self.length = steps
        self.taken = 1
        if self.tells_kv:
            self.looked = self.steps + 1
            self.reported_to = now + first
            self.next_step = first + increment
            self.view.kv_used = cache.held
        self.end = now + first if steps == 1 else now + steps * first + increment * (steps * (steps - 1) // 2)

    def finish_run(self, now: int) -> None:
        """The run's last step ends: count its tokens, emit first tokens, let go what is finished."""
        if now > self.tick:  # a tick at this very instant sees the step ended
            self.history.record(self, now - 1)
        cache, length = self.cache, self.length
        if length > self.taken:
            self.take_to(length)
        if cache.held > self.peak:
            self.peak = cache.held
        self.end = -1
        self.steps += length
        if decodes := self.decodes:
            self.context += decodes * length
            if self.resuming:
                self.log_resumed()
            else:
                self.log(ENTRY(self.first, self.increment, length, self.counted))
            if length > 1 and self.partial is not None:  # earlier steps' blocks come before what ends now
                job, want = self.chunks[0]
                self.offer(job, (job.computed + want * (length - 1)) // self.block_tokens)
        if self.expiring:
            self.drop_decodes()
        ending, steps = self.ending, self.steps
        while ending and ending[0][0] == steps:
            self.leave(heappop(ending)[2])
        for job, want in self.chunks:
            self.advance(job, want * length, now)
        if self.tells_kv:
            self.view.kv_used = cache.held
            self.reported_to = NEVER

    def log_resumed(self) -> None:
        """The gaps of a run with whose first step some go on to decode: theirs before its token are longer."""
        first, increment, later, others = self.first, self.increment, self.length - 1, self.counted
        for job in self.resuming:
            others -= job.counted
            if later or job not in self.expiring:  # else its token is wasted
                self.gaps.resume(job, self.start + first)
        self.log(ENTRY(first, increment, 1, others))
        if later:
            self.log(ENTRY(first + increment, increment, later, self.counted))
        self.resuming.clear()

    def advance(self, job: Job, tokens: int, now: int) -> None:
        """A prefill moves on; with its last token the next output token comes."""
        job.computed += tokens
        self.offer(job, job.computed // self.block_tokens)
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
        if job is self.partial:
            self.partial = None
        self.refused = None  # with this prompt's blocks for hits it may need fewer
        if self.cache.stored is not None:
            self.cache.note(job.holds)
            self.stirred = True
        if job.handover is not None:
            self.hand_over(job, now)
            return
        job.generated += 1
        if job.generated == 1:
            self.recorder.first_token_ps[job.row] = now
            self.first_tokens.append(job)
        else:
            self.gaps.resume(job, now)
        job.log_from = len(self.gaps.runs)
        self.start_decoding(job)
        if job.ends_at_step == self.steps:
            self.leave(job)
        else:
            heappush(self.ending, (job.ends_at_step, job.order, job))

    def count_prefill(self, job: Job, computed: int) -> None:
        """Prompt tokens are counted the first time they are computed."""
        done = min(computed, job.request.prompt_tokens)
        if done > job.prefilled and not job.withdrawn:
            self.stats.prefill_tokens += done - job.prefilled
            job.prefilled = done

    def count_ended(self, job: Job, now: int) -> None:
        """Count the prompt tokens of the steps that have ended by now, where the run goes on."""
        if self.end >= 0 and job is self.partial:
            begun = self.begun(now)
            ended = begun if self.start + duration(self.first, self.increment, begun) == now else begun - 1
            self.count_prefill(job, job.computed + self.chunks[0][1] * ended)

    def leave(self, job: Job) -> None:
        """The last token has come."""
        self.stop_decoding(job)
        self.release(job)
        self.view.running = len(self.running)
        self.stats.output_tokens += job.generated
        if self.ended is not None:
            self.ended(job.ticket, job.generated, True)
        self.finished.append(job)

    def hand_over(self, job: Job, now: int) -> None:
        """The prompt is computed; the request goes on elsewhere, and its blocks stay here until they are there."""
        assert job.handover is not None
        if job.handover.transfer.first_token:
            self.recorder.first_token_ps[job.row] = now
            self.first_tokens.append(job)
        del self.running[job]
        self.view.running = len(self.running)
        self.stir()
        if self.adapters is not None:
            self.adapters.leave(job.request.adapter)
        if self.ended is not None:
            self.ended(job.ticket, 0, True)
        self.handing[job] = None
        job.handover.done = True
        self.handed.append(job)

    def drop_decodes(self) -> None:
        """Requests whose clients gave up during the step that has just ended; its token is wasted."""
        for job in self.expiring:
            if job.ends_at_step >= 0:
                self.drop(job, wasted=1)
        self.expiring.clear()

    def drop(self, job: Job, wasted: int = 0) -> None:
        """A running request ends before its last token; those of the steps that have ended count, or all but some."""
        if job.ends_at_step >= 0:
            self.stop_decoding(job)
            self.ending = [entry for entry in self.ending if entry[2] is not job]
            heapify(self.ending)
            self.gaps.close(job, 0)
            job.generated -= wasted
        elif job is self.partial:
            self.partial = None
        self.release(job)
        self.view.running = len(self.running)
        if self.ended is not None:
            self.ended(job.ticket, job.generated, False)
        self.finish_expired(job)

    def finish_expired(self, job: Job) -> None:
        self.stats.output_tokens += job.generated
        take_back(job)
        self.finished.append(job)

    def rest(self, now: int) -> None:
        """Nothing is left to do."""
        if self.busy_from >= 0:
            self.stats.busy_ps += now - self.busy_from
            for window in self.windows:
                window.add(self.busy_from, now)
            self.busy_from = -1
