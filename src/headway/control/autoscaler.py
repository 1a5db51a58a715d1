"""The autoscaler: observes the pools of a cluster, and asks the policy of each pool how many replicas the pool should
have.

Like the control plane, it does no I/O and has no clock. Its caller passes the router's events (`observe`) and the time,
and carries out the changes that the autoscaler returns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from headway.config.keys import Duration, PositiveDuration
from headway.control.view_lock import ViewLock
from headway.errors import HeadwayError
from headway.policies.answers import check_scale
from headway.policies.scaling.thresholds import Static
from headway.policies.user_policies import ours
from headway.types import NEVER, PS_PER_SECOND, REDIRECTED, RETRIED, SERVING, Request
from headway.views.events import Event, Finished, FirstToken, Handed, InstanceChanged, Routed
from headway.views.instance import InstanceView
from headway.views.pool import NOTHING, PoolMetrics, PoolView

KEPT_PS: Final = 600 * PS_PER_SECOND  # maximum window that a policy without `windows_s` may read
MOST_MOVING: Final = 10_000  # maximum number of redirected requests that are remembered until they are sent again
EMPTY: Final = ("stopped", "provisioning", "loading", "unreachable")  # states in which an instance has no requests
AtLeast0 = Annotated[float, Meta(ge=0)]

# A function that returns whether a request met its SLO, or None if the request has no SLO. Arguments: the request, the
# time of its first token (-1 if it had none), the current time, its outcome, and its number of output tokens.
Met = Callable[[Request, int, int, str, int], bool | None]


class Triggers(Struct, frozen=True):
    """Conditions that cause a check before the next periodic check. A condition that is None is off."""

    queue_depth: Annotated[
        AtLeast0 | None, "check if more requests per serving replica wait, at the router and at instances"
    ] = None
    attainment: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        "check if the share of requests that met their SLO is lower, in any class, over the window",
    ] = None
    high: Annotated[AtLeast0 | None, "check if requests in flight ÷ slots is higher"] = None
    low: Annotated[AtLeast0 | None, "check if requests in flight ÷ slots is lower"] = None
    sustained_ps: Annotated[Duration, "how long `high` or `low` must hold before the check"] = 0
    rate_change: Annotated[
        Annotated[float, Meta(gt=0)] | None, "check if the rate differs by a larger share from that of the last check"
    ] = None
    gap_ps: Annotated[PositiveDuration, "shortest time from any check to one caused by a trigger"] = 15 * PS_PER_SECOND

    def validate(self, where: str) -> Triggers:
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise HeadwayError(f"{where}.low: must be below 'high' ({self.high:g}), got {self.low:g}.")
        return self


class Decision(Struct, frozen=True):
    """A change of the number of replicas of a pool."""

    pool: int  # index of the pool in `Autoscaler.pools`
    before: int
    after: int
    reason: str
    cause: str  # cause of the check: `interval` or the name of the trigger
    metrics: PoolMetrics


class Stay(Struct, eq=False):
    """A request at its instance. A disaggregated request is at its prefill instance and its decode instance."""

    tokens: int  # number of prompt tokens
    index: int  # index of the instance that generates the answer
    pool: PoolView
    prefill: PoolView | None = None  # the pool that computes the prompt; None if `pool` computes it
    prefill_index: int = NOTHING
    waits: bool = False  # whether the prefill pool has not yet computed the prompt
    first_ps: int = NOTHING


class Autoscaler:
    """Asks the policy of each pool how many replicas the pool should have. A check is due at every multiple of the
    interval, and whenever `trigger` returns a cause."""

    def __init__(
        self,
        pools: Sequence[PoolView],
        policies: Sequence[Any],
        interval_ps: int | None,
        triggers: Triggers | None,
        window_ps: int,
        met: Met,
        on_error: Callable[[PoolView, BaseException], None] | None = None,
    ) -> None:
        """If a policy fails, `on_error` is called, and the pool keeps its number of replicas. Without `on_error`, the
        exception reaches the caller of `decide`."""
        self.on_error = on_error
        self.pools = tuple(pools)
        self.policies = tuple(policies)
        # Indices of the pools that the autoscaler checks. It skips static pools, even if a replica has crashed.
        self.scalable = [number for number, policy in enumerate(self.policies) if not isinstance(policy, Static)]
        self.interval_ps = interval_ps
        self.triggers = triggers
        self.window_ps = window_ps
        self.met = met
        self.places = {view.index: pool for pool in self.pools for view in pool.views}
        self.stays: dict[int, Stay] = {}  # request id -> stay
        self.moving: OrderedDict[int, int] = OrderedDict()  # id of a redirected request -> time of its first token
        self.start_ps = self.checked_ps = 0
        self.next_ps = NEVER
        self.lock: ViewLock | None = None  # set during the first calls of a user's policies
        if not all(map(ours, self.policies)):
            self.lock = ViewLock([view for pool in self.pools for view in pool.views], pools=self.pools)
            self.lock.trust(self.policies)
        if triggers is not None:
            for pool in self.pools:
                pool.high, pool.low = triggers.high, triggers.low

    def start(self, now_ps: int) -> None:
        self.start_ps = self.checked_ps = now_ps
        for pool, policy in zip(self.pools, self.policies, strict=True):
            pool.start(now_ps, self.window_ps, max(self.window_ps, longest(policy)))
        self.set_next(now_ps)

    def add(self, now_ps: int, pool: PoolView, policy: Any, views: Sequence[InstanceView]) -> None:
        """Observe a further pool from now on. `views` are all instances that may join any pool later."""
        self.pools, self.policies = (*self.pools, pool), (*self.policies, policy)
        if not isinstance(policy, Static):
            self.scalable.append(len(self.pools) - 1)
        if not all(map(ours, self.policies)):
            self.lock = ViewLock(views, pools=self.pools)
            self.lock.trust(self.policies)
        pool.start(now_ps, self.window_ps, max(self.window_ps, longest(policy)))

    def set_next(self, now_ps: int) -> None:
        if self.interval_ps is not None:
            passed = (now_ps - self.start_ps) // self.interval_ps
            self.next_ps = self.start_ps + (passed + 1) * self.interval_ps

    def observe(self, event: Event) -> None:
        if isinstance(event, Routed):
            self.on_routed(event)
        elif isinstance(event, FirstToken):
            stay = self.stays.get(event.request.id)
            if stay is not None and stay.first_ps == NOTHING:
                stay.first_ps = event.at_ps
        elif isinstance(event, Finished):
            self.on_finished(event)
        elif isinstance(event, Handed):
            stay = self.stays.get(event.request.id)
            if stay is not None and stay.waits and stay.prefill is not None:
                stay.waits = False
                stay.prefill.on_left(event.at_ps, stay.tokens)
        else:
            self.on_changed(event)

    def on_routed(self, event: Routed) -> None:
        now, request = event.at_ps, event.request
        before = self.stays.get(request.id)
        if before is not None:  # no event reported that the request left its last instance
            self.leave(now, before)
        index, tokens = event.instance.index, request.prompt_tokens
        pool = self.places[index]
        stay = self.stays[request.id] = Stay(tokens, index, pool)
        stay.first_ps = self.moving.pop(request.id, NOTHING)
        pool.on_sent(now, tokens)
        if event.prefill is not None:
            stay.prefill_index = event.prefill.index
            prefill = self.places[stay.prefill_index]
            if prefill is not pool:
                stay.prefill, stay.waits = prefill, True
                prefill.on_sent(now, tokens)

    def leave(self, now_ps: int, stay: Stay) -> None:
        stay.pool.on_left(now_ps, stay.tokens)
        if stay.waits and stay.prefill is not None:
            stay.prefill.on_left(now_ps, stay.tokens)

    def on_finished(self, event: Finished) -> None:
        now, request = event.at_ps, event.request
        stay = self.stays.pop(request.id, None)
        if stay is None:  # the instance lost its requests, and `on_changed` forgot them
            stay = Stay(0, event.instance.index, self.places[event.instance.index])
        else:
            self.leave(now, stay)
        if event.outcome == RETRIED:  # the latency of a request counts only when the request ends
            stay.pool.output.add(now, event.output_tokens)
            return
        if event.outcome == REDIRECTED:
            if stay.first_ps != NOTHING:
                self.moving[request.id] = stay.first_ps
                if len(self.moving) > MOST_MOVING:  # forget the oldest: some requests may never be sent again
                    self.moving.popitem(last=False)
            return
        stay.pool.output.add(now, event.output_tokens)
        met = self.met(request, stay.first_ps, now, event.outcome, event.output_tokens)
        first = NOTHING if stay.first_ps == NOTHING else stay.first_ps - request.arrival_ps
        latency = now - request.arrival_ps if event.outcome == "completed" else NOTHING
        stay.pool.on_finished(now, request.slo_class, met, first, latency)
        if stay.prefill is not None:
            stay.prefill.on_finished(now, request.slo_class, met, first, latency)

    def in_vain(self, now_ps: int, request: Request, pools: Sequence[int]) -> None:
        """Count a request that timed out at the router as an SLO miss, in each pool that could have served it."""
        met = self.met(request, NOTHING, now_ps, "timed_out", 0)
        for pool in pools:
            self.pools[pool].on_finished(now_ps, request.slo_class, met, NOTHING, NOTHING)

    def on_changed(self, event: InstanceChanged) -> None:
        """Update the pool of an instance that changed its state. If the instance lost its requests, forget them."""
        index, now = event.instance.index, event.at_ps
        if event.instance.state in EMPTY and event.was not in EMPTY:
            for number, stay in list(self.stays.items()):
                if stay.index == index or (stay.waits and stay.prefill_index == index):
                    self.leave(now, stay)
                    del self.stays[number]
        self.places[index].recount(now)

    def on_scaled(self, now_ps: int, pool: int) -> None:
        self.pools[pool].scaled_ps = now_ps

    def trigger(self, now_ps: int) -> str | None:
        """Return the name of the trigger that makes a check due now. If no trigger does, return None. A pool at its
        maximum ignores the triggers for growth, and a pool at its minimum ignores the triggers for shrinking."""
        triggers = self.triggers
        if triggers is None or now_ps - self.checked_ps < triggers.gap_ps:
            return None
        for number in self.scalable:
            pool = self.pools[number]
            pool.now_ps = now_ps
            cause = holds(triggers, pool)
            if cause is not None:
                return cause
        return None

    def decide(self, now_ps: int, cause: str) -> list[Decision]:
        """Ask the policy of each pool for the number of replicas, and return the changes to make. Pools with the policy
        `static` are not asked."""
        self.checked_ps = now_ps
        self.set_next(now_ps)
        decisions = []
        for number in self.scalable:
            pool, policy = self.pools[number], self.policies[number]
            pool.now_ps = now_ps
            pool.recount(now_ps)
            pool.sample(now_ps)
            if self.triggers is not None and self.triggers.rate_change is not None:
                pool.last_rate = pool.rate(self.window_ps / PS_PER_SECOND)
            before = target = pool.replicas
            reason = ""
            try:
                answer = self.ask(policy, pool)
                if answer is not None:
                    check_scale(policy, answer, pool)
                    target, reason = answer.replicas, answer.reason
            except (Exception, SystemExit) as error:
                if self.on_error is None:
                    raise
                self.on_error(pool, error)
            after = min(max(target, pool.minimum), pool.maximum)
            if after != before:
                reason = reason or f"bounds: {after} replicas"
                decisions.append(Decision(number, before, after, reason, cause, pool.metrics()))
        return decisions

    def ask(self, policy: Any, pool: PoolView) -> Any:
        lock = self.lock
        if lock is None:
            return policy.scale(pool)
        lock.left -= 1
        if not lock.left:
            self.lock = None
        return lock.call(policy, policy.scale, pool)


def longest(policy: Any) -> int:
    """Return the length of the longest window that a policy reads, in picoseconds."""
    windows = getattr(policy, "windows_s", None)
    return KEPT_PS if windows is None else max((round(seconds * PS_PER_SECOND) for seconds in windows), default=0)


def holds(triggers: Triggers, pool: PoolView) -> str | None:
    if pool.room_up:
        if triggers.queue_depth is not None:
            serving = [view.queued for view in pool.views if view.state in SERVING]
            if sum(serving) + pool.pending > triggers.queue_depth * len(serving):
                return "queue_depth"
        if triggers.attainment is not None:
            for window in pool.classes.values():
                if window.sum(pool.now_ps) < triggers.attainment * window.count(pool.now_ps):
                    return "attainment"
        if pool.high_since != NOTHING and pool.now_ps - pool.high_since >= triggers.sustained_ps:
            return "utilization"
    if pool.room_down and pool.low_since != NOTHING and pool.now_ps - pool.low_since >= triggers.sustained_ps:
        return "utilization"
    if triggers.rate_change is not None and (pool.room_up or pool.room_down):
        rate = pool.rate(pool.window_ps / PS_PER_SECOND)
        if abs(rate - pool.last_rate) > triggers.rate_change * pool.last_rate:
            return "rate_change"
    return None
