"""A pool of equal instances, the unit of scaling, as an autoscaler sees it: a deployment, or one half of it where
prompts are computed apart.

For windows of any length there are logs: the running total at every instant at which it changed. A window is the
difference of two totals, found by bisection. Old entries are dropped by halves: an entry costs O(1) amortised.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND, REPLICAS, SERVING, STARTING
from headway.views.instance import InstanceView
from headway.views.window import Window

REMEMBERED: Final = 1 << 16  # samples of the history: 22 days of checks every 30 s
NOTHING: Final = -1  # instead of an instant or a duration
SPARE: Final = 64  # entries that are kept in any case
# Signals of instances that a pool shows as the mean over those that serve.
MEANS: Final = ("queued", "running", "kv_utilization", "busy")


class LoadSample(Struct, frozen=True, gc=False):
    """What was seen of a pool from one check to the next."""

    at_ps: int  # of the later one
    replicas: int
    rate: float  # requests a second
    concurrency: float  # requests in flight or waiting for an instance, mean over the time
    queued: float  # requests that wait at an instance, mean over those that serve, at the check


class Tally:
    """How much came."""

    __slots__ = ("full", "kept_ps", "times", "total", "totals")

    def __init__(self, start_ps: int, kept_ps: int) -> None:
        self.kept_ps = kept_ps
        self.total = 0
        self.times = [start_ps - 1]
        self.totals = [0]  # up to and including that instant
        self.full = SPARE

    def add(self, now_ps: int, amount: int = 1) -> None:
        self.total += amount
        if self.times[-1] == now_ps:
            self.totals[-1] = self.total
            return
        if len(self.times) >= self.full:
            old = bisect_right(self.times, now_ps - self.kept_ps) - 1  # the last that a window may begin with
            if old > 0:
                del self.times[:old], self.totals[:old]
            self.full = 2 * len(self.times) + SPARE
        self.times.append(now_ps)
        self.totals.append(self.total)

    def since(self, start_ps: int) -> int:
        """The amount that came after an instant."""
        return self.total - self.totals[max(0, bisect_right(self.times, start_ps) - 1)]


class Level:
    """A count that goes up and down, and the area below it: 3 for 2 s is 6 count-seconds."""

    __slots__ = ("area", "areas", "full", "kept_ps", "level", "levels", "times")

    def __init__(self, start_ps: int, kept_ps: int, level: int = 0) -> None:
        self.kept_ps = kept_ps
        self.level = level
        self.area = 0  # up to the last entry, in count-picoseconds
        self.times = [start_ps]
        self.areas = [0]
        self.levels = [level]  # from that instant on
        self.full = SPARE

    def set(self, now_ps: int, level: int) -> None:
        last_ps = self.times[-1]
        if last_ps == now_ps:
            self.level = self.levels[-1] = level
            return
        self.area += self.level * (now_ps - last_ps)
        self.level = level
        if len(self.times) >= self.full:
            old = bisect_right(self.times, now_ps - self.kept_ps) - 1
            if old > 0:
                del self.times[:old], self.areas[:old], self.levels[:old]
            self.full = 2 * len(self.times) + SPARE
        self.times.append(now_ps)
        self.areas.append(self.area)
        self.levels.append(level)

    def upto(self, at_ps: int) -> int:
        """The area up to an instant that is not before the oldest window's start."""
        place = max(0, bisect_right(self.times, at_ps) - 1)
        return self.areas[place] + self.levels[place] * (at_ps - self.times[place])


