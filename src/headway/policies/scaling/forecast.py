"""An autoscaler that forecasts the load at the time when new replicas will be ready."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import fsum
from operator import attrgetter
from typing import Annotated, Final, Literal

from headway.policies.registry import Bounds, policy
from headway.policies.scaling.replicas import RecentTargets, Seconds, Share, at_least_one, scale_to, whole
from headway.types import PS_PER_SECOND, Scale
from headway.views.pool import LoadSample, PoolView

Span = Annotated[float, Bounds(1, 604_800, log=True)]
at: Final = attrgetter("at_ps")
SHORTEST_STAY_S: Final = 1e-12  # one picosecond, the resolution of the clock


@policy("scaling", "predictive", exact=("history", "pending"), reported=())
class Predictive:
    """Forecasts the request rate one lead time ahead, from its trend or its season, and scales for that.

    The expected rate is the higher of the rates now and `lead_s` ahead, by the least-squares line through the checks of
    the last `trend_s`. Set `lead_s` to the time that a replica takes to start. With `forecast: seasonal` and enough
    history, the rate is `blend` × the highest rate at the same phase one `period_s` ago + (1 − `blend`) × the trend.

    The pool needs the expected rate ÷ the rate that a replica sustains. That rate is `target` × `rate_per_replica`. If
    `rate_per_replica` is null, the rate is learnt by Little's law: a request stays for the mean concurrency ÷ the rate
    of the last `trend_s`, so a replica sustains `target` × `concurrency` (null: its slots) ÷ stay. The pool shrinks to
    the highest need of the last `scale_down_delay_s`.
    """

    forecast: Literal["trend", "seasonal"] = "trend"
    lead_s: Span = 180.0
    trend_s: Span = 600.0
    period_s: Span = 86_400.0
    blend: Annotated[float, Bounds(0.0, 1.0)] = 0.5
    rate_per_replica: Annotated[float | None, Bounds(0.001, 100_000, log=True)] = None  # requests per second
    concurrency: Annotated[float | None, Bounds(0.1, 100_000, log=True)] = None  # number of requests per replica
    target: Share = 0.7
    scale_down_delay_s: Seconds = 300.0
    windows_s = ()

    def __post_init__(self) -> None:
        self.recent = RecentTargets(self.scale_down_delay_s)
        self.stay: float | None = None  # latest estimate of the seconds that a request stays in the pool

    def scale(self, pool: PoolView) -> Scale | None:
        recent = since(pool.history, pool.now_ps - ps(self.trend_s))
        rate = self.expected_rate(pool, recent)
        holds = self.replica_rate(pool, recent)
        needed = whole(rate / holds) if holds else pool.replicas
        needed = self.recent.stabilise(pool, at_least_one(pool, needed))
        forecast = f"{rate:.4g} requests a second expected within {self.lead_s:g} s"
        return scale_to(pool, needed, f"{forecast}, {holds or 0:.4g} a replica")

    def expected_rate(self, pool: PoolView, recent: Sequence[LoadSample]) -> float:
        now, lead = pool.now_ps, ps(self.lead_s)
        rate = max(trend(recent, now), trend(recent, now + lead))
        if self.forecast == "seasonal":
            then = now - ps(self.period_s)
            history = pool.history
            first = bisect_right(history, then, key=at)
            last = bisect_right(history, then + lead, key=at)
            if first and first < len(history):  # the history covers the time one period ago
                season = max(sample.rate for sample in history[first : last + 1])
                return self.blend * season + (1 - self.blend) * rate
        return rate

    def replica_rate(self, pool: PoolView, recent: Sequence[LoadSample]) -> float | None:
        """Return the requests per second that a replica sustains. If nothing is known yet, return None."""
        if self.rate_per_replica is not None:
            return self.target * self.rate_per_replica
        spans = [((new.at_ps - old.at_ps) / PS_PER_SECOND, new) for old, new in pairwise(recent)]
        requests = fsum([sample.rate * span for span, sample in spans])
        request_seconds = fsum([sample.concurrency * span for span, sample in spans])
        if requests > 0 and request_seconds / requests >= SHORTEST_STAY_S:
            self.stay = request_seconds / requests
        if self.stay is None:
            return None
        return self.target * (pool.slots if self.concurrency is None else self.concurrency) / self.stay


def ps(seconds: float) -> int:
    return round(seconds * PS_PER_SECOND)


def since(history: Sequence[LoadSample], start_ps: int) -> Sequence[LoadSample]:
    """Return the samples after `start_ps`, and the last sample at or before it."""
    return history[max(0, bisect_right(history, start_ps, key=at) - 1) :]


def trend(samples: Sequence[LoadSample], at_ps: int) -> float:
    """Return the rate at time `at_ps` on the least-squares line through the samples, at least 0."""
    if not samples:
        return 0.0
    last = samples[-1].at_ps
    times = [(sample.at_ps - last) / PS_PER_SECOND for sample in samples]
    count = len(samples)
    middle = fsum(times) / count
    level = fsum([sample.rate for sample in samples]) / count
    spread = fsum([(time - middle) * (time - middle) for time in times])
    if spread == 0:
        return level
    slope = fsum([(time - middle) * sample.rate for time, sample in zip(times, samples, strict=True)]) / spread
    return max(0.0, level + slope * ((at_ps - last) / PS_PER_SECOND - middle))
