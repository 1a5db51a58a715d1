"""A naive simulator, the oracle for the fast engine: one object a KV block, one loop iteration a step, no formulas over
several steps. It shares nothing with the engine but the vocabulary and is meant to be read against the specification.

At one instant: (a) step ends by instance; (b) arrivals by row, then loads that have come by link, then clients that
give up by row, then the router and the clients hear of what ended, by row, and so on with what they send at once; (c)
step begins by instance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from drawn_speculation import DrawnSpeculation, Priced
from drawn_tier import DrawnTier
from headway import hashing
from headway.latency.base import LatencyModel
from headway.types import NEVER, Path, Request
from headway.workload.traffic import OpenLoop, Planned, Traffic
from reference_schedulers import Fcfs, Fifo
from reference_tiers import Load, Lower, Store, build

Identity = tuple[int, int]
RequestTuple = tuple[int, Path, int, int]  # arrival_ps, content, prompt tokens, output tokens


@dataclass(eq=False)
class Block:
    """A physical block. No holder and no identity: empty. A holder and no identity: private."""

    identity: Identity | None = None
    holders: list[Job] = field(default_factory=list)
    duplicate: bool = False  # its content was cached elsewhere when it was computed: it stays private for good


@dataclass(eq=False)
class Job:
    """A request and what became of it."""

    row: int
    arrival: int
    path: Path
    prompt: int
    output: int
    output_key: int
    request: Request
    instance: int = -1
    outcome: str = "in_flight"
    started: int = -1
    finished: int = -1
    cached_tokens: int = 0
    preemptions: int = 0
    prefilled: int = 0  # prompt tokens found cached or computed, so far
    token_times: list[int] = field(default_factory=list)
    rest: int = 0  # 64ths of a token that its steps have brought beyond whole tokens
    computed: int = 0
    decoding: bool = False  # its prefill (or recomputation) ended in an earlier step
    blocks: list[Block] = field(default_factory=list)
    priority: float = 0.0

    @property
    def deadline(self) -> int:
        return -1 if self.request.deadline_ps is None else self.request.deadline_ps

    @property
    def generated(self) -> int:
        return len(self.token_times)

    @property
    def known(self) -> int:
        return self.prompt + self.generated

    @property
    def first_token(self) -> int:
        return self.token_times[0] if self.token_times else -1

    def identity(self, block: int, size: int) -> Identity:
        last = block * size + size - 1
        assert last < max(self.known, self.computed), "only a full block has an identity"
        for key, end in zip(self.path.keys, self.path.ends, strict=True):
            if last < end:
                return (key, block)
        return (self.output_key, block)


@dataclass
class Scheduled:
    """One request's share of a step."""

    job: Job
    want: int
    is_decode: bool


