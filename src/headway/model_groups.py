"""Which instances can serve a request: a group of them for each model, by every name that clients call it by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.types import InstanceView


class Group:
    """The instances that serve a model, in order of index, and the router's queue of requests that wait for them."""

    __slots__ = ("flow", "instances", "name", "number")

    def __init__(self, number: int, name: str, instances: tuple[InstanceView, ...]) -> None:
        self.number = number
        self.name = name  # the first of its names
        self.instances = instances
        self.flow: Any = None


def grouped(views: Sequence[InstanceView]) -> tuple[list[Group], dict[str, Group] | None]:
    """The groups in order of their first instances, and each by its names; one group of all, and no names, where the
    instances serve whatever comes. Names that stand for the same instances are of one group."""
    if not any(view.serves for view in views):
        return [Group(0, "", tuple(views))], None
    members: dict[str, list[InstanceView]] = {}
    for view in views:
        for name in view.serves:
            members.setdefault(name, []).append(view)
    groups: dict[tuple[int, ...], Group] = {}
    by_name: dict[str, Group] = {}
    for name, instances in members.items():
        key = tuple(view.index for view in instances)
        if key not in groups:
            groups[key] = Group(len(groups), name, tuple(instances))
        by_name[name] = groups[key]
    return list(groups.values()), by_name
