"""The cluster as a policy sees it at one decision: instances, tenants and totals of this router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headway.types import NO_PRIORITY, PS_PER_SECOND, Estimate, Priority
from headway.views.instance import InstanceView, undeclared_signal
from headway.views.signals import derived_signal
from headway.views.window import WINDOW_PS, LongWindow, Window

SHORT_PS: Final = PS_PER_SECOND
BURST_FACTOR: Final = 2
BURST_LEAST: Final = 5  # minimum number of requests in the last second for a burst; fewer requests may be chance
# Records of the past that a router keeps only if a policy of the run declares them.
KEPT: Final = ("tenants", "totals", "recent", "windows")
# The exact signal of a policy that reads the expected output length of a request, here or on a scheduler's ticket.
EXPECTED: Final = "expected_tokens"


class ClusterView:
    """The cluster at one decision. `tenants` and `totals` are available only if a policy declares them, or if a policy
    omits its declaration of signals."""

    __slots__ = ("_estimate", "_tenants", "_totals", "explain", "group", "instances", "now_ps", "priority")

    group: int
    instances: tuple[InstanceView, ...]
    priority: Priority

    def __init__(self, instances: Sequence[InstanceView]) -> None:
        self.instances = tuple(instances)  # the instances that can serve this request, in order of index
        self.group = 0  # index of the group of instances that serve the request's model
        self.now_ps = 0
        self.priority = NO_PRIORITY  # priority of the current request
        self.explain = False  # whether policies should return routes with scorecards
        self._estimate: Estimate | None = None  # of the current request; None: no estimator runs
        self._tenants: Mapping[str, TenantView] | None = None
        self._totals: Totals | None = None

    @property
    def now(self) -> float:
        return self.now_ps / PS_PER_SECOND

    @property
    def estimate(self) -> Estimate:
        """The expected output length of the current request, with its stated error."""
        if self._estimate is None:
            raise undeclared_signal("'cluster.estimate'", EXPECTED)
        return self._estimate

    @property
    @derived_signal("exact", "tokens", EXPECTED)
    def expected_tokens(self) -> int:
        """Output tokens that the current request is expected to generate."""
        return self.estimate.tokens

    @property
    @derived_signal("exact", "share", EXPECTED)
    def expected_error(self) -> float | None:
        """The error of `expected_tokens` that the estimator states, as a fraction; None if it states none."""
        return self.estimate.error

    @property
    @derived_signal("exact", "number", "tenants")
    def tenants(self) -> Mapping[str, TenantView]:
        if self._tenants is None:
            raise undeclared_signal("'cluster.tenants'", "tenants")
        return self._tenants

    @property
    @derived_signal("exact", "number", "totals")
    def totals(self) -> Totals:
        if self._totals is None:
            raise undeclared_signal("'cluster.totals'", "totals")
        return self._totals

    def keep(self, tenants: Mapping[str, TenantView] | None, totals: Totals | None) -> None:
        """Set the tenants and totals that policies can read. If no policy declares the tenants, pass None for
        `tenants`, so that reading them raises an error. The same applies to `totals`."""
        self._tenants = tenants
        self._totals = totals


def is_burst(short: int, long: int, age_ps: int) -> bool:
    """Return whether a tenant sends a burst. `short` and `long` are the numbers of its requests in the last second and
    in the last 10 s; `age_ps` is the time since its first request."""
    if short < BURST_LEAST:
        return False
    span_ps = max(SHORT_PS, min(WINDOW_PS, age_ps))
    return short * span_ps > BURST_FACTOR * long * SHORT_PS


def _long_window(window: LongWindow | None, subject: str) -> LongWindow:
    if window is None:
        raise undeclared_signal(f"'{subject}'", "windows")
    return window


class TenantView:
    """One tenant, as this router has seen it so far."""

    __slots__ = ("_arrivals", "_cluster", "_first_ps", "_long", "_short", "active", "requests", "slo_class")

    active: int
    requests: int
    slo_class: str

    def __init__(self, cluster: ClusterView, first_ps: int = 0, slo_class: str = "") -> None:
        self._cluster = cluster
        self._first_ps = first_ps
        self._long = Window(WINDOW_PS)
        self._short = Window(SHORT_PS)
        self._arrivals: LongWindow | None = None  # None: no policy reads windows of any length
        self.requests = 0  # number of requests that have arrived, including the current one
        self.active = 0  # number of admitted requests that have not ended, in the router's queue or at an instance
        self.slo_class = slo_class  # SLO class of the tenant's latest request

    def on_arrival(self, now_ps: int, slo_class: str) -> None:
        self.requests += 1
        self.slo_class = slo_class
        self._long.add(now_ps)
        self._short.add(now_ps)
        if self._arrivals is not None:
            self._arrivals.add(now_ps)

    @property
    def rate(self) -> float:
        """Requests per second in (now - 10 s, now]."""
        return self._long.per_second(self._cluster.now_ps)

    def rate_over(self, seconds: float) -> float:
        """Return the requests per second in (now - `seconds`, now]; `seconds` is at most 600."""
        return _long_window(self._arrivals, "TenantView.rate_over").per_second(self._cluster.now_ps, seconds)

    @property
    @derived_signal("exact", "number", steps=2)
    def burst(self) -> bool:
        """Whether at least 5 requests arrived in the last second, at more than twice the tenant's mean rate over the
        last 10 s. If the tenant's first request is less than 10 s old, the mean rate is measured since that request."""
        now_ps = self._cluster.now_ps
        short = self._short.sum(now_ps)
        return short >= BURST_LEAST and is_burst(short, self._long.sum(now_ps), now_ps - self._first_ps)

    def __repr__(self) -> str:
        return f"Tenant(requests={self.requests}, active={self.active}, rate={self.rate:g}, burst={self.burst})"


