"""The router's record of sessions and their instances, limited to a maximum number of sessions."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated

from msgspec import Struct, field

from headway.policies.context import Context
from headway.policies.registry import Bounds
from headway.types import Request, Route
from headway.views.cluster import ClusterView
from headway.views.events import Event, Routed
from headway.views.instance import InstanceView

MaxSessions = Annotated[int, Bounds(1, 100_000_000, log=True)]


class Sessions(Struct, eq=False):
    """The instances that each session is bound to, at most one instance for each model. If there are more sessions than
    `limit`, the least recently seen session is dropped."""

    limit: int
    # Sessions are in order of use, the least recently seen first.
    # The instances of a session are in order of binding, the latest first.
    bound: OrderedDict[str, tuple[InstanceView, ...]] = field(default_factory=OrderedDict)

    def find(self, session: str, instances: Sequence[InstanceView]) -> InstanceView | None:
        """Return the instance that the session is bound to. If this instance is not in `instances`, return None."""
        homes = self.bound.get(session)
        if homes is None:
            return None
        self.bound.move_to_end(session)
        for home in homes:
            index = home.index
            if index < len(instances) and instances[index] is home:
                return home
            if any(view is home for view in instances):
                return home
        return None

    def bind(self, session: str, view: InstanceView) -> None:
        bound = self.bound
        homes = bound.get(session, ())
        bound[session] = (view, *(home for home in homes if home.model != view.model)) if homes else (view,)
        bound.move_to_end(session)
        if len(bound) > self.limit:
            bound.popitem(last=False)


class Binds:
    """A policy that remembers sessions: each session is bound to the instance that got its latest request."""

    sessions: Sessions

    def observe(self, event: Event) -> None:
        if isinstance(event, Routed) and event.request.session is not None:
            self.sessions.bind(event.request.session, event.instance)


class SessionBound(Binds):
    """A policy that keeps each session on one instance. `least` chooses the instance for new sessions and for requests
    without a session."""

    max_sessions: int
    least: Callable[[Sequence[InstanceView]], InstanceView]

    def bind(self, context: Context) -> None:
        self.sessions = Sessions(self.max_sessions)

    def route(self, request: Request, cluster: ClusterView) -> Route:
        session = request.session
        if session is None:
            return Route(self.least(cluster.instances).id, "no session")
        view = self.sessions.find(session, cluster.instances)
        if view is not None:
            return Route(view.id, "bound")
        return Route(self.least(cluster.instances).id, "first sight")
