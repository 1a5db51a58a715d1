"""Filters, which drop candidates before scoring, and pickers, which choose a candidate by the scores.

`keep(request, candidates, cluster)` returns the remaining candidates in their order. `weighted` ignores a filter that
would drop every candidate. `pick(candidates, totals, cluster)` returns the index of a candidate in the list.
"""

from bisect import bisect_right
from itertools import accumulate
from typing import Annotated

from headway.policies.context import Candidates, Context
from headway.policies.registry import Bounds, policy
from headway.streams import stream
from headway.types import Request
from headway.views.cluster import ClusterView


@policy("filter", "kv-below", reported=("kv_used",))
class KvBelow:
    """Drops instances with more than `threshold` of their KV blocks in use, as reported."""

    threshold: Annotated[float, Bounds(0.0, 1.0)] = 0.9

    def keep(self, request: Request, candidates: Candidates, cluster: ClusterView) -> Candidates:
        threshold = self.threshold
        return [view for view in candidates if view.kv_used / view.kv_blocks <= threshold]


@policy("filter", "load-below", reported=("queued", "running"))
class LoadBelow:
    """Drops instances with an effective load above `max_load`.

    The effective load is the reported queue and batch, plus the requests routed since that report. With
    `effective_load: outstanding`, the requests that ended since the report are subtracted.
    """

    max_load: Annotated[int, Bounds(0, 100_000)] = 128

    def keep(self, request: Request, candidates: Candidates, cluster: ClusterView) -> Candidates:
        limit = self.max_load
        return [view for view in candidates if view.effective_load <= limit]


@policy("filter", "load-spread", exact=("inflight",), reported=())
class LoadSpread:
    """Keeps only the least loaded instances if the load is out of balance: highest - lowest > `absolute` and highest >
    `relative` x lowest. Load is the exact count of requests in flight. SGLang's cache-aware router has this rule."""

    absolute: Annotated[int, Bounds(0, 100_000)] = 64
    relative: Annotated[float, Bounds(1.0, 1000.0)] = 1.5

    def keep(self, request: Request, candidates: Candidates, cluster: ClusterView) -> Candidates:
        loads = [view.inflight for view in candidates]
        low, high = min(loads), max(loads)
        if high - low > self.absolute and high > self.relative * low:
            return [view for view in candidates if view.inflight == low]
        return candidates


# If the ratio of two totals is at least this, they count as equal, because rounding errors depend on the order of sums.
ALMOST = 1.0 - 1e-12


def highest(totals: list[float]) -> int:
    """Return the index of the highest total. Of equal totals, return the first. Totals are not negative."""
    most = max(totals)
    first = totals.index(most)
    floor = most * ALMOST
    if first and max(totals[:first]) >= floor:
        return next(at for at, total in enumerate(totals) if total >= floor)
    return first


@policy("picker", "max-score", reported=())
class MaxScore:
    """Picks the candidate with the highest total; ties: lowest index."""

    def pick(self, candidates: Candidates, totals: list[float], cluster: ClusterView) -> int:
        return highest(totals)


@policy("picker", "weighted-random", reported=())
class WeightedRandom:
    """Picks a candidate at random, with probability in proportion to its total; uniform if all totals are 0. If `seed`
    is given, its random stream does not depend on the run's seed."""

    seed: int | None = None

    def bind(self, context: Context) -> None:
        self._rng = context.rng("picker") if self.seed is None else stream(self.seed, "picker")

    def pick(self, candidates: Candidates, totals: list[float], cluster: ClusterView) -> int:
        draw = self._rng.random()
        steps = list(accumulate(totals))
        if steps[-1] <= 0.0:
            return int(draw * len(totals))
        # If the product rounds up to the sum, pick the last candidate with a positive total.
        return min(bisect_right(steps, draw * steps[-1]), steps.index(steps[-1]))
