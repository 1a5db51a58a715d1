"""Knative's autoscaler: a target concurrency a replica, over a long window or, in a surge, a short one."""

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
    """Keeps the requests in flight and waiting near so many a replica, with a panic mode for surges, as Knative does.

    Wanted are the requests, mean over `stable_window_s`, divided by `target` · `utilization`, rounded up; a target of
    null is the slots of a replica's batch. It is at most `max_scale_up_rate` times those that serve, and at least those
    divided by `max_scale_down_rate`. Where the same over `panic_window_s` wants `panic_threshold` times those that
    serve, or more, it panics: it wants the larger of the two, and never less than it did since the panic began. It ends
    when no check has found that for longer than the stable window. As in Knative it begins in panic where more than one
    replica serves, so that nothing is removed before there is something to go by. Then the most that was wanted in the
    last `scale_down_delay_s` counts. Knative looks every 2 s; with longer intervals a panic is noticed later.
    """

    target: Annotated[float | None, Bounds(0.1, 100_000, log=True)] = None  # requests a replica
    utilization: Share = 0.7
    stable_window_s: Window = 60.0
    panic_window_s: Window = 6.0
    panic_threshold: Annotated[float, Bounds(1.1, 10)] = 2.0
    max_scale_up_rate: Rate = 1000.0
    max_scale_down_rate: Rate = 2.0
    scale_down_delay_s: Seconds = 0.0

    def __post_init__(self) -> None:
        if self.panic_window_s > self.stable_window_s:
            raise HeadwayError(
                f"concurrency: panic_window_s must be at most stable_window_s, got {self.panic_window_s:g} and "
                f"{self.stable_window_s:g}."
            )
        self.windows_s = (self.stable_window_s, self.panic_window_s)
        self.stable_ps = round(self.stable_window_s * PS_PER_SECOND)
        self.recent = RecentTargets(self.scale_down_delay_s)
        self.begun = False
        self.panic_ps: int | None = None  # when a check last found a surge, while it panics
        self.most = 0  # that it wanted since then

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
