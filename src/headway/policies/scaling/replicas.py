"""Replicas as all autoscalers count them: whole numbers, pools where none serves, and the targets of recent checks."""

from math import ceil
from typing import Annotated, Final

from headway.policies.registry import Bounds
from headway.types import PS_PER_SECOND, Scale
from headway.views.pool import PoolView
from headway.views.window import Window

Seconds = Annotated[float, Bounds(0, 86_400)]
Share = Annotated[float, Bounds(0.01, 1)]
MOST: Final = 1e9  # more than any pool has
PLACES: Final = 9  # decimals; what lies above a whole number by less is there by rounding alone


def whole(replicas: float) -> int:
    """Replicas that suffice."""
    return ceil(round(min(replicas, MOST), PLACES))


def at_least_one(pool: PoolView, replicas: int) -> int:
    """A pool with requests keeps one replica, whatever the signals say."""
    return max(replicas, 1) if pool.inflight or pool.pending else replicas


def wake(pool: PoolView) -> Scale | None:
    """Without a serving replica there are no signals: waiting requests get a first replica."""
    if pool.pending and not pool.replicas:
        return Scale(1, f"{pool.pending} requests wait, and there is no replica")
    return None


def scale_to(pool: PoolView, replicas: int, reason: str) -> Scale | None:
    """A decision, where it changes anything."""
    return None if replicas == pool.replicas else Scale(replicas, reason)


class RecentTargets:
    """The replicas that were needed at recent checks; at the first, those that there are."""

    __slots__ = ("begun", "recent")

    def __init__(self, longest_s: float) -> None:
        self.begun = False
        # Replicas at each check. Of equal ones in a row the last stands for all: it leaves a window last.
        self.recent = Window(round(longest_s * PS_PER_SECOND))

    def add(self, pool: PoolView, replicas: int) -> None:
        if not self.begun:
            self.begun = True
            self.recent.add(pool.now_ps, pool.replicas)
        if self.recent.count(pool.now_ps) and self.recent.entries[-1][1] == replicas:
            self.recent.pop()
        self.recent.add(pool.now_ps, replicas)

    def within(self, now_ps: int, seconds: float) -> list[int]:
        """What was needed in (now - seconds, now], and now in any case."""
        start_ps = now_ps - round(seconds * PS_PER_SECOND)
        entries = self.recent.entries
        return [*(replicas for at_ps, replicas in entries if at_ps > start_ps), entries[-1][1]]

    def stabilise(self, pool: PoolView, replicas: int) -> int:
        """What is needed now, but no fewer of the present replicas than were needed at any recent check."""
        self.add(pool, replicas)
        return max(replicas, min(pool.replicas, max(needed for _, needed in self.recent.entries)))
