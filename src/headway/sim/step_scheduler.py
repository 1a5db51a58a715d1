"""Forms the next step of an instance: gives blocks to running requests, preempts requests if there are not enough
blocks, and admits waiting requests within the limits on sequences, tokens, blocks and adapters.

Every running request computes at least one token in each step, because a request enters only while the step's token
budget is not used up. Hence all decodes advance together. While a prefill is unfinished, no other request enters, even
if the scheduler's limit on chunks leaves budget unused. Hence only the newest running request can have an unfinished
prefill.
"""

from collections.abc import Sized

from headway.results.recorder import InstanceStats, Recorder
from headway.results.records import ADAPTER, HANDOVER, KV, NO_LIMIT, PROMPT, SLOTS, TOKENS, Preemption
from headway.sim.adapters import Adapters
from headway.sim.batch import Batch
from headway.sim.drafted_windows import DraftedWindows
from headway.sim.engine_logs import GapLog, LimitLog, Reporter
from headway.sim.engine_queue import EngineQueue
from headway.sim.job import Job
from headway.sim.kv_cache import LATER
from headway.sim.leap import Run
from headway.sim.loaded_requests import admit_ready
from headway.sim.loader import Loader
from headway.sim.recent_values import HitRate
from headway.sim.run_blocks import RunBlocks
from headway.sim.windows import Windows
from headway.sim.yielding import make_way
from headway.views.instance import InstanceView


