"""What pollers have seen: the reported values of an instance as of a tick that has passed.

Nothing is scheduled per tick. Before an instance changes for the first time after a tick, it writes down what it was,
with the formula of its run; whoever looks later works the tick's values out from that, or, where nothing has changed
since, from the instance itself. A tick sees what is there after the steps that end at its instant, before all else.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headway.scenario.scenario import SignalSpec
from headway.sim.leap import steps_begun
from headway.sim.samples import Samples
from headway.types import NEVER

if TYPE_CHECKING:
    from headway.sim.instance import Instance


class Moment:
    """An instance as it was, for the ticks up to `last`: until then only its run went on."""

    __slots__ = (
        "adapters",
        "busy_from",
        "busy_ps",
        "chunk",
        "computed",
        "decodes",
        "first",
        "held",
        "hit_rate",
        "increment",
        "last",
        "length",
        "own",
        "phases",
        "queued",
        "running",
        "size",
        "start",
        "steps",
        "taken_steps",
    )

    def __init__(self, instance: Instance, last: int, kv: bool) -> None:
        self.last = last
        self.queued = instance.view.queued
        self.running = instance.view.running
        self.adapters = instance.view.adapters
        self.busy_from = instance.busy_from
        self.busy_ps = instance.stats.busy_ps  # in the busy times that had ended
        self.held = instance.cache.held
        self.hit_rate = 0.0 if (hits := instance.scheduler.hits) is None else hits.share()
        self.length = 0  # steps of the run; 0 between runs
        if kv and instance.run.end >= 0:
            self.copy_run(instance)

    def copy_run(self, instance: Instance) -> None:
        run, batch, blocks = instance.run, instance.batch, instance.blocks
        self.length = run.length
        self.start = run.start
        self.first = run.first
        self.increment = run.increment
        self.steps = batch.steps
        self.taken_steps = blocks.taken_steps  # steps whose blocks are in `held`
        self.decodes = batch.decodes
        self.size = batch.block_tokens
        self.phases = batch.phases[:]
        self.chunk = 0
        if batch.partial is not None and run.length > 1 and not blocks.reserves:
            job, self.chunk = run.chunks[0]
            self.computed = job.computed
            self.own = job.blocks

    def kv_used(self, tick: int) -> int:
        """Blocks held at the tick, before any step that begins then."""
        if not self.length:
            return self.held
        begun, counted = steps_begun(self.first, self.increment, tick - self.start), self.taken_steps
        if begun > self.length:
            begun = self.length
        if begun == counted:
            return self.held
        low, high = (begun, counted) if begun < counted else (counted, begun)
        size, steps = self.size, high - low
        phase = (self.steps + low) % size
        count = self.decodes * (steps // size) + sum(self.phases[phase : phase + steps % size])
        used = self.held + count if begun > counted else self.held - count
        if self.chunk:
            used += -(-(self.computed + self.chunk * begun) // size) - self.own
        return used


class History:
    """One instance's moments that a poller may still ask for."""

    __slots__ = ("interval", "kv", "moments", "oldest")

    def __init__(self, polling: SignalSpec, kv: bool) -> None:
        self.interval = polling.poll_interval_ps
        self.oldest = polling.poll_interval_ps + polling.poll_delay_ps  # nobody asks for a tick that is so long ago
        self.kv = kv
        self.moments: deque[Moment] = deque()

    def record(self, instance: Instance, to: int) -> None:
        """The instance is about to change; the ticks up to `to` see it as it is."""
        moments = self.moments
        while moments and moments[0].last <= to - self.oldest:
            moments.popleft()
        last = to // self.interval * self.interval
        moments.append(Moment(instance, last, self.kv))
        instance.tick = last + self.interval

    def at(self, instance: Instance, tick: int) -> Moment:
        """The instance as a tick saw it. Ticks are asked for in order."""
        moments = self.moments
        while moments:
            if moments[0].last >= tick:
                return moments[0]
            moments.popleft()
        return Moment(instance, tick, self.kv)


class Gauge(History):
    """How full the GPU of an instance is over time, without anything scheduled for it: samples are worked out from the
    formula of the run that they fall into, before the instance changes. It takes the place of the instance's history,
    which goes on behind it where the signals are polled."""

    __slots__ = ("polled", "polled_tick", "samples")

    def __init__(self, instance: Instance, origin: int) -> None:
        self.polled = instance.history if instance.tick < NEVER else None
        self.polled_tick = instance.tick
        self.samples = Samples(origin)
        instance.history = self
        instance.tick = min(origin, self.polled_tick)

    def record(self, instance: Instance, to: int) -> None:
        if self.polled is not None and to >= self.polled_tick:
            self.polled.record(instance, to)
            self.polled_tick = instance.tick
        at = self.samples.through(to, Moment(instance, to, True).kv_used)
        instance.tick = at if at < self.polled_tick else self.polled_tick
