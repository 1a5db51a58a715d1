"""The decodes of an instance that speculates: each of them generates a constant number of tokens per step, its rate.

A rate is a multiple of 1/64 token. So a decode has a position in units of 1/64 token, which grows by its rate at each
step, and it has generated the whole tokens of its position. The last step may generate more tokens than the request
wants; these tokens are dropped. Decodes of the same rate form a lane.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from fractions import Fraction
from heapq import heappush

from msgspec.structs import replace

from headway.latency.base import Chunk, LatencyModel, Run, StepShape
from headway.latency.joint_steps import Price
from headway.latency.overlap import Overlapped
from headway.latency.verification import UNITS, Verification
from headway.results.recorder import InstanceStats
from headway.sim.batch import Batch
from headway.sim.job import Job
from headway.sim.kv_cache import KvCache
from headway.sim.setup import SpeculationSetup


class Lane:
    """The phases of the decodes of one rate. A decode of phase p needs a new block whenever p + multiples of `period`
    units have passed since the instance's step 0."""

    __slots__ = ("period", "phases", "rate")

    def __init__(self, rate: int, period: int) -> None:
        self.rate = rate
        self.period = period  # units of a block
        self.phases: list[int] = []  # sorted

    def blocks(self, begun: int, steps: int) -> int:
        """Return how many new blocks the decodes need in `steps` steps, of which `begun` steps precede the first."""
        phases, period, rate = self.phases, self.period, self.rate
        laps, rest = divmod(steps * rate, period)
        start = (begun - 1) * rate % period
        end = start + rest
        count = laps * len(phases) - bisect_right(phases, start)
        if end < period:
            return count + bisect_right(phases, end)
        return count + len(phases) + bisect_right(phases, end - period)


class Lanes:
    """The blocks that all decodes need. When a decode begins, its first step also needs blocks for its drafts, which
    the lane does not count; `extra` is the sum of these blocks for the step `extra_at`."""

    __slots__ = ("by_rate", "extra", "extra_at", "period")

    def __init__(self, period: int) -> None:
        self.period = period
        self.by_rate: dict[int, Lane] = {}
        self.extra = 0
        self.extra_at = -1

    def lane(self, rate: int) -> Lane:
        found = self.by_rate.get(rate)
        if found is None:
            found = self.by_rate[rate] = Lane(rate, self.period)
        return found

    def blocks(self, begun: int, steps: int) -> int:
        count = self.extra if begun <= self.extra_at < begun + steps else 0
        for lane in self.by_rate.values():
            if lane.phases:
                count += lane.blocks(begun, steps)
        return count

    def add_extra(self, step: int, blocks: int) -> None:
        if step != self.extra_at:
            self.extra_at = step
            self.extra = 0
        self.extra += blocks

    def copy(self) -> Lanes:
        """Return a copy that does not change when decodes begin or stop."""
        copy = Lanes(self.period)
        copy.extra, copy.extra_at = self.extra, self.extra_at
        for rate, lane in self.by_rate.items():
            if lane.phases:
                copy.lane(rate).phases = lane.phases[:]
        return copy


