"""A router's record of its own past: per tenant, per instance and in total, over sliding windows."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from headway.policies.registry import EVERYTHING, entry_of
from headway.types import Request
from headway.views.cluster import KEPT, ClusterView, TenantView, Totals
from headway.views.instance import InstanceView
from headway.views.window import LongWindow, Recent


class Tenants(Mapping[str, TenantView]):
    """The tenants in order of their first request. A lookup of an unknown name returns the view of a tenant without
    requests."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._tenants: dict[str, TenantView] = {}
        self._windows = False
        self._blank: TenantView | None = None  # a tenant without requests, for look-ups of unknown names

    def keep_windows(self) -> None:
        """Record windows of any length from now on."""
        self._windows, self._blank = True, None
        for tenant in self._tenants.values():
            tenant._arrivals = LongWindow(self._cluster.now_ps)

    def __getitem__(self, name: str) -> TenantView:
        tenant = self._tenants.get(name)
        if tenant is None:
            if self._blank is None:
                self._blank = self._new(self._cluster.now_ps)
            return self._blank
        return tenant

    def _new(self, now_ps: int) -> TenantView:
        tenant = TenantView(self._cluster, now_ps)
        if self._windows:
            tenant._arrivals = LongWindow(now_ps)
        return tenant

    def __contains__(self, name: object) -> bool:
        return name in self._tenants

    def __iter__(self) -> Iterator[str]:
        return iter(self._tenants)

    def __len__(self) -> int:
        return len(self._tenants)

    def on_arrival(self, now_ps: int, request: Request) -> None:
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            tenant = self._tenants[request.tenant] = self._new(now_ps)
        tenant.on_arrival(now_ps, request.slo_class)


def kept_signals(policies: Iterable[Any]) -> list[str]:
    """Return which parts of the router's past these policies read: a selection of `KEPT`."""
    read = [signal for policy in policies for signal in entry_of(policy).exact]
    return list(KEPT) if EVERYTHING[0] in read else [name for name in KEPT if name in read]


class RouterState:
    """Records the events of the control plane, and shows the recorded past in the views of the cluster."""

    def __init__(
        self, cluster: ClusterView, signals: Collection[str] = KEPT, instances: Sequence[InstanceView] | None = None
    ) -> None:
        self.cluster = cluster
        self.instances = cluster.instances if instances is None else instances
        self.tenants = Tenants(cluster)
        self.totals = Totals(cluster)
        self.served: dict[int, Recent] = {}  # instance index -> recent values; empty if no policy reads `recent`
        self.show(signals)

    def show(self, names: Collection[str]) -> None:
        """Show the named parts of the past, a selection of `KEPT`, in the views. Parts that are already recorded keep
        their data."""
        self.cluster.keep(self.tenants if "tenants" in names else None, self.totals if "totals" in names else None)
        if "windows" in names and self.totals._long is None:
            self.totals._long = (LongWindow(self.cluster.now_ps), LongWindow(self.cluster.now_ps))
            self.tenants.keep_windows()
        if "recent" in names and not self.served:
            for view in self.instances:
                view._recent = self.served[view.index] = Recent(self.cluster)

    def on_arrival(self, now_ps: int, request: Request) -> None:
        self.tenants.on_arrival(now_ps, request)
        self.totals.on_arrival(now_ps)

    def on_queued(self, request: Request) -> None:
        self.tenants[request.tenant].active += 1
        self.totals.queued += 1

    def on_dequeued(self, request: Request) -> None:
        self.tenants[request.tenant].active -= 1
        self.totals.queued -= 1

    def on_routed(self, request: Request) -> None:
        self.tenants[request.tenant].active += 1
        self.totals.inflight += 1

    def on_first_token(self, now_ps: int, request: Request, view: InstanceView) -> None:
        if self.served:
            self.served[view.index].on_first_token(now_ps, request)

    def on_finished(
        self, now_ps: int, request: Request, view: InstanceView, output_tokens: int, decode_ps: int | None
    ) -> None:
        """Record that a request has ended. `decode_ps` is the time from its first token to its last. It is None if the
        request did not complete, or if no first token was reported."""
        self.tenants[request.tenant].active -= 1
        self.totals.on_finished(now_ps, output_tokens)
        if self.served:
            self.served[view.index].on_finished(now_ps, output_tokens, decode_ps)
