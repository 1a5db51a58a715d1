"""Helpers of all autoscalers: rounding, pools without a serving replica, and the needs of recent checks."""

from math import ceil
from typing import Annotated, Final

from headway.policies.registry import Bounds
from headway.types import PS_PER_SECOND, Scale
from headway.views.pool import PoolView
from headway.views.window import Window

Seconds = Annotated[float, Bounds(0, 86_400)]
Share = Annotated[float, Bounds(0.01, 1)]
MOST: Final = 1e9  # more than any pool has
PLACES: Final = 9  # decimals; a smaller excess over an integer is a rounding error


def whole(replicas: float) -> int:
    """Round up to a number of replicas."""
    return ceil(round(min(replicas, MOST), PLACES))


def at_least_one(pool: PoolView, replicas: int) -> int:
    """Return at least 1 for a pool that has requests."""
    return max(replicas, 1) if pool.inflight or pool.pending else replicas


def wake(pool: PoolView) -> Scale | None:
    """Decide for a pool without a serving replica, which has no signals: start one if requests wait."""
    if pool.pending and not pool.replicas:
        return Scale(1, f"{pool.pending} requests wait, and there is no replica")
    return None


def scale_to(pool: PoolView, replicas: int, reason: str) -> Scale | None:
    """Return a decision, or None if it changes nothing."""
    return None if replicas == pool.replicas else Scale(replicas, reason)


class RecentTargets:
    """The replicas that were needed at recent checks, and those that existed before the first one."""

    def __init__(self, longest_s: float) -> None:
        # Of equal values in a row only the last is kept, since it leaves the window last.
        self.recent = Window(round(longest_s * PS_PER_SECOND))

    def add(self, pool: PoolView, replicas: int) -> None:
        if not self.recent.entries:
            self.recent.add(pool.now_ps, pool.replicas)
        if self.recent.count(pool.now_ps) and self.recent.entries[-1][1] == replicas:
            self.recent.pop()
        self.recent.add(pool.now_ps, replicas)

    def within(self, now_ps: int, seconds: float) -> list[int]:
        """Return the needs in (now - seconds, now], and always that of now."""
        start_ps = now_ps - round(seconds * PS_PER_SECOND)
        entries = self.recent.entries
        return [*(replicas for at_ps, replicas in entries if at_ps > start_ps), entries[-1][1]]

    def stabilise(self, pool: PoolView, replicas: int) -> int:
        """Return the replicas needed now; remove none that was needed at a recent check."""
        self.add(pool, replicas)
        return max(replicas, min(pool.replicas, max(needed for _, needed in self.recent.entries)))
