"""A pool of equal instances, as an autoscaler sees it: a deployment, or only its prefill or decode instances.

Windows may have any length, because the view stores running totals.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from msgspec import Struct

from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND, REPLICAS, SERVING, STARTING
from headway.views.instance import SIGNALS, InstanceView
from headway.views.signals import derived_signal, exact
from headway.views.window import RunningTotal, Window

REMEMBERED: Final = 1 << 16  # maximum number of samples in the history, which is 22 days of checks every 30 s
NOTHING: Final = -1  # marks a missing time or duration
# Signals of instances that a pool shows as the mean over its serving instances.
MEANS: Final = ("queued", "running", "kv_utilization", "busy")


class LoadSample(Struct, frozen=True, gc=False):
    """The load of a pool between two checks."""

    at_ps: int  # time of the later check
    replicas: int
    rate: float  # requests per second that were sent to the pool between the checks
    concurrency: float  # mean number of requests in flight or waiting for an instance, over the time between the checks
    queued: float  # mean over the serving instances of the number of queued requests, at the later check

    @property
    def at(self) -> float:
        return self.at_ps / PS_PER_SECOND


class PoolMetrics(Struct, frozen=True, omit_defaults=True):
    """The metrics of a pool at a check of the autoscaler. Rates and latencies cover the metrics window."""

    replicas: int
    serving: int
    starting: int
    inflight: int  # number of requests at the pool's instances
    pending: int  # number of requests that wait at the router
    utilization: float  # requests in flight ÷ slots of the serving instances; 0 if none serves
    rate: float  # requests per second
    attainment: dict[str, float] = {}  # fraction of requests that met their SLO, by class
    mean_ttft_s: float | None = None
    p99_ttft_s: float | None = None
    mean_latency_s: float | None = None
    p99_latency_s: float | None = None
    signals: dict[str, float] = {}  # means over the serving instances, of the signals in MEANS that the run maintains


class PoolView:
    """A pool as an autoscaler sees it. The states and the reported signals of its instances are read on demand. All
    other values are counted from the events of all routers.

    Times are in seconds unless the name ends in _ps. A window of `seconds` is (now - seconds, now], but it never begins
    before the start of the observation. A mean over an empty window is None.
    """

    model: str
    role: str
    minimum: int
    maximum: int
    slots: int
    kv_tokens: int
    inflight: Annotated[int, exact("count", "Requests at its instances.")]
    inflight_tokens: Annotated[int, exact("tokens", "Prompt tokens of the requests at its instances.")]
    pending: Annotated[int, exact("count", "Requests that wait at the router.")]
    last_rate: float

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
        self.slots = views[0].max_batch_size if views else 0  # maximum number of requests in the batch of one replica
        self.kv_tokens = views[0].kv_blocks * block_tokens if views else 0  # KV capacity of one replica, in tokens
        self.inflight = 0  # number of requests at the pool's instances
        self.inflight_tokens = 0  # number of prompt tokens of the requests in `inflight`
        self.pending = 0  # number of requests that wait or are delayed at the router, and that this pool could serve
        self.scaled_ps = NOTHING
        # Thresholds of the autoscaler's triggers, and the times since which the load is above `high` or below `low`.
        self.high: float | None = None
        self.low: float | None = None
        self.high_since = NOTHING
        self.low_since = NOTHING
        self.last_rate = 0.0  # requests per second at the autoscaler's last check
        self.start(0, 0, 0)

    def start(self, now_ps: int, window_ps: int, kept_ps: int) -> None:
        """Start observing. Latencies and SLO attainment cover the last `window_ps`. A policy may read windows of at
        most `kept_ps`."""
        self.now_ps = self.start_ps = now_ps
        self.window_ps = window_ps
        self.kept_ps = kept_ps
        self.load = RunningTotal(now_ps, kept_ps, self.inflight + self.pending)
        self.arrivals = RunningTotal(now_ps, kept_ps)
        self.output = RunningTotal(now_ps, kept_ps)
        self.samples: list[LoadSample] = []
        self.sampled = (now_ps, 0, self.load.upto(now_ps))  # time, arrivals and load total of the last sample
        self.classes: dict[str, Window] = {}  # SLO class -> an entry per ended request: 1 if it met its SLO, else 0
        self.firsts = Window(window_ps)  # TTFT of each ended request that has a first token
        self.latencies = Window(window_ps)  # time from arrival to last token of each completed request
        self.recount(now_ps)

    def on_sent(self, now_ps: int, tokens: int) -> None:
        self.arrivals.add(now_ps)
        self.inflight += 1
        self.inflight_tokens += tokens
        self.update_load(now_ps)

    def on_left(self, now_ps: int, tokens: int) -> None:
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
        """Update the counts after an instance has changed its state."""
        self.serving_slots = self.slots * self.serving
        self.room_up = self.replicas < self.maximum
        self.room_down = self.replicas > self.minimum
        self.judge(now_ps)

    def judge(self, now_ps: int) -> None:
        """Update `high_since` and `low_since`: the times since which the load has been above `high` or below `low`."""
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
        """Record an ended request. `first_ps` is the time from its arrival to its first token, and `latency_ps` is the
        time from its arrival to its end. Pass NOTHING for a value that does not exist."""
        if met is not None:
            if slo_class not in self.classes:
                self.classes[slo_class] = Window(self.window_ps)
            self.classes[slo_class].add(now_ps, int(met))
        if first_ps != NOTHING:
            self.firsts.add(now_ps, first_ps)
        if latency_ps != NOTHING:
            self.latencies.add(now_ps, latency_ps)

    def sample(self, now_ps: int) -> None:
        """Add a sample of the load since the last check to the history."""
        since_ps, arrivals, area = self.sampled
        now_area, elapsed = self.load.upto(now_ps), now_ps - since_ps
        if elapsed == 0 and self.samples:
            return  # the history already has a sample at this time
        if len(self.samples) >= REMEMBERED:
            del self.samples[: REMEMBERED // 4]
        rate = (self.arrivals.total - arrivals) * PS_PER_SECOND / elapsed if elapsed else 0.0
        mean = (now_area - area) / elapsed if elapsed else float(self.load.level)
        self.samples.append(LoadSample(now_ps, self.replicas, rate, mean, self.queued))
        self.sampled = (now_ps, self.arrivals.total, now_area)

    @property
    def now(self) -> float:
        return self.now_ps / PS_PER_SECOND

    @property
    def since_scaled(self) -> float | None:
        """Seconds since the number of replicas was last changed; None if it never was."""
        return None if self.scaled_ps == NOTHING else (self.now_ps - self.scaled_ps) / PS_PER_SECOND

    @property
    @derived_signal("exact", "number", steps=3)
    def replicas(self) -> int:
        """Number of replicas that serve, start or are unreachable. Replicas that drain do not count. A scaling decision
        sets this number."""
        return self.count(REPLICAS)

    @property
    @derived_signal("exact", "number", steps=3)
    def serving(self) -> int:
        return self.count(SERVING)

    @property
    @derived_signal("exact", "number", steps=3)
    def starting(self) -> int:
        """Number of replicas that are provisioning or loading."""
        return self.count(STARTING)

    def count(self, states: tuple[str, ...]) -> int:
        return len([view for view in self.views if view.state in states])

    # --- load, counted by the router -----------------------------------------------------------------------------

    def begin(self, seconds: float) -> int:
        """Return the start of a window of `seconds` that ends now, in picoseconds."""
        length_ps = round(seconds * PS_PER_SECOND)
        if not 0 < length_ps <= self.kept_ps:
            raise HeadwayError(
                f"policies.scaling: a window of {seconds:g} s is not available. Use more than 0 s and at most "
                f"{self.kept_ps / PS_PER_SECOND:g} s, the longest window in `windows_s` of the pool's policy."
            )
        return self.now_ps - length_ps

    def concurrency(self, seconds: float) -> float:
        """Return the mean number of requests in flight or pending over the window."""
        since_ps = max(self.begin(seconds), self.start_ps)
        if since_ps == self.now_ps:
            return float(self.load.level)
        return (self.load.upto(self.now_ps) - self.load.upto(since_ps)) / (self.now_ps - since_ps)

    def rate(self, seconds: float) -> float:
        """Return the requests per second that were sent to the pool. Pending requests count when they are sent."""
        return self.per_second(self.arrivals, seconds)

    def output_rate(self, seconds: float) -> float:
        """Return the output tokens per second, of the requests that ended in the window."""
        return self.per_second(self.output, seconds)

    def per_second(self, total: RunningTotal, seconds: float) -> float:
        since_ps = self.begin(seconds)
        elapsed = self.now_ps - max(since_ps, self.start_ps)
        return total.since(since_ps) * PS_PER_SECOND / elapsed if elapsed else 0.0

    @property
    def history(self) -> Sequence[LoadSample]:
        """One sample for each check, the oldest first, including the current one."""
        return self.samples

    def metrics(self) -> PoolMetrics:
        """Return the metrics that the autoscaler sees now."""
        hidden = self.views[0].hidden if self.views else ()
        maintained = [name for name in MEANS if not any(read in hidden for read in SIGNALS[name].reads)]
        window_s = self.window_ps / PS_PER_SECOND
        return PoolMetrics(
            replicas=self.replicas,
            serving=self.serving,
            starting=self.starting,
            inflight=self.inflight,
            pending=self.pending,
            utilization=self.inflight / self.serving_slots if self.serving_slots else 0.0,
            rate=self.rate(window_s) if self.window_ps else 0.0,
            attainment=dict(self.attainment),
            mean_ttft_s=self.mean_ttft,
            p99_ttft_s=self.p99_ttft,
            mean_latency_s=self.mean_latency,
            p99_latency_s=self.p99_latency,
            signals={name: getattr(self, name) for name in maintained},
        )

    # --- latency of the requests sent here that ended within the metrics window ----------------------------------

    @property
    def attainment(self) -> Mapping[str, float]:
        """Fraction of requests that met their SLO, by class. Incomplete requests count as misses. Requests that this
        pool could have served, but that waited too long at the router, also count as misses. The mapping is empty if no
        request has an SLO."""
        now = self.now_ps
        return {name: window.sum(now) / window.count(now) for name, window in self.classes.items() if window.count(now)}

    @property
    @derived_signal("exact", "number", steps=3)
    def mean_ttft(self) -> float | None:
        return self.firsts.mean_seconds(self.now_ps)

    @property
    @derived_signal("exact", "number", steps=200)
    def p99_ttft(self) -> float | None:
        return self.p99(self.firsts.amounts(self.now_ps))

    @property
    @derived_signal("exact", "number", steps=3)
    def mean_latency(self) -> float | None:
        """Mean time in seconds from arrival to the last token."""
        return self.latencies.mean_seconds(self.now_ps)

    @property
    @derived_signal("exact", "number", steps=200)
    def p99_latency(self) -> float | None:
        return self.p99(self.latencies.amounts(self.now_ps))

    def p99(self, values: list[int]) -> float | None:
        """Return the 99th percentile, by linear interpolation at index (n - 1) · 0.99, as in the results."""
        if not values:
            return None
        values.sort()
        place, part = divmod((len(values) - 1) * 99, 100)
        low, high = values[place], values[min(place + 1, len(values) - 1)]
        return (100 * low + part * (high - low)) / (100 * PS_PER_SECOND)

    # --- reported signals, which policies must declare: means over the serving instances, 0 if no instance serves -

    @property
    @derived_signal("reported", "number", "queued")
    def queued(self) -> float:
        return self.mean("queued")

    @property
    @derived_signal("reported", "number", "running")
    def running(self) -> float:
        return self.mean("running")

    @property
    @derived_signal("reported", "number", "kv_used")
    def kv_utilization(self) -> float:
        """Fraction of the KV blocks on GPUs that requests use (`kv_used`)."""
        serving = [view for view in self.views if view.state in SERVING]
        return sum([view.kv_used for view in serving]) / sum([view.kv_blocks for view in serving]) if serving else 0.0

    @property
    @derived_signal("reported", "number", "busy")
    def busy(self) -> float:
        """Fraction of the last 5 s in which the instances had work."""
        return self.mean("busy")

    def mean(self, signal: str) -> float:
        values = [getattr(view, signal) for view in self.views if view.state in SERVING]
        total = 0.0
        for value in values:  # a loop, because the result of `sum` over floats differs between versions of Python
            total += value
        return total / len(values) if values else 0.0
