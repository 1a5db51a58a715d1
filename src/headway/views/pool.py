"""A pool of equal instances, the unit of scaling, as an autoscaler sees it: a deployment, or one half of it where
prompts are computed apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct

# Signals of instances that a pool shows as the mean over those that serve.
MEANS: Final = ("queued", "running", "kv_utilization", "busy")


class LoadSample(Struct, frozen=True, gc=False):
    """What was seen of a pool from one check to the next."""

    at_ps: int  # of the later one
    replicas: int
    rate: float  # requests a second
    concurrency: float  # requests in flight or waiting for an instance, mean over the time
    queued: float  # requests that wait at an instance, mean over those that serve, at the check


class PoolView(Protocol):
    """Times are in seconds unless their names say otherwise. A window of `seconds` at `now` is (now - seconds, now], or
    since the start where that is less long ago. Where nothing was seen in it a mean is None."""

    id: str
    model: str
    role: str  # both, prefill or decode
    minimum: int
    maximum: int
    slots: int  # requests that a replica can run at a time
    kv_tokens: int  # that the GPU of a replica can hold

    @property
    def now_ps(self) -> int: ...
    @property
    def now(self) -> float: ...
    @property
    def since_scaled(self) -> float | None:
        """Since the number of replicas was last changed; None where it never was."""

    # --- replicas ----------------------------------------------------------------------------------------------

    @property
    def replicas(self) -> int:
        """Those that are there or on their way, and not draining: what a decision is about."""

    @property
    def serving(self) -> int:
        """Those of them that requests go to."""

    @property
    def starting(self) -> int:
        """Those of them that are provisioning or loading."""

    # --- load, as the router has counted it ----------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Requests that wait at the router for an instance of this pool, or of another that could serve them."""

    @property
    def inflight(self) -> int:
        """Requests at its instances now."""

    @property
    def inflight_tokens(self) -> int:
        """Prompt tokens of those."""

    def concurrency(self, seconds: float) -> float:
        """Requests in flight and pending, mean over the window."""

    def rate(self, seconds: float) -> float:
        """Requests that came to the pool, a second over the window; those that are pending count when they are sent."""

    def output_rate(self, seconds: float) -> float:
        """Output tokens of the requests that ended, a second over the window."""

    @property
    def history(self) -> Sequence[LoadSample]:
        """One a check, the oldest first, the last one of this check."""

    # --- latency of the requests that were sent here and ended within the metrics window -----------------------------

    @property
    def attainment(self) -> Mapping[str, float]:
        """Share of those that met their SLO, by class; those that did not complete have not, nor those that waited too
        long at the router and could have come here. Empty without an SLO."""

    @property
    def mean_ttft(self) -> float | None: ...
    @property
    def p99_ttft(self) -> float | None: ...
    @property
    def mean_latency(self) -> float | None:
        """From arrival to the last token."""

    @property
    def p99_latency(self) -> float | None: ...

    # --- reported by those that serve: mean over them, 0 where there are none; a policy declares what it reads ---

    @property
    def queued(self) -> float:
        """Requests that wait at an instance."""

    @property
    def running(self) -> float: ...
    @property
    def kv_utilization(self) -> float:
        """Share of the GPU's blocks that requests hold (`kv_used`)."""

    @property
    def busy(self) -> float:
        """Share of the last 5 s in which an instance computed (`busy`)."""
