"""Statistics of a canary: results of its requests and of the other requests, their difference, and the verdict.

The two sides are the canary and the live policies. The results of each side are counted for each second. Consecutive
seconds are joined to a period in which both sides have a few requests. The results of the two sides in such a period
are a pair. Each pair gives one difference of the mean TTFT and one of the error rate: the canary's value minus the live
value. Both sides of a pair are measured at the same time, so changes of load cancel out.
"""

from __future__ import annotations

from collections import Counter, deque
from math import sqrt
from typing import Final

from headway.gateway.observing.gateway_metrics import bucket
from headway.results.statistics import Interval, mean_of
from headway.types import PS_PER_SECOND, Json

SIDES: Final = ("live", "canary")
WINDOW_S: Final = 60  # number of seconds that the verdict covers
Z: Final = 3.0  # half-width of the confidence intervals in standard errors; large, because the test is repeated
LEAST: Final = 5  # a pair closes when each side has at least this many requests
MOST_PAIRS: Final = 500
SHARE: Final = 0.9  # quantile of TTFT to compare


class SideTally:
    """Counts of the requests of one side that ended in a period."""

    def __init__(self) -> None:
        self.ended = self.errors = self.missed = 0
        self.first = self.sum_ps = 0  # number of requests with a first token, and sum of their TTFT in ps
        self.counts: Counter[int] = Counter()  # number of requests with a first token, by bucket of their TTFT

    def add(self, ttft_ps: int, error: bool, missed: bool) -> None:
        self.ended += 1
        self.errors += error
        self.missed += missed
        if ttft_ps >= 0:
            self.first += 1
            self.sum_ps += ttft_ps
            self.counts[bucket(ttft_ps)] += 1

    def join(self, other: SideTally) -> None:
        for name in ("ended", "errors", "missed", "first", "sum_ps"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.counts.update(other.counts)

    @property
    def mean_s(self) -> float | None:
        return self.sum_ps / self.first / PS_PER_SECOND if self.first else None

    def quantile_ps(self) -> int:
        below = 0
        for at in sorted(self.counts):
            below += self.counts[at]
            if below >= SHARE * self.first:
                return (at & 15 | 16) << max(0, (at >> 4) - 5)
        return 0

    def above(self, limit_ps: int) -> int:
        least = bucket(limit_ps)
        return sum(count for at, count in self.counts.items() if at > least)


class Trial:
    def __init__(self, slo_ps: int | None) -> None:
        self.slo_ps = slo_ps
        self.total = {side: SideTally() for side in SIDES}
        # For each pair: difference of mean TTFT (None if a side has no first token), and difference of error rate.
        self.pairs: deque[tuple[float | None, float]] = deque(maxlen=MOST_PAIRS)
        self._seconds: deque[tuple[int, dict[str, SideTally]]] = deque(maxlen=WINDOW_S)
        self._pair = {side: SideTally() for side in SIDES}

    def record_end(self, side: str, now_ps: int, ttft_ps: int, error: bool) -> None:
        missed = error or (self.slo_ps is not None and ttft_ps > self.slo_ps)
        number = now_ps // PS_PER_SECOND
        if not self._seconds or self._seconds[-1][0] != number:
            self._close()
            self._seconds.append((number, {name: SideTally() for name in SIDES}))
        self._seconds[-1][1][side].add(ttft_ps, error, missed)
        self.total[side].add(ttft_ps, error, missed)

    def _close(self) -> None:
        """Add the results of the last second to the current pair. If both sides have enough requests, close the
        pair."""
        if not self._seconds:
            return
        for side, tally in self._pair.items():
            tally.join(self._seconds[-1][1][side])
        live, canary = (self._pair[side] for side in SIDES)
        if min(live.ended, canary.ended) < LEAST:
            return
        errors = canary.errors / canary.ended - live.errors / live.ended
        ours, theirs = canary.mean_s, live.mean_s
        self.pairs.append((None if ours is None or theirs is None else ours - theirs, errors))
        self._pair = {side: SideTally() for side in SIDES}

    def recent(self, now_ps: int) -> dict[str, SideTally]:
        sums = {side: SideTally() for side in SIDES}
        for number, tallies in self._seconds:
            if number > now_ps // PS_PER_SECOND - WINDOW_S:
                for side, tally in tallies.items():
                    sums[side].join(tally)
        return sums

    def difference(self, figure: int = 0) -> Interval | None:
        """Return the canary's mean minus the live mean, of TTFT in seconds (`figure` 0) or of the error rate (1)."""
        values = [value for pair in self.pairs if (value := pair[figure]) is not None]
        return mean_of(values) if values else None

    # --- verdict -----------------------------------------------------------------------------------------------------

    def verdict(self, rule: Json, now_ps: int, waiting: dict[str, list[int]]) -> str | None:
        """If the canary must end by this rule, return the reason; otherwise None. `waiting` has the ages of requests
        without a first token, by side, so that requests at an engine that never answers count too."""
        sides = self.recent(now_ps)
        live, canary = (sides[side] for side in SIDES)
        if rule["metric"] == "ttft_p90":
            return self._slower(rule, live, canary, waiting)
        name = "errors" if rule["metric"] == "error_rate" else "missed"
        late: dict[str, int] = dict.fromkeys(SIDES, 0)
        if name == "missed" and self.slo_ps is not None:
            late = {side: sum(age > self.slo_ps for age in waiting[side]) for side in SIDES}
        bad = {side: getattr(sides[side], name) + late[side] for side in SIDES}
        of = {side: sides[side].ended + late[side] for side in SIDES}
        if min(of.values()) < rule["min_requests"]:
            return None
        apart, least = more_often(bad["canary"], of["canary"], bad["live"], of["live"])
        if apart <= rule["worse_by"] or least <= 0:
            return None
        what = "failed" if name == "errors" else "missed the SLO"
        return (
            f"{bad['canary'] / of['canary']:.1%} of its {of['canary']} requests {what}, but only "
            f"{bad['live'] / of['live']:.1%} of the others"
        )

    def _slower(self, rule: Json, live: SideTally, canary: SideTally, waiting: dict[str, list[int]]) -> str | None:
        limit_ps = round(live.quantile_ps() * (1 + rule["worse_by"]))
        late = sum(age > limit_ps for age in waiting["canary"])
        of = canary.first + late
        if min(live.first, of) < rule["min_requests"]:
            return None
        above = canary.above(limit_ps) + late
        if wilson(above, of)[0] <= 1 - SHARE:
            return None
        return (
            f"{above / of:.1%} of its {of} first tokens took longer than {limit_ps / PS_PER_SECOND:.3g} s, which is "
            f"{rule['worse_by']:.0%} above the p90 of the others"
        )


def wilson(count: int, of: int) -> tuple[float, float]:
    """Return the Wilson score interval of the fraction `count / of`."""
    share, square = count / of, Z * Z / of
    middle = (share + square / 2) / (1 + square)
    half = Z * sqrt(share * (1 - share) / of + square / of / 4) / (1 + square)
    return middle - half, middle + half


def more_often(count: int, of: int, other: int, of_other: int) -> tuple[float, float]:
    """Return the difference of two fractions, and the lower bound of its Newcombe interval."""
    share, base = count / of, other / of_other
    apart = share - base
    return apart, apart - sqrt((share - wilson(count, of)[0]) ** 2 + (wilson(other, of_other)[1] - base) ** 2)
