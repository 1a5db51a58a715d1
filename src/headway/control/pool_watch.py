"""Keeps what an autoscaler sees of a pool true: a `PoolView` fed with what happens to the requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from headway.control.load_log import Level, Tally
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND, REPLICAS, SERVING, STARTING
from headway.views.instance import InstanceView
from headway.views.pool import LoadSample

REMEMBERED: Final = 1 << 16  # samples of the history: 22 days of checks every 30 s
NOTHING: Final = -1  # instead of an instant or a duration

# When it ended; its class; 1 if it met its SLO, 0 if not, NOTHING where it has none; time to its first token; latency.
Ended = tuple[int, str, int, int, int]


class PoolWatch:
    """A `PoolView` of the instances in `views`, of which `state` and what they report are read when asked for. The rest
    is counted from what it is told, so that it holds with several routers as well."""

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
        self.role = role
        self.minimum = minimum
        self.maximum = maximum
        self.views = tuple(views)
        self.slots = views[0].max_batch_size if views else 0
        self.kv_tokens = views[0].kv_blocks * block_tokens if views else 0
        self.inflight = 0
        self.inflight_tokens = 0
        self.pending = 0
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
        self.ended: deque[Ended] = deque()
        self.classes: dict[str, list[int]] = {}  # of those: how many met their SLO, how many had one
        self.firsts = [0, 0]  # how many of them had a first token, and the sum of the times to it
        self.latencies = [0, 0]  # how many completed, and the sum
        self.recount(now_ps)

    # --- what happens ------------------------------------------------------------------------------------------

    def came(self, now_ps: int, tokens: int) -> None:
        """A request was sent to one of its instances."""
        self.arrivals.add(now_ps)
        self.inflight += 1
        self.inflight_tokens += tokens
        self.moved(now_ps)

    def left(self, now_ps: int, tokens: int) -> None:
        """A request is no longer there."""
        self.inflight -= 1
        self.inflight_tokens -= tokens
        self.moved(now_ps)

    def set_pending(self, now_ps: int, count: int) -> None:
        if count != self.pending:
            self.pending = count
            self.moved(now_ps)

    def moved(self, now_ps: int) -> None:
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
        taken, slots = self.inflight, self.serving_slots
        if self.high is None or taken <= self.high * slots:
            self.high_since = NOTHING
        elif self.high_since == NOTHING:
            self.high_since = now_ps
        if self.low is None or taken >= self.low * slots:
            self.low_since = NOTHING
        elif self.low_since == NOTHING:
            self.low_since = now_ps

    def finished(self, now_ps: int, slo_class: str, met: bool | None, first_ps: int, latency_ps: int) -> None:
        """A request that came here has ended: the time to its first token and its latency, or NOTHING."""
        self.forget(now_ps)
        kept = NOTHING if met is None else int(met)
        self.ended.append((now_ps, slo_class, kept, first_ps, latency_ps))
        self.weigh(slo_class, kept, first_ps, latency_ps, 1)

    def forget(self, now_ps: int) -> None:
        """Drop what has left the metrics window."""
        ended, gone = self.ended, now_ps - self.window_ps
        while ended and ended[0][0] <= gone:
            _, slo_class, met, first_ps, latency_ps = ended.popleft()
            self.weigh(slo_class, met, first_ps, latency_ps, -1)

    def weigh(self, slo_class: str, met: int, first_ps: int, latency_ps: int, sign: int) -> None:
        if met != NOTHING:
            counts = self.classes.get(slo_class)
            if counts is None:
                counts = self.classes[slo_class] = [0, 0]
            counts[0] += sign * met
            counts[1] += sign
        if first_ps != NOTHING:
            self.firsts[0] += sign
            self.firsts[1] += sign * first_ps
        if latency_ps != NOTHING:
            self.latencies[0] += sign
            self.latencies[1] += sign * latency_ps

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
        return None if self.scaled_ps == NOTHING else (self.now_ps - self.scaled_ps) / PS_PER_SECOND

    @property
    def replicas(self) -> int:
        return self.count(REPLICAS)

    @property
    def serving(self) -> int:
        return self.count(SERVING)

    @property
    def starting(self) -> int:
        return self.count(STARTING)

    def count(self, states: tuple[str, ...]) -> int:
        return len([view for view in self.views if view.state in states])

    # --- load --------------------------------------------------------------------------------------------------

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
        since_ps = max(self.begin(seconds), self.start_ps)
        if since_ps == self.now_ps:
            return float(self.load.level)
        return (self.load.upto(self.now_ps) - self.load.upto(since_ps)) / (self.now_ps - since_ps)

    def rate(self, seconds: float) -> float:
        return self.per_second(self.arrivals, seconds)

    def output_rate(self, seconds: float) -> float:
        return self.per_second(self.output, seconds)

    def per_second(self, tally: Tally, seconds: float) -> float:
        since_ps = self.begin(seconds)
        elapsed = self.now_ps - max(since_ps, self.start_ps)
        return tally.since(since_ps) * PS_PER_SECOND / elapsed if elapsed else 0.0

    @property
    def history(self) -> Sequence[LoadSample]:
        return self.samples

    # --- latency -----------------------------------------------------------------------------------------------

    @property
    def attainment(self) -> Mapping[str, float]:
        self.forget(self.now_ps)
        return {name: met / count for name, (met, count) in self.classes.items() if count}

    @property
    def mean_ttft(self) -> float | None:
        return self.mean(self.firsts)

    @property
    def p99_ttft(self) -> float | None:
        self.forget(self.now_ps)
        return self.p99([one[3] for one in self.ended if one[3] != NOTHING])

    @property
    def mean_latency(self) -> float | None:
        return self.mean(self.latencies)

    @property
    def p99_latency(self) -> float | None:
        self.forget(self.now_ps)
        return self.p99([one[4] for one in self.ended if one[4] != NOTHING])

    def mean(self, counted: list[int]) -> float | None:
        self.forget(self.now_ps)
        count, total = counted
        return total / (count * PS_PER_SECOND) if count else None

    def p99(self, values: list[int]) -> float | None:
        """As the results have it: at (n - 1) · 0.99 of the sorted values, linearly between the two next to it."""
        if not values:
            return None
        values.sort()
        place, part = divmod((len(values) - 1) * 99, 100)
        low, high = values[place], values[min(place + 1, len(values) - 1)]
        return (100 * low + part * (high - low)) / (100 * PS_PER_SECOND)

    # --- reported ----------------------------------------------------------------------------------------------

    @property
    def queued(self) -> float:
        return self.share([view.queued for view in self.views if view.state in SERVING])

    @property
    def running(self) -> float:
        return self.share([view.running for view in self.views if view.state in SERVING])

    @property
    def kv_utilization(self) -> float:
        there = [view for view in self.views if view.state in SERVING]
        return sum([view.kv_used for view in there]) / sum([view.kv_blocks for view in there]) if there else 0.0

    @property
    def busy(self) -> float:
        found, total = [view.busy for view in self.views if view.state in SERVING], 0.0
        for value in found:
            total += value
        return total / len(found) if found else 0.0

    def share(self, values: list[int]) -> float:
        return sum(values) / len(values) if values else 0.0
