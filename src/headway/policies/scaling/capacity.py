"""Autoscalers that compare usage with capacity, as a target utilisation or in KV tokens."""

from collections import deque
from typing import Annotated, Final, Literal

from msgspec.structs import replace

from headway.errors import HeadwayError
from headway.policies.registry import Bounds, entry_of, policy
from headway.policies.scaling.replicas import RecentTargets, Seconds, Share, at_least_one, scale_to, wake, whole
from headway.types import Scale
from headway.views.pool import PoolView

SIGNALS: Final = {"kv": "kv_used", "batch": "running", "busy": "busy"}  # type of utilisation -> reported signal
OBSERVED: Final = 10  # number of the latest saturated checks over which a mean is computed


def utilization(pool: PoolView, signal: str) -> float:
    """Return the mean utilisation of the serving replicas."""
    if signal == "kv":
        return pool.kv_utilization
    return pool.running / pool.slots if signal == "batch" else pool.busy


@policy("scaling", "target-utilization", exact=(), reported=("kv_used",))
class TargetUtilization:
    """Keeps the utilisation of the replicas' KV cache, batch or compute time near a target.

    If n serving replicas have a mean utilisation of u, the pool needs n · u ÷ `target` replicas, rounded up. Within
    `tolerance` of the target (as a share of it) nothing changes. Starting replicas count as unused before more are
    added. The pool shrinks to the highest need of the last `scale_down_delay_s`.

    `signal` is kv (share of the KV blocks that requests hold), batch (running requests ÷ batch slots) or busy (share of
    the last 5 s with work). kv grows with the load until an engine is full. busy, like GPU utilisation, is near 1 even
    at a low load: an engine that decodes a single request is always busy. Use batch if the slots limit an engine rather
    than its memory. On prefill instances KV use says little about load.
    """

    signal: Literal["kv", "batch", "busy"] = "kv"
    target: Share = 0.7
    tolerance: Annotated[float, Bounds(0.0, 1.0)] = 0.1
    scale_down_delay_s: Seconds = 300.0
    windows_s = ()

    def __post_init__(self) -> None:
        self.entry = replace(entry_of(type(self)), reported=(SIGNALS[self.signal],))
        self.recent = RecentTargets(self.scale_down_delay_s)

    def scale(self, pool: PoolView) -> Scale | None:
        if not pool.serving:
            return wake(pool)
        used, replicas = utilization(pool, self.signal), pool.replicas
        too_much = used * pool.serving > self.target * (1 + self.tolerance) * replicas
        too_little = used < self.target * (1 - self.tolerance)
        needed = replicas
        if too_much or too_little:
            needed = at_least_one(pool, whole(used * pool.serving / self.target))
        needed = self.recent.stabilise(pool, needed)
        state = f"{self.signal} use {used:.3f} of {pool.serving} replicas"
        return scale_to(pool, needed, f"{state}, target {self.target:g}")


@policy("scaling", "kv-token", exact=("inflight", "inflight_tokens", "pending"), reported=("kv_used", "queued"))
class KvToken:
    """Compares the KV tokens that requests need with those that the replicas can hold, as llm-d's autoscaler does.

    Supply of a replica: `kv_threshold` of its KV tokens, or less if its compute saturates earlier. If on average
    `queue_threshold` or more requests are queued at an instance, the tokens in use are what its compute sustains; the
    mean of the last 10 such checks counts. Demand: the tokens in use, plus the mean prompt in flight for each request
    that waits at an instance or at the router. Output tokens yet to be generated are not counted.

    If demand ÷ `scale_up` exceeds the supply of all replicas, starting ones included, the pool grows by the difference.
    If the supply of the serving replicas exceeds demand ÷ `scale_down`, it shrinks by the difference, but not below the
    need at any check of the last `scale_down_delay_s`. The thresholds are those of llm-d's workload variant autoscaler,
    the delay is that of the Kubernetes autoscaler.
    """

    kv_threshold: Share = 0.8
    queue_threshold: Annotated[float, Bounds(0.1, 10_000, log=True)] = 5.0  # number of queued requests
    scale_up: Share = 0.85
    scale_down: Share = 0.7
    scale_down_delay_s: Seconds = 300.0
    windows_s = ()

    def __post_init__(self) -> None:
        if self.scale_down > self.scale_up:
            values = f"{self.scale_down:g} and {self.scale_up:g}"
            raise HeadwayError(f"kv-token: scale_down must be at most scale_up, got {values}.")
        self.recent = RecentTargets(self.scale_down_delay_s)
        self.sustained: deque[float] = deque(maxlen=OBSERVED)

    def scale(self, pool: PoolView) -> Scale | None:
        if not pool.serving:
            return wake(pool)
        used = pool.kv_utilization * pool.kv_tokens
        waiting = pool.queued * pool.serving + pool.pending
        prompt = pool.inflight_tokens / pool.inflight if pool.inflight else 0.0
        demand = used * pool.serving + waiting * prompt
        holds = self.capacity(pool, used)
        lacking = demand / self.scale_up - pool.replicas * holds
        spare = pool.serving * holds - demand / self.scale_down
        needed = pool.replicas
        if lacking > 0:
            needed += whole(lacking / holds)
        elif spare > 0:
            needed = at_least_one(pool, max(0, needed - int(round(spare / holds, 9))))
        needed = self.recent.stabilise(pool, needed)
        state = f"demand {demand:,.0f} tokens, {holds:,.0f} on each of {pool.serving} replicas"
        return scale_to(pool, needed, f"{state} and {pool.replicas - pool.serving} to come")

    def capacity(self, pool: PoolView, used: float) -> float:
        """Return the KV tokens that a replica can hold: the lower of its memory and observed compute limits."""
        if pool.queued >= self.queue_threshold and used > 0:
            self.sustained.append(used)
        memory = pool.kv_tokens * self.kv_threshold
        if not self.sustained:
            return memory
        total = 0.0
        for value in self.sustained:
            total += value
        return min(memory, max(1.0, total / len(self.sustained)))