class Totals:
    """The totals of this router so far."""

    __slots__ = ("_arrivals", "_cluster", "_long", "_tokens", "inflight", "queued")

    inflight: int
    queued: int

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._arrivals = Window(WINDOW_PS)
        self._tokens = Window(WINDOW_PS)
        # Arrivals and output tokens in windows of any length; None if no policy reads them.
        self._long: tuple[LongWindow, LongWindow] | None = None
        self.inflight = 0  # number of requests sent to an instance that have not ended
        self.queued = 0  # number of requests in the router's queue

    def on_arrival(self, now_ps: int) -> None:
        self._arrivals.add(now_ps)
        if self._long is not None:
            self._long[0].add(now_ps)

    def on_finished(self, now_ps: int, output_tokens: int) -> None:
        self.inflight -= 1
        self._tokens.add(now_ps, output_tokens)
        if self._long is not None:
            self._long[1].add(now_ps, output_tokens)

    @property
    def rate(self) -> float:
        """Requests per second in (now - 10 s, now]."""
        return self._arrivals.per_second(self._cluster.now_ps)

    @property
    @derived_signal("exact", "rate", steps=2)
    def throughput(self) -> float:
        """Output tokens per second, of the requests that ended in (now - 10 s, now]."""
        return self._tokens.per_second(self._cluster.now_ps)

    def rate_over(self, seconds: float) -> float:
        """Return the requests per second in (now - `seconds`, now]; `seconds` is at most 600."""
        arrivals = None if self._long is None else self._long[0]
        return _long_window(arrivals, "Totals.rate_over").per_second(self._cluster.now_ps, seconds)

    def throughput_over(self, seconds: float) -> float:
        """Return the output tokens per second, of the requests that ended in (now - `seconds`, now]."""
        tokens = None if self._long is None else self._long[1]
        return _long_window(tokens, "Totals.throughput_over").per_second(self._cluster.now_ps, seconds)

    def __repr__(self) -> str:
        return f"Totals(inflight={self.inflight}, queued={self.queued}, rate={self.rate:g})"
