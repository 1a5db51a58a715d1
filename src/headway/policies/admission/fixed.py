"""The two answers that hang on nothing."""

from __future__ import annotations

from headway.policies.registry import policy
from headway.types import ADMIT, Admit, Reject, Request
from headway.views.cluster import ClusterView

REFUSED = Reject("503: nobody is admitted")


@policy("admission", "always", reported=())
class Always:
    """Admits every request.

    It reads nothing, so what a run then shows is the routing policy's doing alone.
    """

    def admit(self, request: Request, cluster: ClusterView) -> Admit:
        return ADMIT


@policy("admission", "never", reported=(), kind="control")
class Never:
    """Turns every request away: a control.

    It reads nothing. What a metric says of a run in which nobody was served, it says of this.
    """

    def admit(self, request: Request, cluster: ClusterView) -> Reject:
        return REFUSED
