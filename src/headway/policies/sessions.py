"""The router's memory of sessions: where each of them belongs, bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

from headway.registry import Bounds
from headway.types import InstanceView

MaxSessions = Annotated[int, Bounds(1, 100_000_000, log=True)]


class Sessions:
    """Which instance each session is bound to. Beyond the limit the session not seen for longest is forgotten."""

    __slots__ = ("bound", "limit")

    def __init__(self, limit: int) -> None:
        self.bound: OrderedDict[str, int] = OrderedDict()
        self.limit = limit

    def find(self, session: str, instances: Sequence[InstanceView]) -> InstanceView | None:
        """The session's instance, where it is bound and its instance can serve."""
        index = self.bound.get(session)
        if index is None:
            return None
        self.bound.move_to_end(session)
        if index < len(instances) and instances[index].index == index:
            return instances[index]
        return next((view for view in instances if view.index == index), None)

    def bind(self, session: str, view: InstanceView) -> None:
        bound = self.bound
        bound[session] = view.index
        bound.move_to_end(session)
        if len(bound) > self.limit:
            bound.popitem(last=False)
