"""Admission by deadline: what would come too late to be of use is turned away before it costs anything."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from headway.policies.context import Context
from headway.policies.targets import TTFT, class_targets
from headway.registry import Bounds, policy
from headway.types import (
    ADMIT,
    PS_PER_SECOND,
    Admit,
    ClusterView,
    Event,
    FirstToken,
    InstanceView,
    Reject,
    Request,
    Routed,
)

TOO_LATE = Reject("503: no instance would give the first token in time")


@policy("admission", "deadline", exact=("pending_prefill_tokens",), reported=())
class Deadline:
    """Turns requests away whose first token would come too late from every instance, by the estimate.

    It is due at arrival + the target of the request's class, or when its client gives up where that is earlier. A class
    without a target has the client's deadline alone, and without either is admitted. An instance would give it at now +
    `margin` × the time to compute the prefill tokens pending there and all of this prompt, in steps of the batch's
    token limit, each with the decodes that run there; at the very instant it is in time. Nothing of the prompt counts
    as cached, so warm prompts are judged too slow rather than too fast.

    Step times are the latency estimator's, without past. Pending tokens are the router's exact count; decodes are the
    requests that it has seen to have a first token and not to have ended, and their prompts are the context.
    """

    targets: dict[str, Any] = dataclasses.field(default_factory=lambda: dict(TTFT))  # TTFT by class
    margin: Annotated[float, Bounds(0.01, 100, log=True)] = 1.0  # by which the estimate is multiplied

    def __post_init__(self) -> None:
        self.target_ps = class_targets(self.targets, "targets")

    def bind(self, context: Context) -> None:
        self.step_seconds = context.estimator.step_seconds
        self.decoding: dict[int, int] = {}  # request -> its prompt tokens
        self.decodes = {view.index: 0 for view in context.instances}
        self.context = {view.index: 0 for view in context.instances}

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject:
        target = self.target_ps.get(request.slo_class)
        due_ps = request.deadline_ps
        if target is not None and (due_ps is None or request.arrival_ps + target < due_ps):
            due_ps = request.arrival_ps + target
        if due_ps is None:
            return ADMIT
        left = (due_ps - cluster.now_ps) / PS_PER_SECOND
        for view in cluster.instances:
            if self.margin * self.seconds(view, request.prompt_tokens) <= left:
                return ADMIT
        return TOO_LATE

    def seconds(self, view: InstanceView, tokens: int) -> float:
        """Until an instance has computed what is pending there and these tokens."""
        decodes, context = self.decodes.get(view.index, 0), self.context.get(view.index, 0)
        most = max(1, view.max_batch_tokens - decodes)  # tokens of prompts in a step
        steps, rest = divmod(view.pending_prefill_tokens + tokens, most)
        found = self.step_seconds(view, rest, decodes, context) if rest else 0.0
        return found + steps * self.step_seconds(view, most, decodes, context) if steps else found

    def observe(self, event: Event) -> None:
        if isinstance(event, Routed):
            return
        index, request = event.instance.index, event.request
        if isinstance(event, FirstToken):
            self.decoding[request.id] = request.prompt_tokens
            self.decodes[index] = self.decodes.get(index, 0) + 1
            self.context[index] = self.context.get(index, 0) + request.prompt_tokens
        elif request.id in self.decoding:
            self.decodes[index] -= 1
            self.context[index] -= self.decoding.pop(request.id)
