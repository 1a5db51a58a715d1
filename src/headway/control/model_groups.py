"""Which instances can serve a request: a group of them for each model, by every name that clients call it by."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from headway.types import NEVER, SERVING, Priority, Request
from headway.views.instance import InstanceView


class Group:
    """The instances that serve a model, in order of index, and the router's queue of requests that wait for them."""

    __slots__ = ("empty_ps", "flow", "instances", "members", "names", "number", "pools", "stranded")

    def __init__(self, number: int, names: tuple[str, ...], members: tuple[InstanceView, ...]) -> None:
        self.number = number
        self.names = names  # none where its instances serve whatever comes
        self.members = members
        self.pools = tuple(dict.fromkeys(view.pool for view in members))
        self.instances = reachable(members)  # those of them that requests can go to
        self.empty_ps = NEVER  # since when there are none
        self.flow: Any = None
        # Requests that found none, the longest waiting first; a dict whose first is taken again and again would walk
        # over all that were taken before.
        self.stranded: OrderedDict[int, Stranded] = OrderedDict()

    def refresh(self, now_ps: int) -> None:
        """The state of a member has changed."""
        self.instances = reachable(self.members)
        self.empty_ps = NEVER if self.instances else min(self.empty_ps, now_ps)

    def follow(self, before: Group, now_ps: int) -> None:
        """It takes the place of a group of the same names that had other members."""
        self.number, self.flow, self.stranded = before.number, before.flow, before.stranded
        self.empty_ps = before.empty_ps
        self.refresh(now_ps)

    @property
    def first_stranded(self) -> Stranded:
        """The one that has waited longest; there is one."""
        return next(iter(self.stranded.values()))

    @property
    def name(self) -> str:
        return self.names[0] if self.names else ""


class Stranded(Struct, frozen=True, gc=False):
    """A request that waits for an instance to come up."""

    until_ps: int
    request: Request
    priority: Priority | None  # where it was routed before


OTHER: Final = {"prefill": "decode", "decode": "prefill"}


def reachable(members: Sequence[InstanceView]) -> tuple[InstanceView, ...]:
    """Who can serve a request. Of a deployment that computes prompts apart, both halves must be there."""
    serving = [view for view in members if view.state in SERVING]
    roles = {(view.pool, view.role): None for view in serving}
    return tuple(view for view in serving if (view.pool, OTHER.get(view.role, view.role)) in roles)


class ModelGroups:
    """The groups of a cluster, in order of their first instances, and the one lookup of the group of a model.

    Where instances name the models that they serve, names that stand for the same instances are of one group. Where
    none does, one group has all instances and serves every model. A free place has no id and belongs to no group."""

    __slots__ = ("_groups", "by_name")

    def __init__(self, views: Sequence[InstanceView]) -> None:
        self._groups = _group(views)
        self.by_name = {name: group for group in self._groups for name in group.names}  # empty: any model is served

    def of(self, model: str) -> Group | None:
        """The instances that can serve a model; None where the cluster does not have it."""
        return self.by_name.get(model) if self.by_name else self._groups[0]

    def regroup(self, views: Sequence[InstanceView], now_ps: int) -> list[Group]:
        """Group anew, since other instances have taken places or serve other models. A group of the same names goes on
        as it was; the groups whose names are gone are returned."""
        before = {group.names: group for group in self._groups}
        number = max(group.number for group in self._groups)
        self._groups = _group(views)
        for group in self._groups:
            if group.names in before:
                group.follow(before.pop(group.names), now_ps)
                continue
            number += 1
            group.number = number
            group.refresh(now_ps)
        self.by_name = {name: group for group in self._groups for name in group.names}
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
