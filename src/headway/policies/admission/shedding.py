"""Admission policies without state: they admit always, never, by deadline, or by SLO class and reported load."""

import dataclasses
from typing import Annotated

from headway.config.wording import cut, shown
from headway.errors import HeadwayError
from headway.policies.classes import CLASSES, TTFT, ClassTargets, class_targets
from headway.policies.context import Context
from headway.policies.registry import Bounds, policy
from headway.types import ADMIT, PS_PER_SECOND, Admit, Reject, Request
from headway.views.cluster import ClusterView

SHEDDABLE = CLASSES[2:]  # batch and best-effort

QueueThreshold = Annotated[float, Bounds(0.1, 100_000, log=True)]
KvThreshold = Annotated[float, Bounds(0.01, 1.0)]

TIER = Reject("429: the load is too high for requests of this class")
SATURATED = Reject("429: the model is saturated")
DRAWN = Reject("429: shed at random, since the model is near saturation")
REFUSED = Reject("503: the policy admits no requests")
TOO_LATE = Reject("503: the first token would come too late")


@policy("admission", "deadline", exact=("inflight_tokens", "pending_prefill_tokens"), reported=("running",))
class Deadline:
    """Rejects a request if, by the estimate, no instance can generate its first token in time.

    The first token is due at arrival + the target of the request's class, or at the client's deadline if that is
    earlier. A request with neither is admitted. An instance is in time if now + `margin` × its `estimated_ttft` for the
    whole prompt is at or before that instant. The estimate is the time to compute this prompt and the prefill tokens
    that are pending at the instance. Each step computes as many tokens as the batch allows, and decodes the running
    sequences. The estimate assumes that nothing of the prompt is cached, so it is too high for warm prompts. Decode
    instances never count as in time. Pending tokens and decode context are the router's exact counts; the running
    sequences are reported.
    """

    targets: ClassTargets = dataclasses.field(default_factory=lambda: dict(TTFT))  # TTFT target of each class
    margin: Annotated[float, Bounds(0.01, 100, log=True)] = 1.0  # factor by which the estimate is multiplied

    def __post_init__(self) -> None:
        self.target_ps = class_targets(self.targets, "targets")

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject:
        target = self.target_ps.get(request.slo_class)
        due_ps = request.deadline_ps
        if target is not None and (due_ps is None or request.arrival_ps + target < due_ps):
            due_ps = request.arrival_ps + target
        if due_ps is None:
            return ADMIT
        left = (due_ps - cluster.now_ps) / PS_PER_SECOND
        for view in cluster.instances:
            if view.role != "decode" and self.margin * view.estimated_ttft(request.prompt_tokens) <= left:
                return ADMIT
        return TOO_LATE


@policy("admission", "always", reported=())
class Always:
    """Admits every request; it reads no signal."""

    def admit(self, request: Request, cluster: ClusterView) -> Admit:
        return ADMIT


@policy("admission", "never", reported=(), kind="control")
class Never:
    """Rejects every request and reads no signal: a control for metrics when no request is served."""

    def admit(self, request: Request, cluster: ClusterView) -> Reject:
        return REFUSED


@policy("admission", "tier-shed", reported=("queued", "running"))
class TierShed:
    """Rejects low classes while the most loaded instance has more than `max_load` requests.

    `classes` lists the SLO classes, the most important first. Those up to and including `keep` are always admitted; a
    class that is not listed ranks last. Load is queue and batch as reported, plus requests routed since that report.
    """

    classes: list[str] = dataclasses.field(default_factory=lambda: list(CLASSES))
    keep: str = "standard"
    max_load: Annotated[int, Bounds(0, 100_000)] = 128  # number of requests

    def __post_init__(self) -> None:
        if self.keep not in self.classes:
            known = cut(", ".join(self.classes)) or "none"
            raise HeadwayError(f"tier-shed: keep: {shown(self.keep)} is not in `classes`, which has: {known}.")
        self.always_admitted = frozenset(self.classes[: self.classes.index(self.keep) + 1])

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject:
        if request.slo_class in self.always_admitted:
            return ADMIT
        limit = self.max_load
        for view in cluster.instances:
            if view.effective_load > limit:
                return TIER
        return ADMIT


@policy("admission", "saturation", reported=("queued", "kv_used"))
class Saturation:
    """Rejects sheddable classes while every instance is saturated, as the inference gateway does.

    An instance is saturated if, as reported, more than `queue_threshold` requests are queued or more than
    `kv_threshold` of its KV blocks are in use. Classes that are not in `sheddable` are always admitted; null makes
    every class sheddable.
    """

    queue_threshold: QueueThreshold = 5.0  # requests
    kv_threshold: KvThreshold = 0.8
    sheddable: list[str] | None = dataclasses.field(default_factory=lambda: list(SHEDDABLE))

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject:
        if self.sheddable is not None and request.slo_class not in self.sheddable:
            return ADMIT
        queue, kv = self.queue_threshold, self.kv_threshold
        for view in cluster.instances:
            if view.queued <= queue and view.kv_used / view.kv_blocks <= kv:
                return ADMIT
        return SATURATED


@policy("admission", "probabilistic", reported=("queued", "kv_used"))
class Probabilistic:
    """Rejects sheddable requests at random, with a probability that grows with the saturation of the instances.

    Saturation s is the mean over instances of max(queue ÷ `queue_threshold`, KV use ÷ `kv_threshold`), as reported. The
    probability is min(`k` × (s − `low`)^`power`, 1), and 0 up to `low`. The defaults are those of llm-d's
    probabilistic-admitter, which has no `low`: about 2 % at s = 0.15, 10 % at 0.2, 73 % at 0.3 and 100 % from 0.32 on.
    Every decision on a class in `sheddable` (null: every class) draws one number from the seeded admission stream.
    """

    low: Annotated[float, Bounds(0, 100)] = 0.0
    k: Annotated[float, Bounds(1e-6, 1e9, log=True)] = 300.0
    power: Annotated[int, Bounds(1, 16)] = 5
    queue_threshold: QueueThreshold = 5.0  # requests; llm-d: queueDepthThreshold
    kv_threshold: KvThreshold = 0.8  # llm-d: kvCacheUtilThreshold
    sheddable: list[str] | None = dataclasses.field(default_factory=lambda: list(SHEDDABLE))

    def bind(self, context: Context) -> None:
        self.draw = context.rng("admission").random

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject:
        if self.sheddable is not None and request.slo_class not in self.sheddable:
            return ADMIT
        return DRAWN if self.draw() < self.probability(cluster) else ADMIT

    def probability(self, cluster: ClusterView) -> float:
        total = 0.0
        for view in cluster.instances:
            total += max(view.queued / self.queue_threshold, view.kv_used / view.kv_blocks / self.kv_threshold)
        excess = total / len(cluster.instances) - self.low
        if excess <= 0.0:
            return 0.0
        chance = self.k
        for _ in range(self.power):  # pow() may differ between machines; products do not
            chance *= excess
        return min(chance, 1.0)
