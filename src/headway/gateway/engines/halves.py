"""Who computes prompts and who generates, now. Of a deployment that has lost one half, the other does both."""

from __future__ import annotations

from collections.abc import Sequence

from headway.control.model_groups import OTHER
from headway.types import SERVING
from headway.views.instance import InstanceView


def stand_in(views: Sequence[InstanceView], roles: Sequence[str]) -> bool:
    """Give each view its role of now; `roles` are those that were declared. True where any has changed."""
    serving = [view for view in views if view.id and view.state in SERVING]
    changed = False
    for view, role in zip(views, roles, strict=True):
        wanted = OTHER.get(role)
        if wanted is not None and not any(
            roles[other.index] == wanted and together(view, other) for other in serving if other is not view
        ):
            role = "both"
        if view.role != role:
            view.role = role
            changed = True
    return changed


def together(one: InstanceView, other: InstanceView) -> bool:
    """Whether they could serve a request as its two halves."""
    if one.pool != other.pool:
        return False
    return not one.serves or any(model in other.serves for model in one.serves)
