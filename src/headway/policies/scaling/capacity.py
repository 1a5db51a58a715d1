"""Autoscalers that compare use with capacity: a target utilisation, or KV tokens."""

from collections import deque
from typing import Annotated, Final, Literal

from msgspec.structs import replace

from headway.errors import HeadwayError
from headway.policies.registry import Bounds, entry_of, policy
from headway.policies.scaling.replicas import RecentTargets, Seconds, Share, at_least_one, scale_to, wake, whole
from headway.types import Scale
from headway.views.pool import PoolView

SIGNALS: Final = {"kv": "kv_used", "batch": "running", "busy": "busy"}  # what instances report of each
OBSERVED: Final = 10  # of what saturated replicas held


def utilization(pool: PoolView, signal: str) -> float:
    """Of the replicas that serve, the mean."""
    if signal == "kv":
        return pool.kv_utilization
    return pool.running / pool.slots if signal == "batch" else pool.busy


@policy("scaling", "target-utilization", exact=(), reported=("kv_used",))
class TargetUtilization:
    """Keeps the share of the replicas' KV cache, batch or time that is in use near a target.

    Of n replicas that serve with the mean utilisation u, n · u are in use; wanted are n · u ÷ `target`, rounded up. Up
    to a `tolerance` from the target (as a share of it) nothing changes. Replicas on their way count as unused before
    more are asked for. The pool shrinks to the most that was wanted in the last `scale_down_delay_s`.

    `signal`: kv, the share of the KV blocks that requests hold; batch, running requests over the slots of the batch;
    busy, the share of the last 5 s in which an instance computed. The default is kv, which grows with the work until an
    engine can hold no more. Busy time, which is what GPU utilisation tells, does not: an engine that decodes for a
    single request is busy all the time and could serve a hundred more, so it is near 1 from a low load on. Batch is
    right where the slots and not the memory limit an engine. On prefill instances KV use tells little.
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
    """Weighs the KV tokens that requests need against those that the replicas can hold, as llm-d's autoscaler does.

    Supply: a replica holds `kv_threshold` of its KV tokens, or less where it was found to be saturated with less: when
    `queue_threshold` or more requests wait at the mean instance, what is in use is what its compute can sustain,
    and the mean of the last 10 such findings holds. Demand: the tokens in use, and the mean prompt in flight for each
    request that waits, at an instance or at the router. The pool grows when demand ÷ `scale_up` exceeds the supply of
    all replicas, those on their way included, by as many as the rest takes. It shrinks when the supply of those that
    serve exceeds demand ÷ `scale_down`, by as many as fit into the rest, but to no less than what was wanted at any
    check in the last `scale_down_delay_s`. The thresholds are those of llm-d's workload variant autoscaler, the delay
    that of the Kubernetes autoscaler which carries its wishes out. Tokens yet to be generated are left out.
    """

    kv_threshold: Share = 0.8
    queue_threshold: Annotated[float, Bounds(0.1, 10_000, log=True)] = 5.0  # requests
    scale_up: Share = 0.85
    scale_down: Share = 0.7
    scale_down_delay_s: Seconds = 300.0
    windows_s = ()

    def __post_init__(self) -> None:
        if self.scale_down > self.scale_up:
            raise HeadwayError(
                f"kv-token: scale_down must be at most scale_up, got {self.scale_down:g} and {self.scale_up:g}."
            )
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
        """KV tokens that a replica can hold: what its memory lets it, or what its compute was seen to sustain."""
        if pool.queued >= self.queue_threshold and used > 0:
            self.sustained.append(used)
        memory = pool.kv_tokens * self.kv_threshold
        if not self.sustained:
            return memory
        total = 0.0
        for value in self.sustained:
            total += value
        return min(memory, max(1.0, total / len(self.sustained)))
