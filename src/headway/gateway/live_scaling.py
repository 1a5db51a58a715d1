"""Scaling policies in a live gateway: how many replicas each pool of engines should have.

The gateway starts and stops no engines. It publishes the wanted number, and an operator or another tool follows it. The
policy sees the pool as if the number were already in force, as in a simulation: wanted engines that have not joined yet
count as starting, and surplus engines count as draining.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from headway.config.keys import Doc, Form, PositiveDuration, Unit
from headway.config.section import read
from headway.config.wording import one_line, shown
from headway.control.autoscaler import Autoscaler
from headway.errors import HeadwayError
from headway.http.server_log import Occasional
from headway.policies import registry
from headway.policies.policy_schema import policy_form
from headway.results.recorder import ScaleRecord, Targets
from headway.types import NEVER, PS_PER_SECOND, REPLICAS, SERVING, Json, Request
from headway.views.instance import InstanceView
from headway.views.pool import PoolView

if TYPE_CHECKING:
    import asyncio

    from headway.gateway.exchange import Exchange
    from headway.gateway.live_clock import Clock
    from headway.gateway.plane import Plane
    from headway.views.events import Event

ROLES: Final = ("prefill", "decode")
ONE_PROCESS: Final = "a scaling policy sees the requests of one process, so it needs a gateway with one process."
Least = Annotated[int, Meta(ge=0, le=100_000)]
Most = Annotated[int, Meta(ge=1, le=100_000)]
log = logging.getLogger("headway.gateway")


class PoolScaling(Struct, frozen=True):
    """An entry of `pools` in the section `scaling:` of a gateway's file."""

    min_replicas: Annotated[Least | None, Doc("fewest replicas of this pool", default="that of `scaling`")] = None
    max_replicas: Annotated[Most | None, Doc("most replicas of this pool", default="that of `scaling`")] = None
    policy: Annotated[
        Any,
        policy_form("scaling", live=True),
        Doc("policy of this pool", default="that of `scaling`", type="name or mapping"),
    ] = None


def _read_pools(data: Any, where: str) -> dict[str, PoolScaling]:
    if not isinstance(data, Mapping):
        raise HeadwayError(f"{where}: expected a mapping of pools, got {shown(data)}.")
    return {str(name): read(PoolScaling, pool, f"{where}.{name}") for name, pool in data.items()}


class ScalingSettings(Struct, frozen=True, kw_only=True):
    """The section `scaling:` of a gateway's file."""

    policy: Annotated[
        Any, policy_form("scaling", live=True), Doc("policy of the stage `scaling`", type="name or mapping")
    ]
    max_replicas: Annotated[Most, "most replicas of a pool"]
    min_replicas: Annotated[Least, "fewest replicas of a pool"] = 1
    interval_ps: Annotated[PositiveDuration, "time between two checks"] = 30 * PS_PER_SECOND
    window_ps: Annotated[
        PositiveDuration, "policies see latencies and attainment of the requests that ended within this window"
    ] = 60 * PS_PER_SECOND
    slo: Annotated[
        Targets, Doc("`ttft`, `tpot` and `e2e`: latency targets, for policies that read attainment", default="none")
    ] = Targets()
    pools: Annotated[
        dict[str, PoolScaling],
        Unit("mapping", _read_pools, dict, form=Form.of(dict[str, PoolScaling])),
        Doc("pools with keys of their own: `min_replicas`, `max_replicas`, `policy`", default="none"),
    ] = {}

    def of(self, pool: str) -> PoolScaling:
        """Return the settings of a pool, without missing values."""
        own = self.pools.get(pool, PoolScaling())
        return PoolScaling(
            self.min_replicas if own.min_replicas is None else own.min_replicas,
            self.max_replicas if own.max_replicas is None else own.max_replicas,
            self.policy if own.policy is None else own.policy,
        )

    def validate(self, where: str) -> ScalingSettings:
        _check(self.of(""), where)
        for name in self.pools:
            _check(self.of(name), f"{where}.pools.{name}")
        return self


def _check(pool: PoolScaling, where: str) -> None:
    low, high = pool.min_replicas or 0, pool.max_replicas or 0
    if low > high:
        raise HeadwayError(f"{where}.max_replicas: {high} is below `min_replicas` ({low}). Raise it.")
    policy = registry.build("scaling", pool.policy, f"{where}.policy")
    if any(registry.entry_of(part, "scaling").oracle for part in (policy, *getattr(policy, "_parts", ()))):
        raise HeadwayError(f"{where}.policy: {shown(pool.policy)} is an oracle policy, for simulation only.")


