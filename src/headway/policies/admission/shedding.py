"""Admission that keeps no count of its own: by deadline, always, never, or by class and the load that is reported."""

import dataclasses
from typing import Annotated, Any

from headway.config.wording import cut, shown
from headway.errors import HeadwayError
from headway.policies.classes import CLASSES, TTFT, class_targets
from headway.policies.context import Context
from headway.policies.registry import Bounds, policy
from headway.types import ADMIT, PS_PER_SECOND, Admit, Reject, Request
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

SHEDDABLE = CLASSES[2:]  # batch and best-effort

QueueThreshold = Annotated[float, Bounds(0.1, 100_000, log=True)]
KvThreshold = Annotated[float, Bounds(0.01, 1.0)]

TIER = Reject("429: the load is too high for requests of this class")
SATURATED = Reject("429: every instance is saturated")
DRAWN = Reject("429: shed by lot, since the instances are near saturation")
REFUSED = Reject("503: nobody is admitted")
TOO_LATE = Reject("503: no instance would give the first token in time")


@policy("admission", "deadline", exact=("inflight_tokens", "pending_prefill_tokens"), reported=("running",))
class Deadline:
    """Turns requests away whose first token would come too late from every instance, by the estimate.

    It is due at arrival + the target of the request's class, or when its client gives up where that is earlier. A class
    without a target has the client's deadline alone, and without either is admitted. An instance would give it at now +
    `margin` × the view's `estimated_ttft` for all of this prompt: the time to compute the prefill tokens pending there
    and these, in steps of the batch's token limit, each with the sequences that run there; at the very instant it is in
    time. Nothing of the prompt counts as cached, so warm prompts are judged too slow rather than too fast.
    Instances that only generate give none.

    Step times are the latency estimator's, without past. Pending tokens and the decodes' context are the router's exact
    counts; the running sequences are reported.
    """

    targets: dict[str, Any] = dataclasses.field(default_factory=lambda: dict(TTFT))  # TTFT by class
    margin: Annotated[float, Bounds(0.01, 100, log=True)] = 1.0  # by which the estimate is multiplied

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
    """Admits every request.

    It reads nothing, so what a run then shows is the routing policy's doing alone.
    """

    def admit(self, request: Request, cluster: ClusterView) -> Admit:
        return ADMIT


@policy("admission", "never", reported=(), kind="control")
class Never:
    """Turns every request away: a control.

    It reads nothing. What a metric says of a run in which nobody was served, it says of this.
    """

    def admit(self, request: Request, cluster: ClusterView) -> Reject:
        return REFUSED


@policy("admission", "tier-shed", reported=("queued", "running"))
class TierShed:
    """Turns low classes away while the most loaded instance has more than `max_load` requests.

    `classes` has the classes' names in order, the most important first; `keep` is the last of them that is always
    admitted. A class that is not among them is the lowest of all. Load is queue and batch as reported plus what was
    routed since that report, the highest of all instances.
    """

    classes: list[str] = dataclasses.field(default_factory=lambda: list(CLASSES))
    keep: str = "standard"
    max_load: Annotated[int, Bounds(0, 100_000)] = 128  # requests

    def __post_init__(self) -> None:
        if self.keep not in self.classes:
            known = cut(", ".join(self.classes)) or "none"
            raise HeadwayError(f"tier-shed: keep {shown(self.keep)} is not one of the classes; they are: {known}.")
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
    """Turns sheddable classes away while every instance is saturated, as the inference gateway does.

    An instance is saturated when more than `queue_threshold` requests wait at it or more than `kv_threshold` of its KV
    blocks are in use, both as reported; exactly at a threshold it is not. One that is not suffices to admit. Classes
    that are not in `sheddable` are always admitted; null makes every class sheddable.
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
    """Turns sheddable requests away by lot, the more likely the nearer the instances are to saturation.

    Saturation s is the mean over instances of max(queue ÷ `queue_threshold`, KV use ÷ `kv_threshold`), as reported. The
    probability is 0 up to `low`, 1 from `high` on, and ((s − low) ÷ (high − low)) to the `power` between. Each request
    of a class in `sheddable` (null: of every class) draws one number from the admission stream of the simulation seed
    whenever it is asked, needed or not. llm-d's admitter, min(300 s⁵, 1), is low 0, high 0.3196, power 5.
    """

    low: Annotated[float, Bounds(0, 100)] = 0.5
    high: Annotated[float, Bounds(0, 100)] = 1.0
    power: Annotated[int, Bounds(1, 16)] = 1
    queue_threshold: QueueThreshold = 5.0  # requests
    kv_threshold: KvThreshold = 0.8
    sheddable: list[str] | None = dataclasses.field(default_factory=lambda: list(SHEDDABLE))

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise HeadwayError(f"probabilistic: low must be less than high, got {self.low:g} and {self.high:g}.")

    def bind(self, context: Context) -> None:
        self.draw = context.rng("admission").random

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject:
        if self.sheddable is not None and request.slo_class not in self.sheddable:
            return ADMIT
        return DRAWN if self.draw() < self.probability(cluster) else ADMIT

    def probability(self, cluster: ClusterView) -> float:
        total = 0.0
        for view in cluster.instances:
            total += self.pressure(view)
        saturation = total / len(cluster.instances) if cluster.instances else self.high
        if saturation <= self.low:
            return 0.0
        if saturation >= self.high:
            return 1.0
        part = (saturation - self.low) / (self.high - self.low)
        chance = part
        for _ in range(self.power - 1):  # products alone, so that it is the same on every machine
            chance *= part
        return chance

    def pressure(self, view: InstanceView) -> float:
        return max(view.queued / self.queue_threshold, view.kv_used / view.kv_blocks / self.kv_threshold)
