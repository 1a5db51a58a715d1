"""Admission by deadline: what would come too late to be of use is turned away before it costs anything."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from headway.policies.classes import TTFT, class_targets
from headway.policies.registry import Bounds, policy
from headway.types import ADMIT, PS_PER_SECOND, Admit, Reject, Request
from headway.views.cluster import ClusterView

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