class Cache:
    """The KV blocks of one instance."""

    def __init__(self, blocks: int, size: int, prefix_caching: bool) -> None:
        self.size = size
        self.prefix_caching = prefix_caching
        self.all = [Block() for _ in range(blocks)]
        self.empty = list(self.all)
        self.lru: list[Block] = []  # cached and without a holder, least recently released first
        self.cached: dict[Identity, Block] = {}
        self.evicted = 0
        self.lower: Lower | None = None

    def ceil(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def free(self) -> int:
        return len(self.empty) + len(self.lru)

    def held(self) -> int:
        return len([block for block in self.all if block.holders])

    def take(self, job: Job) -> None:
        block = self.empty.pop(0) if self.empty else self.evict()
        block.duplicate = False
        block.holders.append(job)
        job.blocks.append(block)

    def evict(self) -> Block:
        block = self.lru.pop(0)
        assert block.identity is not None
        if self.lower is not None and not self.lower.eager:
            self.lower.noted.append(block.identity)
        del self.cached[block.identity]
        block.identity = None
        self.evicted += 1
        return block

    def copy_down(self, job: Job) -> None:
        """Note the content that a request holds, the tail first, where what is computed is stored away at once."""
        if self.lower is not None and self.lower.eager:
            self.lower.noted += [block.identity for block in reversed(job.blocks) if block.identity is not None]

    def hits(self, job: Job) -> list[Block]:
        """The leading full blocks that are cached now; at least one token is left to compute."""
        found: list[Block] = []
        if self.prefix_caching:
            for number in range((job.known - 1) // self.size):
                block = self.cached.get(job.identity(number, self.size))
                if block is None:
                    break
                found.append(block)
        return found

    def hold(self, job: Job, block: Block) -> None:
        if not block.holders:
            self.lru.remove(block)
        block.holders.append(job)
        job.blocks.append(block)

    def publish(self, job: Job, covered_before: int) -> None:
        """Full blocks covered by computed tokens since then become cached, unless their content is cached already."""
        if not self.prefix_caching:
            return
        for number in range(covered_before // self.size, job.computed // self.size):
            block = job.blocks[number]
            identity = job.identity(number, self.size)
            if block.identity is not None or block.duplicate:
                continue
            if identity in self.cached:
                block.duplicate = True
            else:
                block.identity = identity
                self.cached[identity] = block

    def release(self, job: Job) -> None:
        self.publish(job, 0)
        self.copy_down(job)
        for block in reversed(job.blocks):
            block.holders.remove(job)
            if block.identity is None:
                assert not block.holders, "a private block has one holder"
                self.empty.append(block)
            elif not block.holders:
                self.lru.append(block)
        job.blocks = []

    def drop_tail(self, job: Job) -> None:
        """Let go of the blocks behind the computed tokens of a request."""
        while len(job.blocks) > self.ceil(job.computed):
            block = job.blocks.pop()
            block.holders.remove(job)
            self.empty.append(block)

    def check(self) -> None:
        assert self.held() + len(self.lru) + len(self.empty) == len(self.all)
        assert all(not block.holders and block.identity is None for block in self.empty)
        assert all(not block.holders and block.identity is not None for block in self.lru)
        named = [block for block in self.all if block.identity is not None]
        assert len(named) == len(self.cached)
        assert all(self.cached[block.identity] is block for block in named if block.identity is not None)


class Instance:
    """One engine: its running list, its queue, its blocks and the step it is in."""

    def __init__(
        self,
        cache: Cache,
        max_batch_tokens: int,
        max_batch_size: int,
        latency: LatencyModel,
        scheduler: Fcfs,
        slots: int | None = None,
        load: int = 0,
        speculation: DrawnSpeculation | None = None,
    ) -> None:
        self.speculation = speculation
        self.drafted = self.accepted = 0
        self.slots = slots  # for adapters; None: all are there
        self.load = load
        self.adapters: list[str] = []  # loaded, the one whose last request entered longest ago first
        self.loads = 0
        self.loads_now = 0  # in the step that begins
        self.kept_waiting = 0  # steps that began without the first in the queue, for want of a slot
        self.cache = cache
        self.scheduler = scheduler
        self.max_batch_tokens = max_batch_tokens
        self.max_batch_size = max_batch_size
        self.latency = latency
        self.running: list[Job] = []
        self.waiting: list[Job] = []
        self.step: list[Scheduled] = []
        self.step_ends = -1
        self.began = -1
        self.busy = 0
        self.steps = 0
        self.prefill_tokens = 0
        self.peak = 0
        self.lower: Lower | None = None  # the stores below the GPU
        self.loading: list[Job] = []  # out of the queue, with blocks that are not there yet
        self.on_its_way: dict[int, Load] = {}  # the last of each request
        self.ready: list[Job] = []  # all have come
        self.refused: Job | None = None  # the first in the queue that lacked something; not tried again until stirred
        self.stirred = False  # a scheduling change since the stores were settled
        self.gave_up: list[Job] = []  # clients of requests in the step, which has to end
        self.seen = Counter[str]()  # what came about

    def fits(self, job: Job) -> bool:
        ahead = 0 if self.speculation is None or job.output == 1 else self.speculation.ahead
        return self.cache.ceil(job.prompt + job.output - 1 + ahead) <= len(self.cache.all)

    def comes(self, job: Job, now: int) -> None:
        self.waiting.append(job)
        self.scheduler.comes(job, now)

    def begin(self, now: int) -> None:
        self.step = []
        self.loads_now = 0
        self.settle(now)
        budget, preempted = self.schedule_running()
        if preempted and not self.running:  # those that load, or are ready, have the blocks
            preempted, budget = False, self.max_batch_tokens
            self.seen["all preempted"] += 1
        if not preempted:
            self.admit_waiting(now, self.admit_ready(budget))
        self.settle(now)
        self.peak = max(self.peak, self.cache.held())
        self.cache.check()
        if not self.step:
            assert not self.running, "with running requests something is always scheduled"
            return
        assert len(self.running) <= self.max_batch_size
        assert sum(entry.want for entry in self.step) <= self.max_batch_tokens
        decodes = [entry.job for entry in self.step if entry.is_decode]
        context = sum(job.known for job in decodes)
        if self.speculation is not None:  # in 64ths
            context = sum(64 * job.known + job.rest for job in decodes)
        chunks = [(entry.want, entry.job.computed) for entry in self.step if not entry.is_decode]
        duration = self.latency.run(len(decodes), context, chunks)[0] + self.loads_now * self.load
        assert duration >= 1
        self.began = now
        self.step_ends = now + duration

    def schedule_running(self) -> tuple[int, bool]:
        """The budget that is left, and whether anyone was preempted. Decodes have their token each, the unfinished
        prefill what is left; blocks are given in the scheduler's order, and the last in it yields."""
        budget = self.max_batch_tokens
        preempted = False
        wants: dict[int, int] = {}
        for job in sorted(self.running, key=lambda job: not job.decoding):
            wants[job.row] = min(self.chunk(job), budget)
            if job.decoding and self.speculation is not None:  # its next token and the drafts after it
                wants[job.row] = 1 + self.speculation.tokens
                assert wants[job.row] <= budget
            assert wants[job.row] > 0, "whoever runs gets on"
            budget -= wants[job.row]
        for job in self.scheduler.in_order(self.running):
            want = wants[job.row]
            ahead = self.speculation.ahead if job.decoding and self.speculation is not None else 0
            tokens = job.known + ahead if ahead else job.computed + want
            missing = max(0, self.cache.ceil(tokens) - len(job.blocks))
            while missing > self.cache.free() and job in self.running:
                self.preempt(self.scheduler.in_order(self.running)[-1])
                preempted = True
            if job not in self.running:
                break
            for _ in range(missing):
                self.cache.take(job)
            self.step.append(Scheduled(job, want, job.decoding))
        self.step.sort(key=lambda entry: self.running.index(entry.job))
        return budget, preempted

    def chunk(self, job: Job) -> int:
        left = job.known - job.computed
        return left if self.scheduler.limit is None else min(left, self.scheduler.limit)

    def preempt(self, job: Job) -> None:
        self.running.remove(job)
        job.preemptions += 1
        self.wait_again(job)

    def wait_again(self, job: Job) -> None:
        self.let_go(job)
        job.computed = 0
        job.decoding = False
        self.waiting.append(job)
        self.scheduler.yields(job)

    def let_go(self, job: Job) -> None:
        self.cache.release(job)
        self.stirred = True
        self.refused = None

    def settle(self, now: int) -> None:
        """After a scheduling change: above its level the GPU gives up content, and what was noted comes down."""
        if not self.stirred:
            return
        self.stirred = False
        if self.lower is not None:
            while self.cache.lru and self.cache.held() + len(self.cache.lru) > self.lower.keep:
                self.cache.empty.append(self.cache.evict())
            self.lower.settle(now)

    def load_blocks(self, job: Job, hits: list[Block], numbers: list[int], now: int) -> None:
        """Its turn has come, but it waits for blocks of its prompt."""
        assert self.lower is not None
        for block in hits:
            self.cache.hold(job, block)
        for _ in numbers:
            self.cache.take(job)
        job.computed = len(hits) * self.cache.size
        self.waiting.remove(job)
        self.scheduler.enters(job)
        self.loading.append(job)
        self.stirred = True
        self.on_its_way[job.row] = self.lower.load(now, job, numbers, self.cache.size)
        self.turn_comes(job, len(job.blocks) * self.cache.size, now)

    def loaded(self, load: Load, now: int) -> None:
        """All its blocks are here, and it wants them still."""
        assert self.lower is not None
        job, size = load.job, self.cache.size
        if job not in self.loading:
            self.seen["for nobody"] += 1
            return
        self.loading.remove(job)
        before = job.computed
        job.computed = len(job.blocks) * size
        self.cache.publish(job, before)
        self.lower.arrived(now, load, [job.identity(number, size) for number in load.numbers])
        self.ready.append(job)
        self.stirred = True
        self.refused = None
        self.settle(now)

    def admit_ready(self, budget: int) -> int:
        """Whoever has its blocks comes before those in the queue; nobody passes it. The budget that is left."""
        while self.ready and budget > 0:
            if self.step and self.step[-1].job.computed + self.step[-1].want < self.step[-1].job.known:
                break
            job = self.ready[0]
            want = min(self.chunk(job), budget)
            missing = self.cache.ceil(job.computed + want) - len(job.blocks)
            if not self.has_slot(job.request.adapter):
                self.seen["blocked"] += 1
                return 0
            while missing > self.cache.free() and len(self.ready) > 1 and not self.running:
                self.wait_again(self.ready.pop())  # lest those that are ready wait for each other
                self.seen["gave way"] += 1
            if missing > self.cache.free():
                self.seen["blocked"] += 1
                return 0
            self.use(job.request.adapter)
            for _ in range(missing):
                self.cache.take(job)
            self.ready.remove(job)
            self.enter(job, want)
            budget -= want
        return budget

    def enter(self, job: Job, want: int) -> None:
        self.running.append(job)
        self.step.append(Scheduled(job, want, False))
        self.stirred = True

    def turn_comes(self, job: Job, cached: int, now: int) -> None:
        if job.started < 0:
            job.started = now
            job.cached_tokens = cached
        job.prefilled = max(job.prefilled, cached)

    def give_up(self, job: Job, now: int) -> bool:
        """The client does not wait any longer. Whether that ends it at once; if it is in a step, that has to end."""
        if any(entry.job is job for entry in self.step):
            if job not in self.gave_up:
                self.gave_up.append(job)
            return False
        if job in self.waiting:
            self.waiting.remove(job)
        elif job in self.running:  # at a step boundary
            self.running.remove(job)
            self.let_go(job)
        else:
            (self.loading if job in self.loading else self.ready).remove(job)
            self.seen["load cancelled"] += 1
            if self.lower is not None:
                self.lower.end(now, self.on_its_way[job.row])
            self.let_go(job)
            self.settle(now)
        self.end_job(job, "timed_out", now)
        return True

    def end_job(self, job: Job, outcome: str, now: int) -> None:
        job.outcome = outcome
        job.finished = now

    def admit_waiting(self, now: int, budget: int) -> None:
        while self.waiting and len(self.running) + len(self.loading) < self.max_batch_size and budget > 0:
            if self.step and self.step[-1].job.computed + self.step[-1].want < self.step[-1].job.known:
                break  # nobody enters beside an unfinished prefill
            job = self.scheduler.first(self.waiting)
            if self.lower is not None and job is self.refused:
                break
            self.refused = job
            if not self.has_slot(job.request.adapter):
                self.kept_waiting += 1
                break
            hits = self.cache.hits(job)
            below = [] if self.lower is None else self.lower.beyond(job, len(hits), self.cache.size)
            if below:
                if len(below) > self.cache.free() - len([block for block in hits if not block.holders]):
                    self.seen["no room to load"] += 1
                    break
                self.load_blocks(job, hits, below, now)
                continue
            hit_tokens = len(hits) * self.cache.size
            want = min(job.known - hit_tokens, budget)
            if self.scheduler.limit is not None:
                want = min(want, self.scheduler.limit)
            needed = self.cache.ceil(hit_tokens + want) - len(hits)
            if needed > self.cache.free() - len([block for block in hits if not block.holders]):
                break
            self.use(job.request.adapter)
            for block in hits:
                self.cache.hold(job, block)
            for _ in range(needed):
                self.cache.take(job)
            job.computed = hit_tokens
            self.waiting.remove(job)
            self.scheduler.enters(job)
            self.turn_comes(job, hit_tokens, now)
            self.enter(job, want)
            budget -= want

    def in_use(self) -> list[str]:
        return [name for name in self.adapters if any(job.request.adapter == name for job in self.running)]

    def has_slot(self, name: str | None) -> bool:
        if self.slots is None or name is None or name in self.adapters:
            return True
        return len(self.in_use()) < self.slots

    def use(self, name: str | None) -> None:
        """The adapter is the one used last, and loaded in place of the idle one used first where it must be."""
        if self.slots is None or name is None:
            return
        if name in self.adapters:
            self.adapters.remove(name)
        else:
            self.loads += 1
            self.loads_now += 1
            if len(self.adapters) == self.slots:
                self.adapters.remove(next(one for one in self.adapters if one not in self.in_use()))
        self.adapters.append(name)

    def end(self, now: int) -> list[Job]:
        """Close the step; the requests that finished with it."""
        finished = []
        self.busy += now - self.began
        self.steps += 1
        gained = {entry.job.row: self.gain(entry) for entry in self.step}
        for entry in self.step:
            tokens = gained[entry.job.row]
            entry.job.computed += tokens if entry.is_decode else entry.want
        for job in self.gave_up:
            if job.decoding:
                finished.append(self.drop(job, now))
        for entry in self.step:
            job = entry.job
            if job.outcome == "timed_out":
                continue
            fresh = min(job.computed, job.prompt) - job.prefilled
            if fresh > 0:
                job.prefilled += fresh
                self.prefill_tokens += fresh
            if not entry.is_decode:
                self.cache.publish(job, job.computed - entry.want)
            if job in self.gave_up:
                finished.append(self.drop(job, now))
                continue
            if entry.is_decode or job.computed == job.known:
                if not entry.is_decode:
                    self.refused = None
                if not entry.is_decode and self.lower is not None and self.lower.eager:
                    self.cache.copy_down(job)
                    self.stirred = True
                job.token_times += [now] * gained[job.row]
                job.decoding = True
                if job.generated == job.output:
                    self.end_job(job, "completed", now)
                    self.running.remove(job)
                    self.let_go(job)
                    self.scheduler.ends(job)
                    finished.append(job)
        self.step = []
        self.step_ends = -1
        self.gave_up = []
        self.cache.check()
        return finished

    def gain(self, entry: Scheduled) -> int:
        """The tokens that a step brings: the next one, and the drafts that are accepted. More than the request wants
        are dropped."""
        job = entry.job
        if self.speculation is None or not entry.is_decode:
            return 1
        tokens, job.rest = divmod(job.rest + self.speculation.rate, 64)
        self.drafted += self.speculation.tokens
        self.accepted += tokens - 1
        return min(tokens, job.output - job.generated)

    def drop(self, job: Job, now: int) -> Job:
        """It ends with the step that its client did not wait for, without that step's token."""
        self.running.remove(job)
        self.let_go(job)
        self.end_job(job, "timed_out", now)
        return job


@dataclass
class InstanceResult:
    requests: int
    busy: int
    steps: int
    prefill_tokens: int
    evicted_blocks: int
    peak_blocks: int
    loads: int
    kept_waiting: int
    stores: list[Store]
    seen: Counter[str]
    drafted: int
    accepted: int


@dataclass
class ReferenceRun:
    rows: list[Job]
    instances: list[InstanceResult]
    warmup: int

    def gaps(self) -> list[int]:
        """The gaps between successive tokens of one request, over all completed requests that count, sorted. Tokens
        that come in the same step come as one."""
        found = []
        for job in self.rows[self.warmup :]:
            if job.outcome != "completed":
                continue
            for earlier, later in pairwise(dict.fromkeys(job.token_times)):
                found.append(later - earlier)
        return sorted(found)


def route(policy: str | Sequence[int], row: int, inflight: list[int]) -> int:
    if policy == "round-robin":
        return row % len(inflight)
    if policy == "least-loaded":
        return inflight.index(min(inflight))
    assert not isinstance(policy, str), f"the reference has no policy {policy!r}"
    return policy[row]


def open_loop(
    requests: list[RequestTuple],
    adapters: Sequence[str | None] = (),
    patience: Sequence[int | None] = (),
    limits: Sequence[int | None] = (),
) -> OpenLoop:
    """Requests known beforehand, in order of arrival; the row is the position in the list."""
    named = [*adapters, *[None] * (len(requests) - len(adapters))]
    waits = [*patience, *[None] * (len(requests) - len(patience))]
    most = [*limits, *[None] * (len(requests) - len(limits))]
    found = []
    for row, (arrival, path, prompt, output) in enumerate(requests):
        until = waits[row]
        deadline = None if until is None else arrival + until
        request = Request(row, arrival, prompt, path, max_tokens=most[row], adapter=named[row], deadline_ps=deadline)
        found.append(Planned(request, output, hashing.key(hashing.OUTPUT, row)))
    return OpenLoop(iter(found))


def job_of(planned: Planned) -> Job:
    request = planned.request
    assert request.path.tokens == request.prompt_tokens >= 1 and planned.output_tokens >= 1
    figures = (request.prompt_tokens, planned.output_tokens, planned.output_key)
    return Job(request.id, request.arrival_ps, request.path, *figures, request)


def begin_together(ranks: list[Instance], now: int) -> None:
    """Begin the next step of all ranks, once the last one has ended. It takes as long as the slowest rank computes, and
    as long as the slowest loads its adapters. A rank without work takes part, if any has some."""
    if any(rank.step_ends >= 0 for rank in ranks):
        return
    for rank in ranks:
        rank.begin(now)
    working = [rank for rank in ranks if rank.step]
    if not working:
        return
    loading = [rank.loads_now * rank.load for rank in working]
    computing = [rank.step_ends - now - load for rank, load in zip(working, loading, strict=True)]
    for rank in ranks:
        rank.began, rank.step_ends = now, now + max(computing) + max(loading)


def simulate(
    requests: list[RequestTuple],
    instances: int,
    blocks: int,
    block_tokens: int,
    max_batch_tokens: int,
    max_batch_size: int,
    latency: LatencyModel,
    policy: str | Sequence[int] = "round-robin",
    prefix_caching: bool = True,
    horizon: int | None = None,
    warmup: int = 0,
    traffic: Traffic | None = None,
    scheduler: Callable[[], Fcfs] | None = None,
    priority: Callable[[Request], float] = lambda request: 0.0,
    adapters: Sequence[str | None] = (),
    slots: int | None = None,
    load: int = 0,
    tiers: Sequence[DrawnTier] = (),
    offload: str = "lazy",
    offload_level: float = 1.0,
    block_bytes: int = 0,
    patience: Sequence[int | None] = (),
    limits: Sequence[int | None] = (),
    ahead: bool = False,
    speculation: DrawnSpeculation | None = None,
    lockstep: bool = False,
) -> ReferenceRun:
    """Run until everything has drained, or up to and with the horizon. Requests are given beforehand, or by traffic.
    With `lockstep`, the instances are the ranks of one engine."""
    from reference_ahead import AheadInstance  # which builds on the instance above

    if speculation is not None:
        max_batch_size = speculation.sequences(max_batch_size, max_batch_tokens)
        latency = Priced(latency, speculation)
    kind = AheadInstance if ahead else Instance
    sizes = (max_batch_tokens, max_batch_size, latency)
    if scheduler is None:
        scheduler = Fifo if tiers else Fcfs  # without stores below, order of entry is order of arrival
    engines = [
        kind(Cache(blocks, block_tokens, prefix_caching), *sizes, scheduler(), slots, load, speculation)
        for _ in range(instances)
    ]
    stores, links = build(instances, tiers)
    for index, engine in enumerate(engines):
        if tiers:
            keep = int(offload_level * blocks) if offload == "threshold" else blocks
            engine.lower = engine.cache.lower = Lower(index, stores[index], offload, keep, block_bytes)
    traffic = open_loop(requests, adapters, patience, limits) if traffic is None else traffic
    jobs: list[Job] = []
    inflight = [0] * instances
    now = -1
    while True:
        times = [engine.step_ends for engine in engines if engine.step_ends >= 0]
        if traffic.next_ps != NEVER:
            times.append(traffic.next_ps)
        times += [at for at in [link.next() for link in links] if at is not None]
        times += [job.deadline for job in jobs if job.outcome == "in_flight" and job.deadline > now]
        if not times:
            break
        now = min(times)
        if horizon is not None and now > horizon:
            traffic.stop()
            break
        ended: list[Job] = []
        for engine in engines:
            if engine.step_ends == now:
                ended += engine.end(now)
        at_once = True
        while at_once or ended or traffic.next_ps == now:
            at_once = False
            while traffic.next_ps == now:
                job = job_of(traffic.take())
                assert (job.row, job.arrival) == (len(jobs), now)
                jobs.append(job)
                job.priority = priority(job.request)
                job.instance = route(policy, job.row, inflight)
                inflight[job.instance] += 1
                if engines[job.instance].fits(job):
                    engines[job.instance].comes(job, now)
                else:
                    job.outcome = "rejected"
                    job.finished = now
                    ended.append(job)
            for link in links:
                for move in link.arrived(now):
                    move.transfers -= 1
                    if not move.transfers:
                        engines[move.instance].loaded(move, now)
            for job in jobs:
                if job.outcome == "in_flight" and job.deadline == now and engines[job.instance].give_up(job, now):
                    ended.append(job)
            for job in sorted(ended, key=lambda job: job.row):
                inflight[job.instance] -= 1
                traffic.on_ended(job.request, now, job.outcome == "completed")
            ended = []
        if lockstep:
            begin_together(engines, now)
            continue
        for engine in engines:
            if not engine.step:
                engine.begin(now)
    if horizon is None:
        assert all(job.outcome in ("completed", "rejected", "timed_out") for job in jobs)
        assert inflight == [0] * instances and all(engine.cache.held() == 0 for engine in engines)
    results = []
    for index, engine in enumerate(engines):
        routed = len([job for job in jobs if job.instance == index])
        busy = engine.busy
        if engine.step_ends >= 0:  # cut off by the horizon
            assert horizon is not None
            busy += horizon - engine.began
        figures = (engine.steps, engine.prefill_tokens, engine.cache.evicted, engine.peak, engine.loads)
        drafts = (engine.drafted, engine.accepted)
        results.append(InstanceResult(routed, busy, *figures, engine.kept_waiting, stores[index], engine.seen, *drafts))
    return ReferenceRun(jobs, results, warmup)
