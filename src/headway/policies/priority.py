"""Priority: how much an admitted request matters, for routing and for the instance's scheduler."""

from __future__ import annotations

from headway.registry import policy
from headway.types import NO_PRIORITY, ClusterView, Priority, Request


@policy("priority", "none", reported=())
class NoPriority:
    """All requests matter the same."""

    def prioritise(self, request: Request, cluster: ClusterView) -> Priority:
        return NO_PRIORITY
