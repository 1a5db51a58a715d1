"""Routing by a weighted sum of scorers. As in llm-d's scheduling profiles, filters may precede the scorers, and a
picker follows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from headway.config.keys import Form
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies import scorers as _scorers  # noqa: F401  (registers the scorers)
from headway.policies.context import Candidates, Context
from headway.policies.filters import highest
from headway.policies.parts import collect_metrics, combine_entries, combine_kinds, observer
from headway.policies.policy_schema import ScorersForm, policy_form
from headway.policies.profile import DEFAULT, PLACE, read_scorers
from headway.policies.registry import policy
from headway.policies.scorecards import Cuts, number_duplicates
from headway.policies.user_policies import outside
from headway.types import Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

FilterSpec = Annotated[Any, policy_form("filter")]
Score = Callable[[Request, Candidates, ClusterView], list[float]]
Keep = Callable[[Request, Candidates, ClusterView], Candidates]


@policy("routing", "weighted", exact=("prefix_index",), reported=("queued", "running", "kv_used"))
class Weighted:
    """Picks the instance with the highest weighted sum of scorers, each in [0, 1]; ties: lowest index.

    `scorers` is a mapping {prefix-affinity: 3, queue-depth: 2}, a list [{name: prefix-affinity, weight: 3, lru_blocks:
    31250}] or the text "prefix-affinity:3,queue-depth:2". Only the ratios of the weights count. A score outside [0, 1]
    is clamped, a missing one counts 0, NaN is an error. A filter that would drop every candidate is ignored, so filters
    never lose a request.

    It reads the signals that its scorers and filters read. The default profile reads queue, batch and KV use as
    reported, and the router's own prefix index.

    Limits: with the default profile, a fully cached prompt outweighs any queue while less than half of the KV blocks
    are in use. If all requests have the same prompt, one instance gets them all. Use `kv-aware-spill`, or give
    `queue-depth` more weight than `prefix-affinity`. Idle instances with equal KV use are equal, so cold prompts that
    arrive one at a time go to the lowest index. Add the scorer `no-hit-lru` to spread them.
    """

    scorers: Annotated[str | dict[str, Any] | list[Any], Form.of(ScorersForm())] = DEFAULT
    filters: Annotated[list[Any], Form.of(list[FilterSpec])] = dataclasses.field(default_factory=list)
    picker: Annotated[str | dict[str, Any], policy_form("picker")] = "max-score"

    def __post_init__(self) -> None:
        weighted_scorers = read_scorers(self.scorers)
        self._scorers = [scorer for scorer, _ in weighted_scorers]
        self._filters = [
            registry.build("filter", spec, f"policies.routing.filters[{at}]") for at, spec in enumerate(self.filters)
        ]
        self._picker = registry.build("picker", self.picker, "policies.routing.picker")
        self._parts = [*self._scorers, *self._filters, self._picker]
        self.weights = tuple(weight for _, weight in weighted_scorers)
        derived = [] if type(self) is Weighted else [type(self)]  # a derived class may read more signals
        self.entry = combine_entries(type(self), [*self._parts, *derived])
        self._combine = combiner([float(weight) for weight in self.weights])
        self._score: list[Score] = [
            partial(clamped_score, scorer) if outside(type(scorer)) else scorer.score for scorer in self._scorers
        ]
        self._keep: list[Keep] = [
            partial(checked_keep, part) if outside(type(part)) else part.keep for part in self._filters
        ]
        self._scorer_names = number_duplicates([part_name(part) for part in self._scorers])
        self._filter_names = number_duplicates([part_name(part) for part in self._filters])
        self._pick = None if part_name(self._picker) == "max-score" else partial(checked_pick, self._picker)
        self._reason = "highest score" if self._pick is None else f"picked by {part_name(self._picker)}"
        beliefs = [scorer.believed_tokens for scorer in self._scorers if hasattr(scorer, "believed_tokens")]
        self._believed: Callable[[InstanceView], int] | None = beliefs[0] if beliefs else None
        if (observe := observer(self._parts)) is not None:
            self.observe, self.observes = observe, combine_kinds(self._parts)

    def bind(self, context: Context) -> None:
        for part in self._parts:
            if hasattr(part, "bind"):
                part.bind(context)

    def route(self, request: Request, cluster: ClusterView) -> Route:
        candidates: Candidates = cluster.instances
        cuts = Cuts(candidates) if cluster.explain else None
        if self._keep:
            candidates = self.apply_filters(request, candidates, cluster, cuts)
        scores = [score(request, candidates, cluster) for score in self._score]
        totals = self._combine(scores)
        if self._pick is None:
            view = candidates[highest(totals)]
        else:
            view = candidates[self._pick(request, candidates, totals, cluster)]
        cached = self._believed(view) if self._believed is not None else 0
        if cuts is None:
            return Route(view.id, self._reason, cached)
        named = dict(zip(self._scorer_names, map(list, scores), strict=True))
        return Route(view.id, self._reason, cached, None, cuts.card(candidates, named, totals, view))

    def apply_filters(
        self, request: Request, candidates: Candidates, cluster: ClusterView, cuts: Cuts | None
    ) -> Candidates:
        for at, keep in enumerate(self._keep):
            left = tuple(keep(request, candidates, cluster))
            if cuts is not None:
                cuts.note(self._filter_names[at], candidates, left)
            candidates = left or candidates
        return candidates

    def metrics(self) -> dict[str, float]:
        return collect_metrics((f"policies.routing: {part_name(part)}", part) for part in self._parts)


def combiner(weights: list[float]) -> Callable[[list[list[float]]], list[float]]:
    """Return a function that computes the weighted sum of each candidate's scores, in the order of the scorers. With at
    most three scorers, one loop over the candidates is enough. This loop omits `strict=True`, because all lists have
    the same length and the check would take as long as the sum."""
    if len(weights) == 1:
        return lambda scores: scores[0]
    if len(weights) == 2:
        a, b = weights
        return lambda scores: [a * x + b * y for x, y in zip(*scores)]  # noqa: B905
    if len(weights) == 3:
        a, b, c = weights
        return lambda scores: [a * x + b * y + c * z for x, y, z in zip(*scores)]  # noqa: B905

    def combine(scores: list[list[float]]) -> list[float]:
        totals = [0.0] * len(scores[0])
        for weight, values in zip(weights, scores, strict=True):
            totals = [total + weight * value for total, value in zip(totals, values, strict=True)]
        return totals

    return combine


def part_name(part: Any) -> str:
    return str(part.entry.name)


def clamped_score(scorer: Any, request: Request, candidates: Candidates, cluster: ClusterView) -> list[float]:
    """Call a user's scorer, and check and clamp its values."""
    return clamp(scorer, scorer.score(request, candidates, cluster), request, len(candidates))


