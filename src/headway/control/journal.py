"""The interface of journals, which record a router's decisions. Also the type of forced decisions, which replace the
policy's choice of an instance."""

from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from headway.policies.context import Context
from headway.types import Delay, Priority, Reject, Request, Route
from headway.views.cluster import ClusterView

Target = tuple[str, str | None]  # (target, prefill instance)
# Request id -> forced target of its first route, or a function that returns it at this route. If the function returns
# None, the route is that of the policy.
Forced = Mapping[int, Target | Callable[[], Target | None]]
UNFORCED: Final[Forced] = {}


class Journal(Protocol):
    """Records each decision with its scorecard. A decision is recorded before it changes the counts in the views, so
    that the journal sees the same counts as the policy."""

    def bind(self, context: Context, cluster: ClusterView, reported: Collection[str]) -> None:
        """Connect the journal to a router. `reported` lists the reported signals that the router's policies read. The
        values of these signals are up to date; other reported signals may not be maintained."""

    def on_refused(self, now_ps: int, request: Request, verdict: Reject | Delay) -> None: ...

    def on_prioritised(self, now_ps: int, request: Request, priority: Priority) -> None:
        """Record the priority of an admitted request. The control plane does not call this method for
        `NO_PRIORITY`."""

    def on_routed(self, now_ps: int, request: Request, route: Route, priority: Priority) -> None: ...

    def on_stopped(self, instance: int) -> None:
        """Record that the cache of an instance is lost."""
