"""Helpers for all autoscalers: rounding, pools without a serving replica, and the replicas needed at recent checks."""

from math import ceil
from typing import Annotated, Final

from headway.policies.registry import Bounds
from headway.types import PS_PER_SECOND, Scale
from headway.views.pool import PoolView
from headway.views.window import Window

Seconds = Annotated[float, Bounds(0, 86_400)]
Share = Annotated[float, Bounds(0.01, 1)]
MOST: Final = 1e9  # a number of replicas that is above the size of any pool
PLACES: Final = 9  # number of decimal places; a smaller excess over an integer is a rounding error


def whole(replicas: float) -> int:
    """Round up to a number of replicas."""
    return ceil(round(min(replicas, MOST), PLACES))


def at_least_one(pool: PoolView, replicas: int) -> int:
    """Return `replicas`, but at least 1 if the pool has requests."""
    return max(replicas, 1) if pool.inflight or pool.pending else replicas


def wake(pool: PoolView) -> Scale | None:
    """Return the decision for a pool without a serving replica: start one replica if requests wait and none is
    starting. Otherwise return None. Such a pool needs its own rule, because it reports no signals."""
    if pool.pending and not pool.replicas:
        return Scale(1, f"{pool.pending} requests wait, and there is no replica")
    return None


def scale_to(pool: PoolView, replicas: int, reason: str) -> Scale | None:
    """Return the decision to scale the pool to this number of replicas. If the pool has this number already, return
    None."""
    return None if replicas == pool.replicas else Scale(replicas, reason)


class RecentTargets:
    """The numbers of replicas needed at recent checks. The first entry is the number of replicas before the first
    check."""

    def __init__(self, longest_s: float) -> None:
        # If consecutive values are equal, only the last one is kept, because it leaves the window last.
        self.recent = Window(round(longest_s * PS_PER_SECOND))

    def add(self, pool: PoolView, replicas: int) -> None:
        if not self.recent.entries:
            self.recent.add(pool.now_ps, pool.replicas)
        if self.recent.count(pool.now_ps) and self.recent.entries[-1][1] == replicas:
            self.recent.pop()
        self.recent.add(pool.now_ps, replicas)

    def within(self, now_ps: int, seconds: float) -> list[int]:
        """Return the numbers of replicas needed in (now - seconds, now], always including the latest number."""
        start_ps = now_ps - round(seconds * PS_PER_SECOND)
        entries = self.recent.entries
        return [*(replicas for at_ps, replicas in entries if at_ps > start_ps), entries[-1][1]]

    def stabilise(self, pool: PoolView, replicas: int) -> int:
        """Record the number of replicas needed now, and return the number to scale to. A pool does not shrink below the
        highest number needed at the recent checks."""
        self.add(pool, replicas)
        return max(replicas, min(pool.replicas, max(needed for _, needed in self.recent.entries)))