def clamp(scorer: Any, values: Any, request: Request, count: int) -> list[float]:
    """Return `count` scores in [0, 1]. Values outside this range are clamped, and missing values become 0."""
    where, right = f"{PLACE}.{part_name(scorer)}", "scores must be numbers from 0 to 1, one per candidate"
    if values is None:
        values = []
    elif isinstance(values, str | dict | set | frozenset) or not hasattr(values, "__iter__"):
        raise HeadwayError(f"{where}: {right}, got {shown(values)}, at request {request.id}.")
    scores = []
    for value in list(values)[:count]:
        if value is not None and (not isinstance(value, (int, float)) or value != value):
            raise HeadwayError(f"{where}: {right}, got {shown(value)}, at request {request.id}.")
        # Compare before the conversion: an int may be too large for a float.
        scores.append((1.0 if value >= 1 else float(value)) if value is not None and value > 0 else 0.0)
    return scores + [0.0] * (count - len(scores))


def checked_keep(part: Any, request: Request, candidates: Candidates, cluster: ClusterView) -> Candidates:
    """Call a user's filter, check its answer, and restore the order of the candidates."""
    answer = part.keep(request, candidates, cluster)
    if not isinstance(answer, list | tuple) or not all(isinstance(view, InstanceView) for view in answer):
        place = f"policies.routing.filters.{part_name(part)}"
        right = "keep must return a list of candidates"
        raise HeadwayError(f"{place}: {right}, got {shown(answer)}, at request {request.id}.")
    left = {view.index for view in answer}
    return [view for view in candidates if view.index in left]


def checked_pick(
    picker: Any, request: Request, candidates: Candidates, totals: list[float], cluster: ClusterView
) -> int:
    at = picker.pick(candidates, totals, cluster)
    if not isinstance(at, int) or not 0 <= at < len(candidates):
        place = f"policies.routing.picker.{part_name(picker)}"
        right = f"pick must return a position from 0 to {len(candidates) - 1}"
        raise HeadwayError(f"{place}: {right}, got {shown(at)}, at request {request.id}.")
    return at
