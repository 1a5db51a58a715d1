"""The Kubernetes autoscaler: the ratio of a metric to its target, with stabilisation windows and rate limits."""

from collections.abc import Callable
from math import floor
from typing import Annotated, Final, Literal

from msgspec.structs import replace

from headway.policies.registry import Bounds, entry_of, policy
from headway.policies.scaling.capacity import SIGNALS, utilization
from headway.policies.scaling.replicas import RecentTargets, Seconds, at_least_one, scale_to, wake, whole
from headway.types import PS_PER_SECOND, Scale
from headway.views.pool import PoolView
from headway.views.window import Window

SHARE: Final = 0.7  # default target of the utilisation metrics
QUEUE: Final = 5.0  # default target of the metric `queue`, in requests per replica
READS: Final = {  # metric -> (exact signals, reported signals) that it reads
    **{name: ((), (signal,)) for name, signal in SIGNALS.items()},
    "queue": (("pending",), ("queued",)),
    "concurrency": (("concurrency",), ()),
}
Limit = Annotated[int | None, Bounds(1, 1000, log=True)]
Period = Annotated[float, Bounds(1, 1800, log=True)]
Choice = Callable[[list[int]], int]
Select = Literal["max", "min", "disabled"]


@policy("scaling", "hpa", exact=READS["kv"][0], reported=READS["kv"][1])
class Hpa:
    """Scales replicas by the ratio of a metric to its target, as the Kubernetes horizontal pod autoscaler does.

    The pool needs replicas · metric ÷ target, rounded up, unless the ratio is within `tolerance` of 1. The metric is
    the mean over the serving replicas. If the ratio is above 1, starting replicas count with a metric of 0; if it is
    below 1, they do not count. They can make the pool grow less, but cannot make it shrink. `metric` is kv, batch or
    busy (utilisations as in target-utilization; default target 0.7), queue (requests waiting at instances and at the
    router, per replica; default target 5) or concurrency (requests in flight and waiting per replica, mean over
    `window_s`; default target 0.7 of the slots).

    Stabilisation: the pool grows to the lowest need of the last `up_window_s` and shrinks to the highest need of the
    last `down_window_s`. Rate limits: in any `up_period_s` it grows by at most `up_percent` of the replicas or
    `up_pods`, whichever `up_select` chooses (max or min; disabled: it never grows). Shrinking has the same limits. Null
    means no limit. The defaults are those of Kubernetes, which checks every 15 s.
    """

    metric: Literal["kv", "batch", "busy", "queue", "concurrency"] = "kv"
    target: Annotated[float | None, Bounds(0.001, 100_000, log=True)] = None
    tolerance: Annotated[float, Bounds(0.0, 1.0)] = 0.1
    window_s: Annotated[float, Bounds(1, 3600, log=True)] = 60.0
    up_window_s: Seconds = 0.0
    down_window_s: Seconds = 300.0
    up_percent: Limit = 100
    up_pods: Limit = 4
    up_period_s: Period = 15.0
    up_select: Select = "max"
    down_percent: Limit = 100
    down_pods: Limit = None
    down_period_s: Period = 15.0
    down_select: Select = "max"

    def __post_init__(self) -> None:
        exact, reported = READS[self.metric]
        self.entry = replace(entry_of(type(self)), exact=exact, reported=reported)
        self.windows_s = (self.window_s,) if self.metric == "concurrency" else ()
        self.recent = RecentTargets(max(self.up_window_s, self.down_window_s))
        periods = (self.up_period_s, self.down_period_s)
        # the changes of the number of replicas in the last `up_period_s`, and in the last `down_period_s`
        self.changes = [Window(round(period * PS_PER_SECOND)) for period in periods]

    def scale(self, pool: PoolView) -> Scale | None:
        if not pool.serving:
            return wake(pool)
        value, target = self.value(pool), self.aim(pool)
        needed = min(max(at_least_one(pool, self.by_ratio(pool, value / target)), pool.minimum), pool.maximum)
        settled = self.limit_speed(pool, self.stabilise(pool, needed))
        if settled != pool.replicas:
            for window in self.changes:
                window.add(pool.now_ps, settled - pool.replicas)
        state = f"{self.metric} {value:.4g}, target {target:.4g}, on {pool.serving} replicas"
        return scale_to(pool, settled, f"{state}; wanted {needed}")

    def value(self, pool: PoolView) -> float:
        if self.metric == "queue":
            return pool.queued + pool.pending / pool.serving
        if self.metric == "concurrency":
            return pool.concurrency(self.window_s) / pool.serving
        return utilization(pool, self.metric)

    def aim(self, pool: PoolView) -> float:
        if self.target is not None:
            return self.target
        return {"queue": QUEUE, "concurrency": SHARE * pool.slots}.get(self.metric, SHARE)

    def by_ratio(self, pool: PoolView, ratio: float) -> int:
        replicas, serving = pool.replicas, pool.serving
        counted = replicas if ratio > 1 else serving
        ratio = ratio * serving / counted
        if abs(1 - ratio) <= self.tolerance or (counted > serving and ratio < 1):
            return replicas
        return whole(ratio * counted)

    def stabilise(self, pool: PoolView, needed: int) -> int:
        now = pool.now_ps
        self.recent.add(pool, needed)
        least = min(self.recent.within(now, self.up_window_s))
        most = max(self.recent.within(now, self.down_window_s))
        return min(max(pool.replicas, least), most)

    def limit_speed(self, pool: PoolView, target: int) -> int:
        replicas, (up, down) = pool.replicas, (window.sum(pool.now_ps) for window in self.changes)
        if target > replicas:
            before = replicas - up
            limits = [] if self.up_percent is None else [whole(before * (1 + self.up_percent / 100))]
            limits += [] if self.up_pods is None else [before + self.up_pods]
            limit = select_limit(limits, self.up_select, replicas, max, min)
            return target if limit is None else max(replicas, min(target, limit))
        if target < replicas:
            before = replicas - down
            limits = [] if self.down_percent is None else [floor(round(before * (1 - self.down_percent / 100), 9))]
            limits += [] if self.down_pods is None else [before - self.down_pods]
            limit = select_limit(limits, self.down_select, replicas, min, max)
            return target if limit is None else min(replicas, max(target, limit))
        return replicas


def select_limit(limits: list[int], select: str, replicas: int, farthest: Choice, nearest: Choice) -> int | None:
    """Return the number of replicas at which the rate limits stop a change. `select` chooses between the limits: `max`
    allows the largest change, `min` the smallest, `disabled` none. If there is no limit, return None."""
    if select == "disabled":
        return replicas
    if not limits:
        return None
    return farthest(limits) if select == "max" else nearest(limits)
