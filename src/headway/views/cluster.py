"""The cluster as a policy sees it at one decision: the instances, the tenants and the totals of this router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from headway.types import NO_PRIORITY, PS_PER_SECOND
from headway.views.instance import InstanceView, undeclared_signal


class TenantView(Protocol):
    """One tenant as this router has seen it up to now."""

    @property
    def requests(self) -> int:
        """Requests that came so far, the one that is being decided on included."""

    @property
    def active(self) -> int:
        """Those of them that were let in and have not ended, in the router's queue or at an instance."""

    @property
    def rate(self) -> float:
        """Requests a second over the last 10 s, that is in (now - 10 s, now]."""

    @property
    def slo_class(self) -> str:
        """Of its latest request."""

    @property
    def burst(self) -> bool:
        """At least 5 requests in the last second, and more than twice as many as its rate over the last 10 s (or since
        its first request, where that is less long ago) would bring."""


class Totals(Protocol):
    """All that this router has seen up to now."""

    @property
    def inflight(self) -> int:
        """Requests that it sent to an instance and that have not ended."""

    @property
    def queued(self) -> int:
        """Requests that wait in its own queue."""

    @property
    def rate(self) -> float:
        """Requests that came, a second over the last 10 s, that is in (now - 10 s, now]."""

    @property
    def throughput(self) -> float:
        """Output tokens of the requests that ended in (now - 10 s, now], a second."""


# What a router keeps of its own past, only for the policies that say that they read it.
KEPT: Final = ("tenants", "totals", "recent")


class ClusterView:
    """What a policy sees of the cluster at one decision. `tenants` and `totals` are there where a policy of the run
    declares that it reads them, or declares nothing."""

    __slots__ = ("_tenants", "_totals", "explain", "group", "instances", "now_ps", "priority")

    def __init__(self, instances: Sequence[InstanceView]) -> None:
        self.instances = tuple(instances)  # those that can serve this request, in order of index
        self.group = 0  # number of that set of instances, for who keeps a count of each; one model has one
        self.now_ps = 0
        self.priority = NO_PRIORITY  # of the request that is being routed
        self.explain = False  # whether somebody reads the scorecards of routes
        self._tenants: Mapping[str, TenantView] | None = None
        self._totals: Totals | None = None

    @property
    def now(self) -> float:
        return self.now_ps / PS_PER_SECOND

    @property
    def tenants(self) -> Mapping[str, TenantView]:
        if self._tenants is None:
            raise undeclared_signal("'cluster.tenants'", "tenants")
        return self._tenants

    @property
    def totals(self) -> Totals:
        if self._totals is None:
            raise undeclared_signal("'cluster.totals'", "totals")
        return self._totals

    def keep(self, tenants: Mapping[str, TenantView] | None, totals: Totals | None) -> None:
        """Set what the router maintains; None if no policy of the run declares it."""
        self._tenants = tenants
        self._totals = totals
