"""A set of policies that can decide on a request: those in force, a candidate, or those that stand by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.policies.context import Context
from headway.policies.disaggregation import paired
from headway.policies.registry import EVERYTHING, declared
from headway.views.cluster import KEPT


class Arm:
    """What one request goes through. A stage that it does not name is that of the policies in force, and the queue is
    everybody's."""

    __slots__ = ("admission", "failures", "name", "permit", "priority", "routing", "stages")

    def __init__(self, name: str, policies: Mapping[str, Any], context: Context, live: Arm | None = None) -> None:
        own = {stage: policies[stage] for stage in ("admission", "priority", "routing") if stage in policies}
        if "routing" in own:
            own["routing"] = paired(own["routing"], context.instances)
        self.name, self.failures = name, 0
        self.stages = tuple(own.values())  # its own
        self.admission, self.priority, self.routing = (
            own[stage] if stage in own else getattr(live, stage) for stage in ("admission", "priority", "routing")
        )
        self.permit = getattr(self.admission, "permit", None)

    @property
    def kept(self) -> list[str]:
        """What they read of the router's own past."""
        return kept(self.stages)


def kept(policies: tuple[Any, ...]) -> list[str]:
    read = [signal for policy in policies for signal in declared(policy).exact]
    return list(KEPT) if EVERYTHING[0] in read else [name for name in KEPT if name in read]
