"""Knative's autoscaler: it keeps a target concurrency per replica, measured over a long window, or over a short window
during a surge."""

from math import floor
from typing import Annotated

from headway.errors import HeadwayError
from headway.policies.registry import Bounds, policy
from headway.policies.scaling.replicas import RecentTargets, Seconds, Share, at_least_one, scale_to, whole
from headway.types import PS_PER_SECOND, Scale
from headway.views.pool import PoolView

Window = Annotated[float, Bounds(1, 3600, log=True)]
Rate = Annotated[float, Bounds(1.01, 1000, log=True)]


@policy("scaling", "concurrency", exact=("concurrency",), reported=())
class Concurrency:
    """Keeps the concurrency per replica near a target, with a panic mode for surges, as Knative does.

    Concurrency is requests in flight and waiting. The pool needs the mean over `stable_window_s` ÷ (`target` ·
    `utilization`), rounded up; if `target` is null, it is a replica's batch slots. The need is at most
    `max_scale_up_rate` times the serving replicas, and at least the serving replicas ÷ `max_scale_down_rate`.

    If the need over `panic_window_s` is `panic_threshold` times the serving replicas or more, panic begins: the higher
    need counts, and it never falls during the panic. Panic ends when no check found a surge for longer than the stable
    window. As in Knative, a pool with more than one serving replica starts in panic, so that it removes none before
    there is data. Of the needs in the last `scale_down_delay_s`, the highest counts. Knative checks every 2 s; a longer
    interval detects a surge later.
    """

    target: Annotated[float | None, Bounds(0.1, 100_000, log=True)] = None  # requests per replica
    utilization: Share = 0.7
    stable_window_s: Window = 60.0
    panic_window_s: Window = 6.0
    panic_threshold: Annotated[float, Bounds(1.1, 10)] = 2.0
    max_scale_up_rate: Rate = 1000.0
    max_scale_down_rate: Rate = 2.0
    scale_down_delay_s: Seconds = 0.0

    def __post_init__(self) -> None:
        if self.panic_window_s > self.stable_window_s:
            values = f"{self.panic_window_s:g} and {self.stable_window_s:g}"
            raise HeadwayError(f"concurrency: panic_window_s must be at most stable_window_s, got {values}.")
        self.windows_s = (self.stable_window_s, self.panic_window_s)
        self.stable_ps = round(self.stable_window_s * PS_PER_SECOND)
        self.recent = RecentTargets(self.scale_down_delay_s)
        self.begun = False
        self.panic_ps: int | None = None  # time at which a check last found a surge; None outside panic
        self.most = 0  # maximum number of replicas needed since the panic began

    def scale(self, pool: PoolView) -> Scale | None:
        now, ready = pool.now_ps, max(1, pool.serving)
        if not self.begun:
            self.begun = True
            if pool.serving > 1:
                self.panic_ps, self.most = now, pool.serving
        each = self.utilization * (pool.slots if self.target is None else self.target)
        stable, surge = pool.concurrency(self.stable_window_s), pool.concurrency(self.panic_window_s)
        most, least = whole(self.max_scale_up_rate * ready), floor(ready / self.max_scale_down_rate)
        surging = whole(surge / each)
        needed = min(max(whole(stable / each), least), most)
        if surging / ready >= self.panic_threshold:
            self.panic_ps = now
        elif self.panic_ps is not None and now > self.panic_ps + self.stable_ps:
            self.panic_ps, self.most = None, 0
        mode = "stable"
        if self.panic_ps is not None:
            mode = "panic"
            self.most = needed = max(needed, min(max(surging, least), most), self.most)
        self.recent.add(pool, at_least_one(pool, needed))
        needed = max(self.recent.within(now, self.scale_down_delay_s))
        state = f"{stable:.4g} requests over {self.stable_window_s:g} s, {surge:.4g} over {self.panic_window_s:g} s"
        return scale_to(pool, needed, f"{mode}: {state}, {each:.4g} a replica")