class LivePool:
    """A pool of engines, and the number of replicas that its policy wants."""

    def __init__(self, view: PoolView, name: str) -> None:
        self.view, self.name = view, name  # `name` is the key `pool` of its engines
        self.wanted: int | None = None  # None before the first check
        self.reason = ""
        self.failures = 0


class LiveScaling:
    """Observes the engines by pool, and asks the policy of each pool at every interval."""

    def __init__(self, clock: Clock, plane: Plane, settings: ScalingSettings) -> None:
        self.clock, self.plane, self.settings = clock, plane, settings
        met = partial(_met, settings.slo)
        self.scaler = Autoscaler((), (), settings.interval_ps, None, settings.window_ps, met, self._policy_failed)
        self.pools: dict[str, LivePool] = {}
        self.on_scaled: list[Callable[[ScaleRecord], None]] = []
        self.last_failure: str | None = None
        self._trouble = Occasional(log, "scaling: the policy of pool %s failed, and its number stays: %s")
        self._lost = Occasional(log, "scaling: an event was not counted: %s")
        self._absent = InstanceView(-1, "")  # stands for every wanted engine that has not joined
        self._absent.state = "provisioning"
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        self.begin(self.clock.now_ps())
        self._set_timer()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def begin(self, now_ps: int) -> None:
        """Observe the pools from now on."""
        self.scaler.start(now_ps)
        for id in self.settings.pools:
            role = next((role for role in ROLES if id.endswith(f"-{role}")), "both")
            self._add(now_ps, id, id.removesuffix(f"-{role}"), role, "")
        self._find_pools(now_ps)
        self.plane.versions.follow(self.observe)

    def _set_timer(self) -> None:
        if self.scaler.next_ps < NEVER:
            delay_s = max(0.0, (self.scaler.next_ps - self.clock.now_ps()) / PS_PER_SECOND)
            self._timer = self.clock.call_later(delay_s, self._due)

    def _due(self) -> None:
        now_ps = self.clock.now_ps()
        if now_ps >= self.scaler.next_ps:
            try:
                self.check(now_ps)
            except Exception:  # the next check may succeed
                log.exception("scaling: a check failed, and the numbers stay")
                self.scaler.set_next(now_ps)
        self._set_timer()

    # --- pools -------------------------------------------------------------------------------------------------------

    def _id(self, view: InstanceView) -> str:
        role = self.plane.places.roles[view.index]  # `view.role` is both while the engine has no partner
        return view.pool if role == "both" else f"{view.pool}-{role}"

    def _pool(self, now_ps: int, view: InstanceView) -> LivePool:
        """Return the pool of an engine. The first engine of a pool creates the pool."""
        id = self._id(view)
        pool = self.pools.get(id)
        if pool is None:
            pool = self._add(now_ps, id, view.pool, self.plane.places.roles[view.index], view.model)
        self.scaler.places[view.index] = pool.view
        return pool

    def _add(self, now_ps: int, id: str, name: str, role: str, model: str) -> LivePool:
        own, block_tokens = self.settings.of(id), self.plane.block_tokens
        low, high = own.min_replicas or 0, own.max_replicas or 0
        policy = registry.build("scaling", own.policy, "scaling.policy")
        pool = self.pools[id] = LivePool(PoolView(id, model, role, low, high, (), block_tokens=block_tokens), name)
        self.scaler.add(now_ps, pool.view, policy, self.plane.views)
        return pool

    def _find_pools(self, now_ps: int) -> dict[str, list[InstanceView]]:
        """Return the engines of each pool."""
        members: dict[str, list[InstanceView]] = {id: [] for id in self.pools}
        for view in self.plane.views:
            if view.id:
                members.setdefault(self._pool(now_ps, view).view.id, []).append(view)
        return members

    def _place(self, pool: LivePool, members: list[InstanceView]) -> None:
        """Show the policy as many replicas as it wants."""
        view = pool.view
        here = [member for member in members if member.state in REPLICAS]
        if pool.wanted is None:
            pool.wanted = len(here)
        leaving = sorted(here, key=lambda member: (member.state in SERVING, member.inflight, -member.index))
        for member in leaving[: max(0, len(here) - pool.wanted)]:
            members.remove(member)
        view.views = (*members, *[self._absent] * (pool.wanted - len(here)))
        if here:
            first = here[0]
            view.model, view.slots = first.model, first.max_batch_size
            view.kv_tokens = first.kv_blocks * self.plane.block_tokens

    # --- events ------------------------------------------------------------------------------------------------------

    def observe(self, event: Event) -> None:
        """Count an event of a request. Changes of engines need no event: a check reads the engines' states, and every
        request ends with an event."""
        try:
            if not hasattr(event, "request"):
                return
            now_ps, prefill = event.at_ps, getattr(event, "prefill", None)
            pools = [self._pool(now_ps, view) for view in (event.instance, prefill) if view is not None]
            self.scaler.observe(event)
            for pool in pools:
                self._count_waiting(now_ps, pool)
        except (Exception, SystemExit) as error:  # it must not disturb the request
            self._lost.note(one_line(error))

    def _count_waiting(self, now_ps: int, pool: LivePool) -> None:
        pool.view.set_pending(now_ps, self.plane.control.pending(pool.name))

    def record_end(self, exchange: Exchange, now_ps: int, outcome: str, why: str) -> None:
        """Count a request that waited too long at the gateway as an SLO miss."""
        if outcome == "timed_out" and exchange.backend is None:
            could = self.plane.control.pools_of(exchange.request)
            places = [place for place, pool in enumerate(self.pools.values()) if pool.name in could]
            self.scaler.in_vain(now_ps, exchange.request, places)

    # --- decisions ---------------------------------------------------------------------------------------------------

    def check(self, now_ps: int) -> list[ScaleRecord]:
        """Ask the policies, and return the changes."""
        members, pools = self._find_pools(now_ps), self.pools
        for id, pool in pools.items():
            self._place(pool, members.get(id, []))
            self._count_waiting(now_ps, pool)
        records = []
        by_number = list(pools.values())
        for decision in self.scaler.decide(now_ps, "interval"):
            pool = by_number[decision.pool]
            pool.wanted, pool.reason = decision.after, decision.reason
            self.scaler.on_scaled(now_ps, decision.pool)
            id, before, after, why = pool.view.id, decision.before, decision.after, decision.reason
            records.append(ScaleRecord(now_ps, id, before, after, why, decision.cause, decision.metrics))
            log.info("scaling: pool %s wants %d replicas instead of %d: %s", id, after, before, why)
        for record in records:
            for listener in self.on_scaled:
                listener(record)
        return records

    def _policy_failed(self, view: PoolView, error: BaseException) -> None:
        self.pools[view.id].failures += 1
        self.last_failure = one_line(error)
        self._trouble.note(view.id, self.last_failure)

    # --- reading -----------------------------------------------------------------------------------------------------

    def status(self) -> Json:
        now_ps, members = self.clock.now_ps(), self._find_pools(self.clock.now_ps())
        pools = []
        for id, pool in self.pools.items():
            view, since_ps = pool.view, pool.view.scaled_ps
            pools.append(
                {
                    "pool": id,
                    "wanted": pool.wanted,
                    "replicas": sum(member.state in REPLICAS for member in members.get(id, [])),
                    "min_replicas": view.minimum,
                    "max_replicas": view.maximum,
                    "reason": pool.reason,
                    "changed_s": None if since_ps < 0 else round((now_ps - since_ps) / PS_PER_SECOND, 3),
                    "failures": pool.failures,
                }
            )
        return {"pools": pools, "last_failure": self.last_failure}

    def figures(self) -> dict[str, dict[str, int]]:
        wanted = {id: pool.wanted for id, pool in self.pools.items() if pool.wanted is not None}
        return {"wanted_replicas": wanted, "scaling_failures": {id: pool.failures for id, pool in self.pools.items()}}


def _met(slo: Targets, request: Request, first_ps: int, now_ps: int, outcome: str, output_tokens: int) -> bool | None:
    """Return whether a request met the SLO. An answer that was not streamed has no first token: only its `e2e` is
    judged."""
    if outcome == "completed" and first_ps < 0:
        slo = replace(slo, ttft_ps=None, tpot_ps=None)
    return slo.met(request.arrival_ps, first_ps, now_ps, outcome, output_tokens)
