"""Groups of instances: all instances that serve the same model form a group. Each name of the model refers to this
group."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from headway.types import NEVER, SERVING, Priority, Request
from headway.views.instance import InstanceView


class Group:
    """The instances that serve a model, in order of index, and the requests that wait for them."""

    def __init__(self, number: int, names: tuple[str, ...], members: tuple[InstanceView, ...]) -> None:
        self.number = number
        self.names = names  # names of the model; empty if the instances serve every model
        self.members = members
        self.pools = tuple(dict.fromkeys(view.pool for view in members))
        self.instances = reachable(members)  # the members that can serve now
        self.empty_ps = NEVER  # time since which no member can serve; NEVER if a member can serve
        self.flow: Any = None
        # Requests that wait for an instance, by request id and oldest first. An OrderedDict removes its first entry
        # in constant time; repeated removals from a plain dict take quadratic time.
        self.stranded: OrderedDict[int, Stranded] = OrderedDict()
        self.delayed = 0  # number of requests for this model that admission has delayed

    def refresh(self, now_ps: int) -> None:
        """Update the list of members that can serve, after the state of a member has changed."""
        self.instances = reachable(self.members)
        self.empty_ps = NEVER if self.instances else min(self.empty_ps, now_ps)

    def follow(self, before: Group, now_ps: int) -> None:
        """Replace an earlier group that has the same names but other members. Take over its number, its queue and the
        requests that wait for an instance."""
        self.number, self.flow, self.stranded = before.number, before.flow, before.stranded
        self.empty_ps = before.empty_ps
        self.refresh(now_ps)

    @property
    def first_stranded(self) -> Stranded:
        """The request that has waited longest for an instance. At least one request must be waiting."""
        return next(iter(self.stranded.values()))

    @property
    def name(self) -> str:
        return self.names[0] if self.names else ""


class Stranded(Struct, frozen=True, gc=False):
    """A request that waits for an instance to start."""

    until_ps: int
    request: Request
    priority: Priority | None  # set if the request was routed before


OTHER: Final = {"prefill": "decode", "decode": "prefill"}


def reachable(members: Sequence[InstanceView]) -> tuple[InstanceView, ...]:
    """Return the instances that can serve. A prefill instance can serve only if a decode instance of its pool is
    serving, and vice versa."""
    serving = [view for view in members if view.state in SERVING]
    roles = {(view.pool, view.role): None for view in serving}
    return tuple(view for view in serving if (view.pool, OTHER.get(view.role, view.role)) in roles)


class ModelGroups:
    """The groups of a cluster, in order of their first instances, and the lookup of a group by model name.

    If two names are served by the same instances, they belong to one group. If no instance lists the models that it
    serves, one group has all instances and serves every model. A view without an id represents no instance, so it
    belongs to no group."""

    def __init__(self, views: Sequence[InstanceView]) -> None:
        self._form(views)

    def _form(self, views: Sequence[InstanceView]) -> None:
        self._groups = _group(views)
        # The dict is empty if no instance names its models: then the only group serves every model.
        self.by_name = {name: group for group in self._groups for name in group.names}
        self.only = None if self.by_name else self._groups[0]

    def of(self, model: str) -> Group | None:
        """Return the group of a model, or None if the cluster does not have the model."""
        return self.only or self.by_name.get(model)

    def regroup(self, views: Sequence[InstanceView], now_ps: int) -> list[Group]:
        """Form the groups again after instances have joined or left. Return the old groups that have no successor with
        the same names."""
        before = {group.names: group for group in self._groups}
        number = max(group.number for group in self._groups)
        self._form(views)
        for group in self._groups:
            if group.names in before:
                group.follow(before.pop(group.names), now_ps)
                continue
            number += 1
            group.number = number
            group.refresh(now_ps)
        return list(before.values())

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)


def _group(views: Sequence[InstanceView]) -> list[Group]:
    present = [view for view in views if view.id]
    if not any(view.serves for view in present):
        return [Group(0, (), tuple(present))]
    members: dict[str, list[InstanceView]] = {}
    for view in present:
        for name in view.serves:
            members.setdefault(name, []).append(view)
    names: dict[tuple[int, ...], list[str]] = {}
    for name, instances in members.items():
        names.setdefault(tuple(view.index for view in instances), []).append(name)
    return [Group(number, tuple(called), tuple(members[called[0]])) for number, called in enumerate(names.values())]
