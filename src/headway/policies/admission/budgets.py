"""Admission policies that limit the work in flight. They count the work themselves, from events."""

import dataclasses
from collections.abc import Sequence
from math import lcm
from typing import Annotated, Literal

from headway.policies.classes import exact_weights
from headway.policies.context import Context
from headway.policies.registry import Bounds, policy
from headway.types import ADMIT, SERVING, Admit, Reject, Request
from headway.views.cluster import ClusterView
from headway.views.events import Event, Finished, InstanceChanged, Routed
from headway.views.instance import InstanceView

FULL = Reject("503: the model has reached its limit of requests in flight")
OVER_SHARE = Reject("429: the limit of work in flight is reached, and the tenant has used its share of it")


@policy("admission", "max-concurrency", reported=())
class MaxConcurrency:
    """Rejects requests at once while `max_queue` requests of their model are in flight, on all instances together.

    Each (model, role) has `max_queue` permits. A request takes one when it is routed and returns it when it ends. If
    the candidates have several roles or models, each (model, role) needs a free permit. A disaggregated request holds
    one permit of each role until it ends. All names of a model share its limit. A request in the router's queue (flow
    control) holds no permit; if none is free when it is dispatched, it is rejected then. If `max_queue` is null, the
    limit follows the fleet: it is the sum of the batch limits and queue limits of the serving instances of the model
    and role, or of all of them while none serves. It reads no signal.
    """

    # maximum number of requests in flight per model and role; null: the sum of the instances' batch and queue limits
    max_queue: Annotated[int | None, Bounds(1, 1_000_000, log=True)] = 512

    def bind(self, context: Context) -> None:
        self.instances = context.instances
        self.limits: dict[tuple[str, str], int] = {}  # (model, role) -> limit, if the limit follows the fleet
        self.in_use: dict[tuple[str, str], int] = {}  # (model, role) -> number of permits in use
        # Request id -> permits of the request.
        # Permits are stored, because the model or role of an instance may change while the request is in flight.
        self.held: dict[int, tuple[tuple[str, str], ...]] = {}
        self.kinds: dict[int, list[tuple[str, str]]] = {}  # index of a group of instances -> its (model, role) pairs

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject:
        kinds = self.kinds.get(cluster.group)
        if kinds is None:
            kinds = self.kinds[cluster.group] = list(dict.fromkeys(permit_of(view) for view in cluster.instances))
        for kind in kinds:
            if self.is_full(kind):
                return FULL
        return ADMIT

    def permit(self, request: Request, targets: Sequence[InstanceView]) -> Reject | None:
        """Return a rejection if one of the instances chosen for the request has no free permit. Otherwise return
        None."""
        for view in targets:
            if self.is_full(permit_of(view)):
                return FULL
        return None

    def is_full(self, kind: tuple[str, str]) -> bool:
        in_use = self.in_use.get(kind, 0)
        if self.max_queue is not None:
            return in_use >= self.max_queue
        if in_use < self.limits.get(kind, 0):
            return False
        limit = self.limits[kind] = self.measure(kind)  # no event says that an instance's limits have changed
        return in_use >= limit

    def measure(self, kind: tuple[str, str]) -> int:
        """Return how many requests the instances of a model and role can hold, in their batches and queues."""
        members = [view for view in self.instances if permit_of(view) == kind and view.state != "stopped"]
        serving = [view for view in members if view.state in SERVING] or members
        return sum([view.max_batch_size + view.max_queue for view in serving])

    def observe(self, event: Event) -> None:
        in_use = self.in_use
        if isinstance(event, Routed):
            held: tuple[tuple[str, str], ...] = (permit_of(event.instance),)
            if event.prefill is not None:
                held += (permit_of(event.prefill),)
            self.held[event.request.id] = held
            for key in held:
                in_use[key] = in_use.get(key, 0) + 1
        elif isinstance(event, Finished):
            for key in self.held.pop(event.request.id, ()):
                if in_use[key] == 1:
                    del in_use[key]
                else:
                    in_use[key] -= 1
        elif isinstance(event, InstanceChanged):  # the candidates may have changed
            self.kinds.clear()
            self.limits.clear()


def permit_of(view: InstanceView) -> tuple[str, str]:
    return view.model, view.role


@policy("admission", "tenant-fair", reported=())
class TenantFair:
    """Shares a limit of work in flight among the active tenants; a tenant may also use the idle shares of others.

    Work is requests (`by: requests`) or their prompt tokens (`by: tokens`), from routing until the request ends. A
    request is admitted if (a) the work of all tenants stays within `total`, or (b) the work of its tenant stays within
    the tenant's share, or (c) its tenant has nothing in flight. A share is total × weight ÷ the sum of the weights of
    all active tenants. A tenant is active while it has work in flight or asks for admission. `weights` are by tenant;
    others have 1. If `total` is null, it is the sum of the batch limits of the serving instances, or for tokens the
    capacity of their KV caches.

    A new tenant gets its share at once, so the work may exceed `total` until older requests end. It reads no signal.
    """

    total: Annotated[int | None, Bounds(1, 1_000_000_000_000, log=True)] = None
    by: Literal["requests", "tokens"] = "requests"
    weights: dict[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        weights = exact_weights(self.weights, "weights")
        whole = lcm(*[weight.denominator for weight in weights.values()])
        self.shares = {tenant: int(weight * whole) for tenant, weight in weights.items()}  # weights, scaled to integers
        self.other = whole

    def bind(self, context: Context) -> None:
        self.context = context
        self.measure()
        self.work: dict[str, int] = {}  # tenant -> its work in flight, if it has any
        self.requests: dict[str, int] = {}  # tenant -> number of its requests in flight, if it has any
        self.used = 0  # work in flight of all tenants
        self.active = 0  # sum of the shares of all tenants with work in flight

    def measure(self) -> None:
        """Set the limit of work in flight to `total`, or else to the capacity of the serving instances."""
        serving = [view for view in self.context.instances if view.state in SERVING]
        if self.total is not None:
            self.limit = self.total
        elif self.by == "tokens":
            self.limit = sum([view.kv_blocks for view in serving]) * self.context.block_tokens
        else:
            self.limit = sum([view.max_batch_size for view in serving])

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject:
        tenant, size = request.tenant, self.size(request)
        if self.used + size <= self.limit or tenant not in self.work:
            return ADMIT
        own = (self.work[tenant] + size) * self.active
        return ADMIT if own <= self.limit * self.shares.get(tenant, self.other) else OVER_SHARE

    def size(self, request: Request) -> int:
        return request.prompt_tokens if self.by == "tokens" else 1

    def observe(self, event: Event) -> None:
        if isinstance(event, InstanceChanged):
            self.measure()
            return
        tenant, size = event.request.tenant, self.size(event.request)
        share = self.shares.get(tenant, self.other)
        if isinstance(event, Routed):
            if tenant not in self.work:
                self.work[tenant] = self.requests[tenant] = 0
                self.active += share
            self.work[tenant] += size
            self.requests[tenant] += 1
            self.used += size
        elif isinstance(event, Finished):
            self.work[tenant] -= size
            self.requests[tenant] -= 1
            self.used -= size
            if not self.requests[tenant]:
                del self.work[tenant], self.requests[tenant]
                self.active -= share
