"""Who hears of a router's decisions, and which of them are taken out of its policies' hands."""

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from headway.policies.context import Context
from headway.types import Delay, Priority, Reject, Request, Route
from headway.views.cluster import ClusterView

Forced = Mapping[int, tuple[str, str | None]]  # by request: the target of its first decision, and where its prompt goes
UNFORCED: Final[Forced] = {}


class Journal(Protocol):
    """Hears of the decisions as they are taken, with their scorecards, before the instances' counts tell of them."""

    def bind(self, context: Context, cluster: ClusterView, reported: Collection[str]) -> None:
        """`reported` are the signals that a policy of the router reads, and that are therefore kept true."""

    def on_refused(self, now_ps: int, request: Request, verdict: Reject | Delay) -> None: ...

    def on_routed(self, now_ps: int, request: Request, route: Route, priority: Priority) -> None: ...

    def on_stopped(self, instance: int) -> None:
        """Whatever it had cached is gone."""