class StepScheduler:
    __slots__ = (
        "adapters", "aligned", "batch", "blocks", "cache", "gaps", "gated", "handed_ps", "hits", "joined_ps", "limit",
        "limits", "loader", "max_batch_size", "max_batch_tokens", "preempted", "prepares", "queue", "ready", "recorder",
        "refusal", "resuming", "run", "shut", "sight", "size", "skips", "stats", "stirred", "unseen", "view", "waiting",
        "whole_prompts", "windows", "yields",
    )  # fmt: skip

    def __init__(
        self,
        view: InstanceView,
        queue: EngineQueue,
        batch: Batch,
        run: Run,
        blocks: RunBlocks,
        loader: Loader,
        adapters: Adapters | None,
        recorder: Recorder,
        stats: InstanceStats,
        gaps: GapLog,
        *,
        whole_prompts: bool,
        gated: bool,
        windows: Windows | DraftedWindows | None = None,
    ) -> None:
        self.view = view
        self.queue = queue
        self.batch = batch
        self.run = run
        self.blocks = blocks
        self.cache = blocks.cache
        self.size = blocks.size
        self.loader = loader
        self.waiting = queue.waiting
        self.ready = loader.ready
        self.adapters = adapters
        self.recorder = recorder
        self.handed_ps, self.joined_ps = recorder.handed_ps, recorder.joined_ps
        self.stats = stats
        self.gaps = gaps
        self.max_batch_tokens = view.max_batch_tokens
        self.max_batch_size = view.max_batch_size
        # Whether chunks end with blocks, because the states of layers are kept at the ends of chunks.
        self.aligned = windows is not None and windows.cache.groups.aligned
        self.skips = self.cache.skipped_blocks(0, 2) > 0  # whether some blocks of a chunk take no pages
        self.whole_prompts = whole_prompts  # whether a request enters only if there is room for its whole prompt
        self.windows = windows  # set if layers of the model have sliding windows
        self.gated = gated  # whether requests may have to wait because of adapter slots or the limit on handovers
        self.resuming: list[Job] = []  # requests that resume decoding in the first step of the run
        self.yields = None if blocks.reserves else queue.yields  # whether running requests yield to waiting ones
        self.sight = queue.sight
        self.prepares = self.windows is not None or self.sight is not None or self.yields is not None
        self.limits = LimitLog(view.index, recorder.limits)
        self.limit = NO_LIMIT  # what keeps the first waiting request out of the step that `admit` has formed
        self.refusal = NO_LIMIT  # why `queue.refused` could not enter the batch
        self.shut = False  # whether a prefill continues after the current step, so that no request may enter
        self.stirred = False  # whether a scheduling change happened since the last update of the stores
        self.unseen: Sized = ()  # requests that have reached the instance, but that no step may include yet
        self.hits: HitRate | None = None  # set if a policy reads the hit rate
        self.preempted: Reporter | None = None  # set if a policy observes preemptions

    def form_step(self, now: int) -> bool:
        """Choose the requests of the next step. Return whether the step after it may have different requests even if no
        event happens in between."""
        batch, cache, run = self.batch, self.cache, self.run
        cache.now = now
        if run.chunks:
            run.chunks = []
        self.shut = once = False
        yielding = self.prepares and self.prepare(now)
        if batch.partial is not None:
            once = self.schedule_partial(batch.partial)
        elif batch.running:
            need = batch.phases[batch.steps % self.size] if batch.lanes is None else batch.decode_blocks(batch.steps, 1)
            if need:
                if need > cache.total - cache.held:
                    once = True
                    self.make_room(0)
                else:
                    cache.take(need)
        if self.waiting or self.ready:
            if self.shut:
                self.limit = PROMPT
            # After a preemption, requests enter only if the batch is empty. They must be able to enter an empty batch,
            # because ready requests may own all the blocks.
            elif once and batch.running:
                self.limit = KV
            else:
                once = self.admit(now)
                view = self.view
                view.queued = self.count_queued() if self.loader.active else len(self.waiting)
                view.running = len(batch.running)
            if self.limit != self.limits.limit:
                self.limits.note(now, self.limit)
        elif self.limits.limit:
            self.limits.note(now, NO_LIMIT)
        return once or (yielding and bool(self.waiting))

    def prepare(self, now: int) -> bool:
        """Move the sliding windows, and let running requests yield to the first waiting one. Return whether a running
        request may yield to it."""
        if self.windows is not None:
            self.windows.move()
        if self.sight is not None:
            self.sight.now = now
        return self.yields is not None and bool(self.waiting) and make_way(self, self.yields)

    def note_waiting(self, now: int) -> None:
        """Note which limit keeps a request waiting beyond the current step, if that is certain and no limit is known
        yet. Otherwise the next step determines the limit."""
        if self.limits.limit:
            return
        if self.shut:
            self.limits.note(now, PROMPT)
        elif len(self.batch.running) >= self.max_batch_size:
            self.limits.note(now, SLOTS)

    def note_empty(self, now: int) -> None:
        """If no request waits any longer, note that no limit keeps a request out."""
        if not self.waiting and not self.ready:
            self.limits.note(now, NO_LIMIT)

    def count_queued(self) -> int:
        """Return the number of requests that are not in the batch."""
        return len(self.waiting) + len(self.loader.loading) + len(self.ready) + len(self.unseen)

    def stir(self) -> None:
        """Note a change that may let a refused request enter the batch."""
        self.stirred = True
        self.queue.refused = None

    # --- running requests --------------------------------------------------------------------------------------

    def schedule_partial(self, job: Job) -> bool:
        """Allocate blocks for the next tokens of the decodes and the next chunk of the unfinished prefill. If the
        prefill continues after the step, no other request may enter. Return whether a request was preempted."""
        cache, batch, reserves = self.cache, self.batch, self.blocks.reserves
        left = job.known - job.computed
        want = min(left, self.max_batch_tokens - batch.decodes * batch.width, job.chunk)
        if self.aligned:
            want = aligned_chunk(job, job.computed, want, self.size)
        short = False
        if batch.decodes or not reserves:  # otherwise the prefill already has all its blocks
            blocks = job.blocks if reserves else -(-(job.computed + want) // self.size)
            need = batch.decode_blocks(batch.steps, 1) + blocks - job.blocks
            skipped = cache.skipped_blocks(job.blocks, blocks)
            short = not cache.has_room(need, skipped)
            if short:
                self.make_room(blocks)
            else:
                cache.take(need, skipped)
                job.blocks = blocks
                job.skipped = skipped
        if job is batch.partial:
            self.run.chunks.append((job, want))
            self.shut = want < left
        return short

    def make_room(self, partial_blocks: int) -> None:
        """Allocate blocks request by request in the scheduler's order. While there are too few blocks, preempt the last
        request in this order."""
        cache, batch = self.cache, self.batch
        if self.sight is not None:
            self.queue.look(batch.running, cache.held)
        order = self.queue.sort(batch.running)
        served = 0
        while served < len(order):
            job = order[served]
            need = partial_blocks - job.blocks if job is batch.partial else batch.next_blocks(job)
            skipped = cache.skipped_blocks(job.blocks, partial_blocks) if job is batch.partial else 0
            while not cache.has_room(need, skipped):
                victim = order.pop()
                self.preempt(victim)
                if victim is job:
                    return
            cache.take(need, skipped)
            if job is batch.partial:
                job.blocks = partial_blocks
                job.skipped = skipped
            served += 1

    def preempt(self, job: Job) -> None:
        """Take the blocks away from a request and queue it again. Its content is recomputed or loaded later."""
        batch = self.batch
        if job is batch.partial:
            batch.partial = None
        else:
            self.stop_decoding(job)
            batch.forget_end(job)
            self.gaps.close(job, self.run.boundary(self.run.length))
            self.loader.swap_out(job)
        self.release(job)
        job.ticket.generated = job.generated
        job.ticket.preemptions += 1
        self.wait_again(job)
        self.view.queued = self.count_queued()
        self.view.running = len(batch.running)
        self.recorder.preemptions[job.row] += 1
        self.recorder.preempted.append(Preemption(self.cache.now, self.view.index, job.row))
        if self.preempted is not None:
            self.preempted.report(self.cache.now, job.request)
        self.stats.preemptions += 1

    def wait_again(self, job: Job) -> None:
        self.end_wait(job, self.cache.now)
        job.waits_from, job.was_ready = self.cache.now, False
        if job.swapped:
            job.suspend(self.size)
        else:
            job.rewind(self.size)
        self.queue.put_back(job)

    def stop_decoding(self, job: Job) -> None:
        """Remove a request from the decoding set, and cache its generated blocks."""
        self.batch.stop_decoding(job)
        end = job.computed // self.size
        if end > job.cached_to and self.blocks.caching:
            cache, key = self.cache, job.output_key
            cache.add(key, job.cached_to, end, job.holds, job.ticket.priority, job.released)
            if cache.stores is not None:
                cache.tell_stored(cache.now, LATER, key, job.request.prompt_tokens // self.size, job.request.path)

    def release(self, job: Job, keeps_blocks: bool = False) -> None:
        """Remove a request from the batch, and release its blocks unless a handover needs them."""
        if not keeps_blocks:
            self.cache.release(job.holds, job.blocks, None, job.released + job.skipped)
        del self.batch.running[job]
        self.stirred = True
        self.queue.refused = None
        if self.adapters is not None:
            self.adapters.leave(job.request.adapter)

    # --- waiting requests --------------------------------------------------------------------------------------

    def admit(self, now: int) -> bool:
        """Admit waiting requests in order, within the limits on sequences, tokens, blocks and adapters. Do not call
        this if a prefill continues after the step. Return whether the first request that still waits may enter at the
        next step even if no event happens in between."""
        batch, loader, queue = self.batch, self.loader, self.queue
        budget = self.max_batch_tokens - batch.decodes * batch.width
        if self.run.chunks:
            budget -= self.run.chunks[0][1]
        self.limit = TOKENS
        if loader.ready:
            budget = admit_ready(self, budget)
        cache, size, blocks_of = self.cache, self.size, self.blocks
        waiting, running, loads = queue.waiting, batch.running, loader.active
        while waiting and budget > 0 and len(running) + len(loader.loading) < self.max_batch_size:
            job = queue.first() if self.sight is None else self.first()
            if loads and job.ticket is queue.refused:  # nothing has changed since the request was refused
                self.limit = self.refusal
                return False
            if self.gated and (gate := self.find_gate(job)):
                self.refuse(job, gate)
                return False
            known = job.known
            hits = cache.match(job.runs, (known - 1) // size) if blocks_of.caching else 0
            if loads and (end := loader.reach(job, hits)) > hits:
                if self.admit_load(job, hits, end, now):
                    continue
                self.refuse(job, KV)
                return False
            cached = hits * size
            want = known - cached
            if want > budget:
                want = budget
            if want > job.chunk:
                want = job.chunk
            if self.aligned:
                if self.run.chunks and self.leaves_too_little(job, cached, want):
                    break
                job.parts_at = cache.tokens_match(job.runs, (known - 1) // size) * size if blocks_of.caching else 0
                want = aligned_chunk(job, cached, want, size)
            blocks = -(-(known if blocks_of.reserves else cached + want) // size)
            need = -(-known // size) if self.whole_prompts else blocks
            if cache.lacks(job.runs, hits, need, blocks):
                # During the run, a decode may evict a block that the request would hit. The request's chunk then ends
                # one block earlier and needs one block less, but the decode has taken one block. So the request still
                # has too few blocks, unless a single eviction can cost it several hits.
                self.refuse(job, KV)
                steady = cache.goes_tail_first(job.runs, hits)
                if steady and job.parts_at:
                    steady = cache.goes_tail_first(job.runs, job.parts_at // size)
                return not loads and not steady
            queue.take(job)
            if self.adapters is not None:
                self.load_adapter(job, self.adapters)
            if hits:
                job.holds = cache.hold(job.runs, hits, job.ticket.priority)
            if self.skips:
                job.skipped = cache.skipped_blocks(hits, blocks)
                cache.take(blocks - hits, job.skipped)
            else:
                job.skipped = 0
                cache.take(blocks - hits)
            job.computed = cached
            job.blocks = blocks
            job.cached_to = hits
            self.take_turn(job, cached, now)
            batch.enter(job)
            self.run.chunks.append((job, want))
            self.stirred = True
            budget -= want
            if cached + want < known:
                batch.partial = job
                self.shut = True
                self.limit = PROMPT
                break
        if not waiting and not loader.ready:
            self.limit = NO_LIMIT
        elif self.limit == TOKENS and len(running) + len(loader.loading) >= self.max_batch_size:
            self.limit = SLOTS
        return False

    def leaves_too_little(self, job: Job, start: int, want: int) -> bool:
        """Return whether other chunks of the step leave too little budget for a whole block of a request."""
        most = min(self.max_batch_tokens, job.chunk)
        return want < self.size <= most and start + want < job.known

    def first(self) -> Job:
        """Return the next request in the scheduler's order, which may differ after a scheduling change."""
        if self.sight is not None and self.sight.changed:
            self.queue.look(self.batch.running, self.cache.held)
        return self.queue.first()

    def refuse(self, job: Job, limit: int) -> None:
        """Note that the first waiting request cannot enter, and why."""
        self.queue.refused = job.ticket
        self.limit = self.refusal = limit

    def find_gate(self, job: Job) -> int:
        """Return the limit that keeps a request out before its blocks are counted: its adapter has no slot, or its
        decode instance accepts no more handovers. Return NO_LIMIT if there is no such limit."""
        if self.adapters is not None and not self.adapters.has_room(job.request.adapter):
            return ADAPTER
        if job.handover is None or not job.handover.incoming.full():
            return NO_LIMIT
        job.handover.incoming.blocked[self.view.index] = None
        return HANDOVER

    def load_adapter(self, job: Job, adapters: Adapters) -> None:
        if adapters.enter(job.request.adapter):
            self.view.adapters = adapters.names()

    def admit_load(self, job: Job, hits: int, end: int, now: int) -> bool:
        """Start to load the blocks of a request up to `end`, because its turn has come. Return False if there are not
        enough free blocks for them."""
        cache = self.cache
        if job.swapped:
            hits = 0
        need = max(end, -(-job.known // self.size)) if self.whole_prompts else end
        room = cache.total - cache.held
        if need > room and need - hits > room - cache.idle_in(job.runs, hits):
            return False
        self.queue.take(job)
        if not job.started:
            self.recorder.loaded_tokens[job.row] = (end - hits) * self.size
        self.loader.load(job, hits, end, now)
        self.stirred = True
        if job.awaits is None:
            self.take_turn(job, end * self.size, now)
        return True

    def take_turn(self, job: Job, cached: int, now: int) -> None:
        """Record that a request's turn has come, and that `cached` of its tokens are in the cache."""
        if not job.started:
            job.started = True
            self.recorder.started_ps[job.row] = now
            self.recorder.cached_tokens[job.row] = cached
            self.stats.cached_tokens += cached
            self.stats.prompt_tokens += job.request.prompt_tokens
            if self.hits is not None:
                self.hits.add(cached, job.request.prompt_tokens)
                self.view.hit_rate = self.hits.share()
        if cached > job.prefilled:
            job.prefilled = cached
        if job.waits_from >= 0:
            self.end_wait(job, now)
            self.join(job, now)

    def end_wait(self, job: Job, now: int) -> None:
        """Record how long a request has waited outside the batch after its first turn. Waits after the first token, or
        after the prefill of a disaggregated request, follow from other columns."""
        since, job.waits_from = job.waits_from, -1
        if since >= 0 and not job.generated and self.handed_ps[job.row] < 0:
            waits = self.recorder.ready_ps if job.was_ready else self.recorder.interrupted_ps
            waits[job.row] += now - since

    def join(self, job: Job, now: int) -> None:
        """Record when a request whose prompt another instance has computed enters the batch."""
        row = job.row
        if self.handed_ps[row] >= 0 and self.joined_ps[row] < 0:
            self.joined_ps[row] = now


def aligned_chunk(job: Job, start: int, tokens: int, size: int) -> int:
    """Return how many of `tokens` tokens a chunk of a request computes from token `start` on, so that it ends with a
    block of `size` tokens. It also ends where the cached prefix ends whose states are missing. The tokens after the
    last whole block are a chunk of their own. If there is no room for a whole block, the chunk computes a part of
    it."""
    end = start + tokens
    if end < job.known and end // size * size > start:
        end = end // size * size
    within = (start // size + 1) * size if start % size else 0
    for stop in (within, job.known - job.known % size, job.parts_at):
        if start < stop < end:
            end = stop
    return end - start