class SpeculativeBatch(Batch):
    """A batch whose decodes verify drafts. `context` and `growth` are in units of 1/64 token.

    A decode has blocks for its tokens and `ahead` more when a step begins. When it stops, it has the blocks of its
    computed tokens, and the others are released."""

    __slots__ = ("cache", "needs", "rate", "rates", "stats")

    def __init__(self, block_tokens: int, setup: SpeculationSetup, cache: KvCache, stats: InstanceStats) -> None:
        super().__init__(block_tokens)
        self.cache = cache
        self.stats = stats
        stats.decode_steps = 0
        self.width, self.ahead = setup.width, setup.ahead
        self.rates, self.rate = setup.rates, setup.rate
        self.lanes = self.needs = Lanes(block_tokens * UNITS)
        self.block_steps = Fraction(self.needs.period, max([setup.rate, *setup.rates.values()]))

    def start_decoding(self, job: Job) -> None:
        steps = self.steps
        rate = job.rate = self.rates.get(job.request.slo_class, self.rate)
        position = job.generated * UNITS + job.fraction
        job.origin = position - steps * rate
        job.decodes_from = steps
        end = job.ends_at_step = max(steps, -((job.origin - job.output_tokens * UNITS) // rate))
        self.decodes += 1
        self.counted += job.counted
        self.growth += rate
        self.context += job.request.prompt_tokens * UNITS + position
        insort(self.needs.lane(rate).phases, self.phase(job))
        self.needs.add_extra(steps, self.extra_blocks(job))
        if end > steps:
            heappush(self.ending, (end, job.order, job))

    def stop_decoding(self, job: Job) -> None:
        steps, rate, size = self.steps, job.rate, self.block_tokens
        position = job.origin + steps * rate
        surplus = self.held_blocks(job, 0)
        job.generated = self.generated(job)
        job.fraction = position % UNITS
        self.count_drafts(job)
        computed = job.computed = job.request.prompt_tokens + job.generated - 1
        job.blocks = -(-computed // size)
        surplus -= job.blocks
        self.decodes -= 1
        self.counted -= job.counted
        self.growth -= rate
        self.context -= job.request.prompt_tokens * UNITS + position
        phases = self.needs.lane(rate).phases
        del phases[bisect_right(phases, self.phase(job)) - 1]
        if job.decodes_from == steps:
            self.needs.add_extra(steps, -self.extra_blocks(job))
        if surplus:
            self.cache.release([], surplus)

    def count_drafts(self, job: Job) -> None:
        """Count the drafts of a decode that stops. Accepted drafts beyond the request's last token count as well."""
        stats, steps = self.stats, self.steps - job.decodes_from
        start = job.origin + job.decodes_from * job.rate
        stats.decode_steps = (stats.decode_steps or 0) + steps
        stats.drafted_tokens += steps * (self.width - 1)
        stats.accepted_tokens += (start + steps * job.rate) // UNITS - start // UNITS - steps

    def decode_blocks(self, begun: int, steps: int) -> int:
        return self.needs.blocks(begun, steps)

    def next_blocks(self, job: Job) -> int:
        return self.held_blocks(job, 1) - self.held_blocks(job, 0)

    def held_blocks(self, job: Job, begun: int) -> int:
        if not begun and job.decodes_from == self.steps:
            return -(-job.known // self.block_tokens)
        return (self.reserved(job) + (self.steps + begun - 1) * job.rate) // self.needs.period

    def generated(self, job: Job) -> int:
        tokens = (job.origin + self.steps * job.rate) // UNITS
        return tokens if tokens < job.output_tokens else job.output_tokens

    def generated_before(self, job: Job) -> int:
        return (job.origin + (self.steps - 1) * job.rate) // UNITS

    def foresees_end(self, job: Job) -> bool:
        # A step generates at least one token. A prefill generates exactly one.
        return job.decodes_from == self.steps or self.generated_before(job) == job.output_tokens - 1

    def add_wasted(self, contexts: list[int], sign: int) -> None:
        super().add_wasted([context * UNITS for context in contexts], sign)

    def reserved(self, job: Job) -> int:
        """Return the units for which a decode would have blocks at the instance's step 0, rounded so that the number of
        blocks is the number of whole periods in them."""
        tokens = job.request.prompt_tokens + self.ahead + self.block_tokens - 1
        return tokens * UNITS + job.origin

    def phase(self, job: Job) -> int:
        return -self.reserved(job) % self.needs.period

    def extra_blocks(self, job: Job) -> int:
        """Return how many blocks the first step of a decode needs in addition to those that its lane counts."""
        lane = (self.reserved(job) + (job.decodes_from - 1) * job.rate) // self.needs.period
        return lane - -(-job.known // self.block_tokens)


class Prices:
    """The latency model of an instance that speculates. The growth of the context comes from the instance's batch."""

    __slots__ = ("batch", "verification")

    def __init__(self, verification: Verification, batch: Batch) -> None:
        self.verification = verification
        self.batch = batch

    def scale(self, factor: Fraction) -> Prices:
        return Prices(self.verification.scale(factor), self.batch)

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        return self.verification.steps(decodes, context, self.batch.growth, chunks, self.batch.near_context())

    def run_group(self, shapes: Sequence[StepShape], price: Price | None = None, width: int = 1) -> Run:
        ranks = [
            (decodes, context, batch.growth, chunks, batch.near_context())
            for (decodes, context, chunks), batch in zip(shapes, self.batch.peers, strict=True)
        ]
        return self.verification.group(ranks)


def priced(latency: LatencyModel, batch: Batch) -> LatencyModel:
    """Return the latency model with which an instance plans its steps."""
    if isinstance(latency, Verification):
        return Prices(latency, batch)
    if isinstance(latency, Overlapped) and isinstance(latency.gpu, Verification):
        return replace(latency, gpu=Prices(latency.gpu, batch))
    return latency
