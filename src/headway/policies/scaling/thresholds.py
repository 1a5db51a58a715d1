"""Autoscalers that add or remove replicas in steps while a signal is above or below a threshold."""

from typing import Annotated, Final

from msgspec import Struct

from headway.errors import HeadwayError
from headway.policies.registry import Bounds, policy
from headway.policies.scaling.replicas import Seconds, Share, at_least_one, scale_to, wake, whole
from headway.types import PS_PER_SECOND, Scale
from headway.views.pool import PoolView

LOAD_S: Final = 60.0  # window of the mean load


@policy("scaling", "static", exact=(), reported=())
class Static:
    """Never changes the number of replicas."""

    windows_s = ()

    def scale(self, pool: PoolView) -> None:
        return None


@policy("scaling", "queue-threshold", exact=("pending",), reported=("queued",))
class QueueThreshold:
    """Adds replicas when the queue has been long for some time, and removes one when it has been short for some time.

    Queue depth is the requests waiting at instances (as reported) and at the router, per replica; starting replicas
    count. If it was above `above` at every check for `sustained_s`, the pool gets `step` more replicas. If it was at
    most `below` for `sustained_down_s`, the pool loses one. Both times restart after a change.
    """

    above: Annotated[float, Bounds(0.1, 10_000, log=True)] = 5.0  # requests per replica
    below: Annotated[float, Bounds(0, 10_000)] = 0.5
    sustained_s: Seconds = 60.0
    sustained_down_s: Seconds = 300.0
    step: Annotated[int, Bounds(1, 1000, log=True)] = 1
    windows_s = ()

    def __post_init__(self) -> None:
        if not self.below < self.above:
            values = f"{self.below:g} and {self.above:g}"
            raise HeadwayError(f"queue-threshold: 'below' must be less than 'above', got {values}.")
        self.long = Lasting(round(self.sustained_s * PS_PER_SECOND))
        self.short = Lasting(round(self.sustained_down_s * PS_PER_SECOND))

    def scale(self, pool: PoolView) -> Scale | None:
        now, replicas = pool.now_ps, pool.replicas
        if not pool.serving:
            self.long.since_ps = self.short.since_ps = None
            return wake(pool)
        depth = (pool.queued * pool.serving + pool.pending) / replicas
        state = f"{depth:.3g} requests wait for each replica"
        long, short = self.long.holds(now, depth > self.above), self.short.holds(now, depth <= self.below)
        if not long and not short:
            return None
        self.long.since_ps = self.short.since_ps = None
        if long:
            return Scale(replicas + self.step, f"{state}, and more than {self.above:g} did for {self.sustained_s:g} s")
        needed = at_least_one(pool, replicas - 1)
        return scale_to(pool, needed, f"{state}, and at most {self.below:g} did for {self.sustained_down_s:g} s")


class Lasting(Struct, eq=False):
    """Detects that a condition was true at all checks for at least `length_ps`."""

    length_ps: int
    since_ps: int | None = None

    def holds(self, now_ps: int, true: bool) -> bool:
        if not true:
            self.since_ps = None
            return False
        if self.since_ps is None:
            self.since_ps = now_ps
        return now_ps - self.since_ps >= self.length_ps


@policy("scaling", "slo-driven", exact=("attainment", "concurrency", "pending"), reported=())
class SloDriven:
    """Adds replicas while too few requests meet their SLO, and removes one while nearly all do and the load is low.

    Attainment is that of the worst class, over the metrics window. Below `target` the pool grows by the share `step` of
    its replicas, at least by one. From `comfort` on, or while no request ends, it shrinks by one if the load per
    remaining replica then is at most `low` × L. L is a replica's slots or, if lower, the load per replica at the last
    SLO miss. Load is requests in flight and waiting, mean over 60 s. After a change, and after replicas have started,
    it does not grow for `cooldown_s` and does not shrink for `cooldown_down_s`, so that old latencies leave the window.
    Without an SLO in the scenario it does nothing.
    """

    target: Share = 0.95
    comfort: Share = 0.99
    low: Share = 0.7
    step: Annotated[float, Bounds(0.01, 4, log=True)] = 0.25
    cooldown_s: Seconds = 60.0
    cooldown_down_s: Seconds = 300.0
    windows_s = (LOAD_S,)

    def __post_init__(self) -> None:
        if self.comfort < self.target:
            values = f"{self.comfort:g} and {self.target:g}"
            raise HeadwayError(f"slo-driven: 'comfort' must be at least 'target', got {values}.")
        self.has_slo = False
        self.missed_at: float | None = None  # load per replica when the autoscaler last reacted to an SLO miss
        self.came_up = float("-inf")  # time of the last check at which replicas were still starting, in seconds

    def scale(self, pool: PoolView) -> Scale | None:
        if not pool.serving:
            return wake(pool)
        attainment = pool.attainment
        self.has_slo = self.has_slo or bool(attainment)
        if not self.has_slo:
            return None
        if pool.starting:
            self.came_up = pool.now
        rested = pool.now - self.came_up
        if pool.since_scaled is not None:
            rested = min(rested, pool.since_scaled)
        load = pool.concurrency(LOAD_S)
        lowest = min(attainment, key=lambda name: attainment[name], default=None)
        if lowest is not None and attainment[lowest] < self.target:
            if rested < self.cooldown_s:
                return None
            self.missed_at = load / pool.serving
            needed = pool.replicas + max(1, whole(self.step * pool.replicas))
            return Scale(needed, f"{attainment[lowest]:.1%} of {lowest} met their SLO, below {self.target:.1%}")
        calm = lowest is None or attainment[lowest] >= self.comfort
        stay = pool.replicas - 1
        if not calm or rested < self.cooldown_down_s or stay < max(pool.minimum, 1 if load else 0):
            return None
        limit = self.low * (pool.slots if self.missed_at is None else min(pool.slots, self.missed_at))
        if load > limit * stay:
            return None
        met = "nothing ended" if lowest is None else f"{attainment[lowest]:.1%} of {lowest} met their SLO"
        return Scale(stay, f"{met}, and {load:.3g} requests are at most {limit:.3g} on each of {stay} replicas")
