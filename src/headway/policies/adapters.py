"""Routing by adapter: a request is best off where its adapter is, or soon will be."""

from __future__ import annotations

from typing import Annotated

from headway.policies.context import Candidates, Context
from headway.policies.registry import Bounds, policy
from headway.types import Request
from headway.views.cluster import ClusterView
from headway.views.events import Event, Finished, InstanceChanged, Routed

Score = Annotated[float, Bounds(0.0, 1.0)]


@policy("scorer", "adapter-affinity", reported=("adapters",))
class AdapterAffinity:
    """1 where the request's adapter is loaded or sent for, `free` where a slot is left, else 0. It is sent for where a
    request with it that this router sent there has not ended. 1 for all without an adapter, and where adapters are
    always there. Reported: the loaded adapters; exact: the router's own memory of what it sent."""

    free: Score = 0.5

    trusted = True

    def bind(self, context: Context) -> None:
        self._sent: list[dict[str, int]] = [{} for _ in context.instances]  # requests in flight by adapter

    def score(self, request: Request, candidates: Candidates, cluster: ClusterView) -> list[float]:
        adapter = request.adapter
        if adapter is None:
            return [1.0] * len(candidates)
        scores = []
        for view in candidates:
            slots, loaded, sent = view.adapter_slots, view.adapters, self._sent[view.index]
            if slots is None or adapter in loaded or adapter in sent:
                scores.append(1.0)
            else:
                coming = len([name for name in sent if name not in loaded])
                scores.append(self.free if len(loaded) + coming < slots else 0.0)
        return scores

    def observe(self, event: Event) -> None:
        if isinstance(event, InstanceChanged):
            return
        adapter = event.request.adapter
        if adapter is None:
            return
        sent = self._sent[event.instance.index]
        if isinstance(event, Routed):
            sent[adapter] = sent.get(adapter, 0) + 1
        elif isinstance(event, Finished):
            sent[adapter] -= 1
            if not sent[adapter]:
                del sent[adapter]