class PoolView:
    """A pool as an autoscaler sees it. State and reports of its instances are read on demand; the rest is counted from
    events, so that it holds with several routers as well.

    Times are in seconds unless their names say otherwise. A window of `seconds` at `now` is (now - seconds, now], or
    since the start if that is later. A mean over an empty window is None.
    """

    def __init__(
        self,
        id: str,
        model: str,
        role: str,
        minimum: int,
        maximum: int,
        views: Sequence[InstanceView],
        *,
        block_tokens: int,
    ) -> None:
        self.id = id
        self.model = model
        self.role = role  # both, prefill or decode
        self.minimum = minimum
        self.maximum = maximum
        self.views = tuple(views)
        self.slots = views[0].max_batch_size if views else 0  # requests that a replica can run at a time
        self.kv_tokens = views[0].kv_blocks * block_tokens if views else 0  # that the GPU of a replica can hold
        self.inflight = 0  # requests at its instances now
        self.inflight_tokens = 0  # their prompt tokens
        self.pending = 0  # requests that wait at the router for an instance of this pool, or of another one
        self.scaled_ps = NOTHING
        # what triggers go by, each time something changes
        self.high: float | None = None
        self.low: float | None = None
        self.high_since = NOTHING
        self.low_since = NOTHING
        self.last_rate = 0.0  # at the last check
        self.start(0, 0, 0)

    def start(self, now_ps: int, window_ps: int, kept_ps: int) -> None:
        """Watching begins: latencies are shown over `window_ps`, and no window is longer than `kept_ps`."""
        self.now_ps = self.start_ps = now_ps
        self.window_ps = window_ps
        self.kept_ps = kept_ps
        self.load = Level(now_ps, kept_ps, self.inflight + self.pending)
        self.arrivals = Tally(now_ps, kept_ps)
        self.output = Tally(now_ps, kept_ps)
        self.samples: list[LoadSample] = []
        self.sampled = (now_ps, 0, 0)  # when, and the arrivals and the area of the load by then
        self.classes: dict[str, Window] = {}  # of requests that ended, by class: 1 for each that met its SLO, 0 if not
        self.firsts = Window(window_ps)  # of those: times to the first token
        self.latencies = Window(window_ps)  # and to the end
        self.recount(now_ps)

    # --- what happens ------------------------------------------------------------------------------------------

    def on_sent(self, now_ps: int, tokens: int) -> None:
        """A request was sent to one of its instances."""
        self.arrivals.add(now_ps)
        self.inflight += 1
        self.inflight_tokens += tokens
        self.update_load(now_ps)

    def on_left(self, now_ps: int, tokens: int) -> None:
        """A request is no longer there."""
        self.inflight -= 1
        self.inflight_tokens -= tokens
        self.update_load(now_ps)

    def set_pending(self, now_ps: int, count: int) -> None:
        if count != self.pending:
            self.pending = count
            self.update_load(now_ps)

    def update_load(self, now_ps: int) -> None:
        self.load.set(now_ps, self.inflight + self.pending)
        if self.high is not None or self.low is not None:
            self.judge(now_ps)

    def recount(self, now_ps: int) -> None:
        """The instances' states have changed."""
        self.serving_slots = self.slots * self.serving
        self.room_up = self.replicas < self.maximum
        self.room_down = self.replicas > self.minimum
        self.judge(now_ps)

    def judge(self, now_ps: int) -> None:
        """Since when more, or less, of the slots are taken than the triggers want to hear of."""
        inflight, slots = self.inflight, self.serving_slots
        if self.high is None or inflight <= self.high * slots:
            self.high_since = NOTHING
        elif self.high_since == NOTHING:
            self.high_since = now_ps
        if self.low is None or inflight >= self.low * slots:
            self.low_since = NOTHING
        elif self.low_since == NOTHING:
            self.low_since = now_ps

    def on_finished(self, now_ps: int, slo_class: str, met: bool | None, first_ps: int, latency_ps: int) -> None:
        """A request that came here has ended: the time to its first token and its latency, or NOTHING."""
        if met is not None:
            if slo_class not in self.classes:
                self.classes[slo_class] = Window(self.window_ps)
            self.classes[slo_class].add(now_ps, int(met))
        if first_ps != NOTHING:
            self.firsts.add(now_ps, first_ps)
        if latency_ps != NOTHING:
            self.latencies.add(now_ps, latency_ps)

    def sample(self, now_ps: int) -> None:
        """A check: what was seen since the last one becomes history."""
        since_ps, arrivals, area = self.sampled
        now_area, elapsed = self.load.upto(now_ps), now_ps - since_ps
        if elapsed == 0 and self.samples:
            return  # one of this instant is there
        if len(self.samples) >= REMEMBERED:
            del self.samples[: REMEMBERED // 4]
        rate = (self.arrivals.total - arrivals) * PS_PER_SECOND / elapsed if elapsed else 0.0
        mean = (now_area - area) / elapsed if elapsed else float(self.load.level)
        self.samples.append(LoadSample(now_ps, self.replicas, rate, mean, self.queued))
        self.sampled = (now_ps, self.arrivals.total, now_area)

    # --- replicas ----------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.now_ps / PS_PER_SECOND

    @property
    def since_scaled(self) -> float | None:
        """Since the number of replicas was last changed; None if it never was."""
        return None if self.scaled_ps == NOTHING else (self.now_ps - self.scaled_ps) / PS_PER_SECOND

    @property
    def replicas(self) -> int:
        """Those that exist or are on their way, and not draining: what a decision is about."""
        return self.count(REPLICAS)

    @property
    def serving(self) -> int:
        """Those of them that requests go to."""
        return self.count(SERVING)

    @property
    def starting(self) -> int:
        """Those of them that are provisioning or loading."""
        return self.count(STARTING)

    def count(self, states: tuple[str, ...]) -> int:
        return len([view for view in self.views if view.state in states])

    # --- load, as the router has counted it ----------------------------------------------------------------------

    def begin(self, seconds: float) -> int:
        """When a window that ends now begins, be that before the start."""
        length_ps = round(seconds * PS_PER_SECOND)
        if not 0 < length_ps <= self.kept_ps:
            raise HeadwayError(
                f"policies.scaling: a window must be longer than 0 s and at most as long as the longest in `windows_s` "
                f"of the pool's policy, here {self.kept_ps / PS_PER_SECOND:g} s, got {seconds:g} s."
            )
        return self.now_ps - length_ps

    def concurrency(self, seconds: float) -> float:
        """Requests in flight and pending, mean over the window."""
        since_ps = max(self.begin(seconds), self.start_ps)
        if since_ps == self.now_ps:
            return float(self.load.level)
        return (self.load.upto(self.now_ps) - self.load.upto(since_ps)) / (self.now_ps - since_ps)

    def rate(self, seconds: float) -> float:
        """Requests that came to the pool, a second over the window; pending ones count when they are sent."""
        return self.per_second(self.arrivals, seconds)

    def output_rate(self, seconds: float) -> float:
        """Output tokens of the requests that ended, a second over the window."""
        return self.per_second(self.output, seconds)

    def per_second(self, tally: Tally, seconds: float) -> float:
        since_ps = self.begin(seconds)
        elapsed = self.now_ps - max(since_ps, self.start_ps)
        return tally.since(since_ps) * PS_PER_SECOND / elapsed if elapsed else 0.0

    @property
    def history(self) -> Sequence[LoadSample]:
        """One sample a check, the oldest first, the last one of this check."""
        return self.samples

    # --- latency of the requests that were sent here and ended within the metrics window -------------------------

    @property
    def attainment(self) -> Mapping[str, float]:
        """Share of those that met their SLO, by class; those that did not complete have not, nor those that waited too
        long at the router and could have come here. Empty without an SLO."""
        now = self.now_ps
        return {name: window.sum(now) / window.count(now) for name, window in self.classes.items() if window.count(now)}

    @property
    def mean_ttft(self) -> float | None:
        return self.firsts.mean_seconds(self.now_ps)

    @property
    def p99_ttft(self) -> float | None:
        return self.p99(self.firsts.amounts(self.now_ps))

    @property
    def mean_latency(self) -> float | None:
        """From arrival to the last token."""
        return self.latencies.mean_seconds(self.now_ps)

    @property
    def p99_latency(self) -> float | None:
        return self.p99(self.latencies.amounts(self.now_ps))

    def p99(self, values: list[int]) -> float | None:
        """The 99th percentile as the results have it, by linear interpolation at (n - 1) · 0.99."""
        if not values:
            return None
        values.sort()
        place, part = divmod((len(values) - 1) * 99, 100)
        low, high = values[place], values[min(place + 1, len(values) - 1)]
        return (100 * low + part * (high - low)) / (100 * PS_PER_SECOND)

    # --- reported by those that serve: mean over them, 0 if there are none; a policy declares what it reads ------

    @property
    def queued(self) -> float:
        """Requests that wait at an instance."""
        return self.share([view.queued for view in self.views if view.state in SERVING])

    @property
    def running(self) -> float:
        return self.share([view.running for view in self.views if view.state in SERVING])

    @property
    def kv_utilization(self) -> float:
        """Share of the GPU's blocks that requests hold (`kv_used`)."""
        there = [view for view in self.views if view.state in SERVING]
        return sum([view.kv_used for view in there]) / sum([view.kv_blocks for view in there]) if there else 0.0

    @property
    def busy(self) -> float:
        """Share of the last 5 s in which an instance computed (`busy`)."""
        values, total = [view.busy for view in self.views if view.state in SERVING], 0.0
        for value in values:
            total += value
        return total / len(values) if values else 0.0

    def share(self, values: list[int]) -> float:
        return sum(values) / len(values) if values else 0.0
