"""How full the GPU of an instance is over time, as samples on a grid, without anything scheduled for them: they are
worked out from the formula of the run that they fall into, before the instance changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.sim.polling import History, Moment
from headway.sim.samples import Samples
from headway.types import NEVER

if TYPE_CHECKING:
    from headway.sim.stepping import Stepping


class Gauge(History):
    """Takes the place of an instance's history, which goes on behind it where the signals are polled."""

    __slots__ = ("polled", "polled_tick", "samples")

    def __init__(self, instance: Stepping, origin: int) -> None:
        self.polled = instance.history if instance.tick < NEVER else None
        self.polled_tick = instance.tick
        self.samples = Samples(origin)
        instance.history = self
        instance.tick = min(origin, self.polled_tick)

    def record(self, instance: Stepping, to: int) -> None:
        if self.polled is not None and to >= self.polled_tick:
            self.polled.record(instance, to)
            self.polled_tick = instance.tick
        at = self.samples.through(to, Moment(instance, to, True).kv_used)
        instance.tick = at if at < self.polled_tick else self.polled_tick
