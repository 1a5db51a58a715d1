"""Priority policies: they set the importance of an admitted request for routing and for the instance's scheduler.

Each request is scored once, and its score is compared with scores that were computed at other times. So the order of
two scores must not depend on when they were computed. Hints are values at the time of scoring: `slack_s` is the seconds
until the first token is due, `waited_s` the seconds since arrival, and `weight` the weight of the tenant.
"""

import dataclasses
from math import isfinite
from typing import Annotated, Final

from headway.config.wording import cut, shown
from headway.errors import HeadwayError
from headway.policies.classes import TTFT, ClassTargets, OneDuration, class_targets, exact_weights
from headway.policies.context import Context
from headway.policies.registry import Bounds, policy
from headway.types import NO_PRIORITY, PS_PER_SECOND, Priority, Request
from headway.views.cluster import ClusterView
from headway.views.events import Event, Finished, InstanceChanged, Routed

SCORES: Final = {"realtime": 2.0, "standard": 1.0, "batch": 0.0, "best-effort": -1.0}
HIGHEST: Final = 1e6

Score = Annotated[float, Bounds(-HIGHEST, HIGHEST)]


def check_scores(scores: dict[str, float], where: str) -> None:
    for name, score in scores.items():
        if not (isfinite(score) and abs(score) <= HIGHEST):
            raise HeadwayError(f"{where}.{cut(name)}: must lie between -1e6 and 1e6, got {shown(score)}.")


@policy("priority", "none", reported=())
class NoPriority:
    """Gives every request the same priority."""

    def prioritise(self, request: Request, cluster: ClusterView) -> Priority:
        return NO_PRIORITY


@policy("priority", "by-class", reported=())
class ByClass:
    """Gives each request the score of its class.

    `scores` maps classes to scores; other classes get `other`. It reads no signal.
    """

    scores: dict[str, float] = dataclasses.field(default_factory=lambda: dict(SCORES))
    other: Score = 0.0

    def __post_init__(self) -> None:
        check_scores(self.scores, "scores")
        self.by_class = {name: Priority(score, reason=f"class {name}") for name, score in self.scores.items()}
        self.rest = Priority(self.other, reason="other class")

    def prioritise(self, request: Request, cluster: ClusterView) -> Priority:
        return self.by_class.get(request.slo_class, self.rest)


@policy("priority", "slo-deadline", reported=())
class SloDeadline:
    """Prefers the request with the least slack: the one whose first token is due first.

    score = −(arrival + the target of its class), in seconds. So at any time the request with the least time left has
    the highest score. A class that is not in `targets` is due `other` after arrival. Hint: slack_s, the time left,
    negative if the request is late. It reads no signal.
    """

    targets: ClassTargets = dataclasses.field(default_factory=lambda: dict(TTFT))  # TTFT by class
    other: OneDuration = "1h"

    def __post_init__(self) -> None:
        self.target_ps = class_targets(self.targets, "targets")
        self.other_ps = class_targets({"other": self.other}, "slo-deadline")["other"]

    def prioritise(self, request: Request, cluster: ClusterView) -> Priority:
        due_ps = request.arrival_ps + self.target_ps.get(request.slo_class, self.other_ps)
        hints = {"slack_s": (due_ps - cluster.now_ps) / PS_PER_SECOND}
        return Priority(-due_ps / PS_PER_SECOND, hints, "deadline of the first token")


@policy("priority", "shortest-prompt", reported=())
class ShortestPrompt:
    """Prefers short prompts: score = −prompt tokens. It reads no signal. Long prompts may starve."""

    def prioritise(self, request: Request, cluster: ClusterView) -> Priority:
        return Priority(-float(request.prompt_tokens), reason="length of the prompt")


@policy("priority", "aging", reported=())
class Aging:
    """Prefers important classes and requests that have waited long.

    priority = class score + `per_second` × the seconds since arrival. All requests age at the same rate, so the order
    of two requests never changes, and score = class score − `per_second` × arrival in seconds gives the same order at
    any time. A request overtakes a more important one that arrives more than (difference of the class scores ÷
    `per_second`) seconds later. Hint: waited_s, the seconds waited so far. It reads no signal.
    """

    scores: dict[str, float] = dataclasses.field(default_factory=lambda: dict(SCORES))
    other: Score = 0.0
    per_second: Annotated[float, Bounds(0, 1000)] = 0.1

    def __post_init__(self) -> None:
        check_scores(self.scores, "scores")

    def prioritise(self, request: Request, cluster: ClusterView) -> Priority:
        base = self.scores.get(request.slo_class, self.other)
        waited = (cluster.now_ps - request.arrival_ps) / PS_PER_SECOND
        return Priority(
            base - self.per_second * (request.arrival_ps / PS_PER_SECOND), {"waited_s": waited}, "class and age"
        )


@policy("priority", "tenant-weighted", reported=())
class TenantWeighted:
    """Prefers tenants with few requests in flight for their weight: score = weight ÷ (1 + requests in flight).

    `weights` are by tenant; others have 1. Requests of the tenant are in flight from routing until they end; the
    request itself is not counted. Hint: weight, the weight of the tenant. It reads no signal.
    """

    weights: dict[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        exact_weights(self.weights, "weights")
        self.hints = {tenant: {"weight": weight} for tenant, weight in self.weights.items()}
        self.even = {"weight": 1.0}

    def bind(self, context: Context) -> None:
        self.inflight: dict[str, int] = {}

    def prioritise(self, request: Request, cluster: ClusterView) -> Priority:
        hints = self.hints.get(request.tenant, self.even)
        return Priority(hints["weight"] / (1 + self.inflight.get(request.tenant, 0)), hints, "share of the tenant")

    def observe(self, event: Event) -> None:
        if isinstance(event, InstanceChanged):
            return
        tenant = event.request.tenant
        if isinstance(event, Routed):
            self.inflight[tenant] = self.inflight.get(tenant, 0) + 1
        elif isinstance(event, Finished):
            self.inflight[tenant] -= 1
