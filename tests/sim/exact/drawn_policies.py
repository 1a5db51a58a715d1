"""Policies that a drawn scenario names and that live in the tests: one that sees all, one that turns requests away."""

from __future__ import annotations

import zlib
from typing import Any

from headway import ClusterView, Request, Route
from headway.policies.registry import REPORTED, Entry
from headway.types import ADMIT, SERVING, Admit, Reject
from headway.views.cluster import KEPT
from headway.views.events import FURTHER, InstanceChanged
from headway.views.instance import InstanceView

VIEW = (
    "inflight",
    "inflight_tokens",
    "pending_prefill_tokens",
    "decode_tokens",
    "routed",
    "completed",
    "output_tokens",
    "recent_ttft",
    "recent_tpot",
    "tokens_per_second",
    "estimated_wait",
    "observed_at",
    "queued",
    "running",
    "adapters",
    "routed_since_report",
    "finished_since_report",
    "effective_load",
    "kv_used",
    "free_blocks",
    "free_sequences",
    "hit_rate",
    "tier_used",
    "offload_rate",
    "reload_rate",
    "busy",
    "watts",
)


class Witness:
    """A router that writes down all it is shown, in the middle of runs too, and the truth about the caches; the sum of
    what it saw is part of the summary. Where it sends a request depends on what it saw."""

    def __init__(self) -> None:
        self.entry = Entry("routing", "witness", Witness, KEPT, REPORTED, oracle=True)

    def bind(self, context: Any) -> None:
        self.context = context
        self.seen = 0
        self.decisions = 0
        self.events = 0

    def look(self, *facts: object) -> None:
        self.seen = zlib.crc32(repr(facts).encode(), self.seen)

    def route(self, request: Request, cluster: ClusterView) -> Route:
        self.decisions += 1
        assert all(view.state in SERVING for view in cluster.instances)
        views = [tuple(getattr(view, name) for name in VIEW) for view in cluster.instances]
        self.look(cluster.now_ps, request.id, views, self.context.truth(request))
        tenant, totals = cluster.tenants[request.tenant], cluster.totals
        self.look(tenant.requests, tenant.active, tenant.rate, tenant.slo_class, tenant.burst)
        self.look(totals.inflight, totals.queued, totals.rate, totals.throughput)
        return Route(cluster.instances[self.seen % len(views)].id)

    def observe(self, event: Any) -> None:
        self.events += 1
        views = [tuple(getattr(view, name) for name in VIEW) for view in self.context.instances]
        about = event.was if isinstance(event, InstanceChanged) else event.request.id
        self.look(type(event).__name__, event.at_ps, about, event.instance.index, event.instance.state, views)

    def metrics(self) -> dict[str, float]:
        return {"seen": float(self.seen), "decisions": float(self.decisions), "events": float(self.events)}


class Hearing(Witness):
    """Witnesses all events, those that a policy must name as well."""

    observes = FURTHER

    def observe(self, event: Any) -> None:
        if not isinstance(event, FURTHER):
            super().observe(event)
            return
        self.events += 1
        views = [tuple(getattr(view, name) for name in VIEW) for view in self.context.instances]
        values = [getattr(event, name) for name in event.__struct_fields__]
        facts = [value.id if isinstance(value, Request | InstanceView) else value for value in values]
        self.look(type(event).__name__, facts, views)


class Shedder:
    """Turns away every so many requests, and all while an instance has so many: what clients then try again."""

    def __init__(self, every: int, most: int) -> None:
        self.every = every
        self.most = most
        self.entry = Entry("admission", "shedder", Shedder, (), (), False)

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject:
        busy = any(view.inflight >= self.most for view in cluster.instances)
        return Reject("busy") if busy or request.id % self.every == 1 else ADMIT
