"""What the router is told of the instances: the reported fields of their views.

Queue and batch are written by the instances as they change. What varies with time inside a run (KV use, utilisation,
power) is worked out when a decision is about to be taken, and only where the policies say that they read it; else it is
taken off the views, so that nobody reads a value that is not kept true.
"""

from __future__ import annotations

from typing import Any

from headway.registry import declared
from headway.sim.batch import report_kv
from headway.sim.busy import BusyWindow
from headway.sim.instance import Instance
from headway.types import PS_PER_SECOND

BUSY_WINDOW = 5 * PS_PER_SECOND
WATTS_WINDOW = 30 * PS_PER_SECOND


class Signals:
    def __init__(self, instances: list[Instance], policies: list[Any], idle_watts: float, busy_watts: float) -> None:
        wanted = [name for policy in policies for name in declared(policy).reported]
        self.instances = instances
        self.kv = "kv_used" in wanted
        self.power = "busy" in wanted or "watts" in wanted
        self.vary = self.kv or self.power
        self.idle_watts = idle_watts
        self.span_watts = busy_watts - idle_watts
        self.origin = -1  # the first decision
        for instance in instances:
            instance.tells_kv = self.kv
            if self.power:
                instance.windows = (BusyWindow(BUSY_WINDOW), BusyWindow(WATTS_WINDOW))
            if not self.kv:
                del instance.view.kv_used
            if not self.power:
                del instance.view.busy, instance.view.watts

    def refresh(self, now: int) -> None:
        """Make every reported field that is read true at `now`."""
        if self.kv:
            report_kv(self.instances, now)
        if self.power:
            self.refresh_power(now)

    def refresh_power(self, now: int) -> None:
        """Means over the last 5 s (utilisation) and 30 s (power), or since the first decision where that is less."""
        if self.origin < 0:
            self.origin = now
        origin = self.origin
        for instance in self.instances:
            short, long = instance.windows
            view, busy_from = instance.view, instance.busy_from
            view.busy = short.share(origin, now, busy_from)
            view.watts = self.idle_watts + self.span_watts * long.share(origin, now, busy_from)
