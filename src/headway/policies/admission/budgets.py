"""Limits on what is under way: the router counts what it has sent out and what has not ended."""

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

FULL = Reject("503: the model has as many requests in flight as it may")
OVER_SHARE = Reject("429: all of the work in flight that is allowed is taken, and the tenant's share of it is used up")


@policy("admission", "max-concurrency", reported=())
class MaxConcurrency:
    """Turns requests away at once while `max_queue` requests of their model are in flight, on all instances together.

    A hard cap and no buffer: nothing waits. A permit is one request in flight of a (model, role): it is taken when the
    request is routed, so what routing refuses never holds one, and given back when it has ended, however that was.
    Where the candidates have several roles or models, each of them needs a free permit; a request whose prompt is
    computed apart takes one of both roles, and gives both back when it has ended. A model has one limit, whatever
    names it is called by; so have instances that serve any name, as a name that a client makes up must open nothing.
    What waits in a queue of the router's (flow control) holds none yet; if none is left when its turn has come and its
    target is chosen, it is turned away then. It reads no signal: it counts what it is told was routed and has ended.
    """

    max_queue: Annotated[int, Bounds(1, 1_000_000, log=True)] = 512  # requests in flight of a model and role

    def bind(self, context: Context) -> None:
        self.in_use: dict[tuple[str, str], int] = {}  # permits
        # By request, as what its instances are for may change meanwhile.
        self.held: dict[int, tuple[tuple[str, str], ...]] = {}
        self.kinds: dict[int, list[tuple[str, str]]] = {}  # of each group of candidates

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject:
        kinds = self.kinds.get(cluster.group)
        if kinds is None:
            kinds = self.kinds[cluster.group] = list(dict.fromkeys(permit_of(view) for view in cluster.instances))
        for kind in kinds:
            if self.in_use.get(kind, 0) >= self.max_queue:
                return FULL
        return ADMIT

    def permit(self, request: Request, targets: Sequence[InstanceView]) -> Reject | None:
        """Asked once the targets are chosen: a permit of each, or of none."""
        for view in targets:
            if self.in_use.get(permit_of(view), 0) >= self.max_queue:
                return FULL
        return None

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
        elif isinstance(event, InstanceChanged):  # others may be candidates now
            self.kinds.clear()


def permit_of(view: InstanceView) -> tuple[str, str]:
    """What a permit at an instance is for: a model and a role."""
    return view.model, view.role


@policy("admission", "tenant-fair", reported=())
class TenantFair:
    """Shares an amount of work in flight among the tenants that are active, and lets the others' idle part be used.

    Work is requests (`by: requests`) or their prompt tokens (`by: tokens`), from when they are routed until they have
    ended. A request is admitted (a) if with it the work of all is at most `total`, or (b) if with it the work of its
    tenant is at most its share, or (c) if its tenant has nothing in flight. The share is total × weight ÷ the weights
    of all active tenants; active is who has work in flight or asks. `weights` gives tenants' weights, those not in it
    have 1. `total` null: the batch limits of the instances that serve, in tokens what their KV caches hold.

    So nothing is refused while there is room, and who comes late still gets a share: the work of all then exceeds
    `total` until what the others had begun has ended. Decided in whole numbers. It reads no signal: it counts what it
    is told was routed and has ended.
    """

    total: Annotated[int | None, Bounds(1, 1_000_000_000_000, log=True)] = None
    by: Literal["requests", "tokens"] = "requests"
    weights: dict[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        weights = exact_weights(self.weights, "weights")
        whole = lcm(*[weight.denominator for weight in weights.values()])
        self.shares = {tenant: int(weight * whole) for tenant, weight in weights.items()}  # in whole numbers
        self.other = whole

    def bind(self, context: Context) -> None:
        self.context = context
        self.measure()
        self.work: dict[str, int] = {}  # in flight, of the tenants that have any
        self.requests: dict[str, int] = {}  # likewise
        self.used = 0  # by all
        self.active = 0  # the shares of the tenants with work in flight

    def measure(self) -> None:
        """Work out the limit from the instances that serve."""
        there = [view for view in self.context.instances if view.state in SERVING]
        if self.total is not None:
            self.limit = self.total
        elif self.by == "tokens":
            self.limit = sum([view.kv_blocks for view in there]) * self.context.block_tokens
        else:
            self.limit = sum([view.max_batch_size for view in there])

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
