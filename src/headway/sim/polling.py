"""Polled signals: the reported values of an instance at past ticks.

Ticks are the multiples of the polling interval. The simulator schedules no event for a tick. Instead, an instance
records its state and the formula of its run of steps before its first change after a tick. A later reader computes the
tick's values from that record, or from the instance if the instance has not changed since the tick. The values of a
tick include the steps that end at that instant, but no other event of the instant.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from headway.scenario.scenario import SignalSpec
from headway.sim.leap import steps_begun
from headway.sim.samples import Samples
from headway.sim.windows import WindowedBatch, WindowedBlocks

if TYPE_CHECKING:
    from headway.sim.instance import Instance


class BoundaryWatcher(Protocol):
    """What an instance calls at each of its step boundaries."""

    def note_boundary(self, instance: Instance) -> None: ...


class KvUse:
    """The KV use of an instance over time, from its allocated blocks and the formula of its run."""

    __slots__ = (
        "chunk",
        "computed",
        "decodes",
        "first",
        "held",
        "increment",
        "lanes",
        "length",
        "own",
        "phases",
        "size",
        "start",
        "steps",
        "taken_steps",
    )

    def __init__(self, instance: Instance) -> None:
        run = instance.run
        self.held = instance.cache.held
        self.length = 0 if run.end < 0 else run.length  # number of steps of the run; 0 between runs
        if self.length:
            batch, blocks = instance.batch, instance.blocks
            self.start = run.start
            self.first = run.first
            self.increment = run.increment
            self.steps = batch.steps
            self.taken_steps = blocks.taken_steps  # number of steps whose blocks are included in `held`
            self.decodes = batch.decodes
            self.size = batch.block_tokens
            self.phases = batch.phases
            self.lanes = batch.lanes
            self.chunk = 0
            if batch.partial is not None and run.length > 1 and not blocks.reserves:
                job, self.chunk = run.chunks[0]
                self.computed = job.computed
                self.own = job.blocks

    def at(self, tick: int) -> int:
        """Return the number of blocks allocated at the tick. Blocks of steps that begin at the tick do not count."""
        if not self.length:
            return self.held
        begun, counted = steps_begun(self.first, self.increment, tick - self.start), self.taken_steps
        if begun > self.length:
            begun = self.length
        if begun == counted:
            return self.held
        low, high = (begun, counted) if begun < counted else (counted, begun)
        size, steps = self.size, high - low
        if self.lanes is not None:
            count = self.lanes.blocks(self.steps + low, steps)
        else:
            phase = (self.steps + low) % size
            count = self.decodes * (steps // size) + sum(self.phases[phase : phase + steps % size])
        used = self.held + count if begun > counted else self.held - count
        if self.chunk:
            used += -(-(self.computed + self.chunk * begun) // size) - self.own
        return used


class WindowedUse(KvUse):
    """The KV use of an instance whose decodes have sliding windows."""

    __slots__ = ("blocks", "frees", "groups", "pages", "trail")

    def __init__(self, instance: Instance, batch: WindowedBatch, blocks: WindowedBlocks, to: int) -> None:
        self.trail = blocks.trail_to(to) if instance.run.end >= 0 and instance.run.length > 1 else []
        super().__init__(instance)
        self.groups = batch.cache.groups
        self.blocks = batch.cache.total
        self.pages = batch.cache.pool.held
        self.frees = batch.frees[:]

    def at(self, tick: int) -> int:
        if not self.length:
            return self.held
        begun, counted = steps_begun(self.first, self.increment, tick - self.start), self.taken_steps
        begun = min(begun, self.length)
        if 0 < begun <= len(self.trail):
            return self.in_blocks(self.trail[begun - 1])
        low, high = min(begun, counted), max(begun, counted)
        size, groups, pages = self.size, self.groups, 0
        for step in range(self.steps + low, self.steps + high):
            pages += groups.spread * self.phases[step % size] - groups.windows * self.frees[step % size]
        return self.in_blocks(self.pages + pages if begun > counted else self.pages - pages)

    def in_blocks(self, pages: int) -> int:
        return self.blocks - (self.groups.pages - pages) // self.groups.spread


def kv_use(instance: Instance, to: int) -> KvUse:
    """Return the KV use of an instance, which is asked for ticks up to `to`."""
    batch, blocks = instance.batch, instance.blocks
    if isinstance(batch, WindowedBatch) and batch.window and isinstance(blocks, WindowedBlocks):
        return WindowedUse(instance, batch, blocks, to)
    return KvUse(instance)


class Moment:
    """The recorded state of an instance, valid for the ticks up to `last`. Until then, the instance only advances in
    its run of steps."""

    def __init__(self, instance: Instance, last: int, kv: bool) -> None:
        self.last = last
        self.queued = instance.view.queued
        self.running = instance.view.running
        self.adapters = instance.view.adapters
        self.busy_from = instance.busy_from
        self.busy_ps = instance.stats.busy_ps  # total duration of the busy periods that have ended
        self.hit_rate = 0.0 if (hits := instance.scheduler.hits) is None else hits.share()
        self.kv: KvUse | None = None  # set if KV use is polled
        if kv:
            self.kv = kv_use(instance, last)
            if self.kv.length:
                self.kv.phases = self.kv.phases[:]  # a copy, because the instance changes its own list
                if self.kv.lanes is not None:
                    self.kv.lanes = self.kv.lanes.copy()


class History:
    """The recorded states (moments) of one instance that a reader may still need."""

    __slots__ = ("interval", "kv", "moments", "oldest")

    def __init__(self, polling: SignalSpec, kv: bool) -> None:
        self.interval = polling.poll_interval_ps
        self.oldest = polling.poll_interval_ps + polling.poll_delay_ps  # maximum age of a tick that is still read
        self.kv = kv
        self.moments: deque[Moment] = deque()

    def record(self, instance: Instance, to: int) -> None:
        """Record the state of the instance before it changes. The record is valid for the ticks up to `to`."""
        moments = self.moments
        while moments and moments[0].last <= to - self.oldest:
            moments.popleft()
        last = to // self.interval * self.interval
        moments.append(Moment(instance, last, self.kv))
        instance.tick = last + self.interval

    def at(self, instance: Instance, tick: int) -> Moment:
        """Return the instance's state at a tick. Calls must be in order of ticks."""
        moments = self.moments
        while moments:
            if moments[0].last >= tick:
                return moments[0]
            moments.popleft()
        return Moment(instance, tick, self.kv)


class Gauge(History):
    """Samples of an instance's KV use over time. Before the instance changes, the gauge computes the due samples from
    the formula of the run of steps, so that samples need no scheduled events. The gauge takes the place of the
    instance's `history`. If signals are polled, the gauge also calls the history that it replaced."""

    __slots__ = ("due", "polled", "polled_tick", "samples")

    def __init__(self, instance: Instance, origin: int) -> None:
        self.polled = instance.history
        self.polled_tick = instance.tick
        self.samples = Samples(origin)
        self.due = origin  # when the next sample is due
        instance.history = self
        instance.tick = min(origin, self.polled_tick)

    def record(self, instance: Instance, to: int) -> None:
        if self.polled is not None and to >= self.polled_tick:
            self.polled.record(instance, to)
            self.polled_tick = instance.tick
        if to >= self.due:
            self.due = self.samples.through(to, kv_use(instance, to).at)
        instance.tick = min(self.due, self.polled_tick)
