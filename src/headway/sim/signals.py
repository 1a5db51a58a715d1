"""What the router is told of the instances: the reported fields of their views.

Queue and batch are written by the instances as they change. What varies with time inside a run (KV use, utilisation,
power) is worked out when a decision is about to be taken, and only where the policies say that they read it.
"""

from __future__ import annotations

from typing import Any

from headway.registry import REPORTED, Entry
from headway.sim.batch import report_kv
from headway.sim.busy import BusyWindow
from headway.sim.instance import Instance
from headway.types import PS_PER_SECOND

BUSY_WINDOW = 5 * PS_PER_SECOND
WATTS_WINDOW = 30 * PS_PER_SECOND


def reads(policy: Any) -> tuple[str, ...]:
    """The reported signals that a policy reads; all of them where it does not say."""
    own = getattr(policy, "reads", None)
    if own is not None:
        return tuple(own)
    entry = getattr(policy, "entry", None)
    return entry.reported if isinstance(entry, Entry) else REPORTED


class Signals:
    def __init__(self, instances: list[Instance], policies: list[Any], idle_watts: float, busy_watts: float) -> None:
        wanted = [name for policy in policies for name in reads(policy)]
        self.instances = instances
        self.kv = "kv_used" in wanted
        self.power = "busy" in wanted or "watts" in wanted
        self.vary = self.kv or self.power
        self.idle_watts = idle_watts
        self.span_watts = busy_watts - idle_watts
        self.origin = -1  # the first decision
        if self.power:
            for instance in instances:
                instance.windows = (BusyWindow(BUSY_WINDOW), BusyWindow(WATTS_WINDOW))

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
