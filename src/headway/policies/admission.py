"""Admission: whether a request may enter at all."""

from __future__ import annotations

from headway.registry import policy
from headway.types import ADMIT, Admit, ClusterView, Request


@policy("admission", "always", reported=())
class Always:
    """Admits every request.

    It reads nothing, so what a run then shows is the routing policy's doing alone.
    """

    def admit(self, request: Request, cluster: ClusterView) -> Admit:
        return ADMIT
