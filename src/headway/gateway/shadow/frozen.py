"""The cluster's state at one decision: views and prefix matches. Candidates that are asked later see this state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal

from headway.policies.context import Context, Figures
from headway.policies.prefix_index import PrefixIndex
from headway.types import Path, Priority, Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import EXACT, REPORTED, STATIC, InstanceView

if TYPE_CHECKING:
    from headway.control.plane import ControlPlane

# These signals are recorded with each decision. Static signals change rarely, so candidates see their current values.
CHANGING: Final = (*EXACT, *REPORTED)
changing_values: Callable[[InstanceView], tuple[Any, ...]] = attrgetter(*CHANGING)
static_values: Callable[[InstanceView], tuple[Any, ...]] = attrgetter(*STATIC)


class Shot:
    """A decision, and the state before the decision."""

    __slots__ = (
        "accesses",
        "estimate",
        "group",
        "matches",
        "now_ps",
        "places",
        "priority",
        "request",
        "roles",
        "route",
        "values",
    )

    def __init__(
        self,
        now_ps: int,
        request: Request,
        route: Route,
        priority: Priority,
        cluster: ClusterView,
        indexes: dict[Figures, PrefixIndex],
    ) -> None:
        self.now_ps, self.request, self.route, self.priority = now_ps, request, route, priority
        self.group, self.estimate = cluster.group, cluster._estimate
        self.places = [view.index for view in cluster.instances]
        self.values = [changing_values(view) for view in cluster.instances]
        self.roles = [view.role for view in cluster.instances]  # an engine without a partner has both roles for a time
        self.matches = {figures: index.matches(request.path) for figures, index in indexes.items()}
        self.accesses = {
            figures: index.last_accesses(request.path)
            for figures, index in indexes.items()
            if index.accesses is not None
        }


class FrozenIndex:
    """The live router's prefix index, as candidates see it. For the prompt of the current shot, it returns the matches
    that the shot recorded. For all other prompts, it asks the live index."""

    def __init__(self, stage: Stage, figures: Figures) -> None:
        self._stage, self._figures = stage, figures

    def matches(self, path: Path) -> list[int]:
        shot = self._stage.shot
        if shot is not None and path is shot.request.path and self._figures in shot.matches:
            return list(shot.matches[self._figures])
        return self._stage.indexes[self._figures].matches(path)

    def last_accesses(self, path: Path) -> list[int | None]:
        shot = self._stage.shot
        if shot is not None and path is shot.request.path and self._figures in shot.accesses:
            return list(shot.accesses[self._figures])
        return self._stage.indexes[self._figures].last_accesses(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage.indexes[self._figures], name)


class FrozenContext(Context):
    def __init__(self, stage: Stage, rng: Callable[[str], Random]) -> None:
        live = stage.control.context
        super().__init__(stage.views, rng, live.estimator, live.block_tokens)
        self.stage = stage

    def prefix_index(self, block_tokens: int, capacity: int | Literal["auto"], accesses: bool = False) -> Any:
        figures = self.stage.control.context.figures(block_tokens, capacity)
        self.stage.want(figures, accesses)
        return FrozenIndex(self.stage, figures)


class Stage:
    """Copies of the engines' views, for the candidates. Before a candidate decides, the copies are set to the state
    that a shot recorded. The prefix indexes are not copied: candidates use the live router's indexes, because only
    these record the real placements and KV events."""

    def __init__(self, control: ControlPlane) -> None:
        self.views = tuple(InstanceView(view.index, view.id) for view in control.ordered)
        for view in self.views:
            view._estimator = control.context.estimator
        self.cluster = ClusterView(self.views)
        self.indexes: dict[Figures, PrefixIndex] = {}
        self.shot: Shot | None = None
        self._changing: list[tuple[Any, ...]] = [()] * len(self.views)  # for each view: the values that were last set
        self._static: list[tuple[Any, ...]] = [()] * len(self.views)
        self.follow(control)

    def follow(self, control: ControlPlane) -> None:
        """Switch to the indexes of a new control plane."""
        self.control = control
        self.indexes = {
            figures: control.context.prefix_index(*figures, index.accesses is not None)
            for figures, index in self.indexes.items()
        }
        control.audience.update_indexes()
        for own, view in zip(self.views, control.ordered, strict=True):
            own.role, own._load_rule = view.role, view._load_rule

    def want(self, figures: Figures, accesses: bool = False) -> None:
        index = self.indexes.get(figures)
        if index is None or (accesses and index.accesses is None):
            self.indexes[figures] = self.control.context.prefix_index(*figures, accesses)
            self.control.audience.update_indexes()

    def show(self, shot: Shot) -> ClusterView:
        self.shot = shot
        views, cluster, state = self.views, self.cluster, self.control.audience.state
        for place, values, role in zip(shot.places, shot.values, shot.roles, strict=True):
            if values != self._changing[place]:
                self._changing[place] = values
                _set(views[place], CHANGING, values)
            fixed = static_values(self.control.ordered[place])
            if fixed != self._static[place]:
                self._static[place] = fixed
                _set(views[place], STATIC, fixed)
            views[place].role = role
            if state is not None and place in state.served:
                views[place]._recent = state.served[place]
        cluster.instances, cluster.group = tuple(views[place] for place in shot.places), shot.group
        cluster.now_ps, cluster.priority, cluster._estimate = shot.now_ps, shot.priority, shot.estimate
        cluster.keep(self.control.cluster._tenants, self.control.cluster._totals)
        return cluster

    def view(self, target: str, places: Sequence[int]) -> InstanceView | None:
        return next((self.views[place] for place in places if self.views[place].id == target), None)


def _set(view: InstanceView, names: Sequence[str], values: tuple[Any, ...]) -> None:
    for name, value in zip(names, values, strict=True):
        setattr(view, name, value)
