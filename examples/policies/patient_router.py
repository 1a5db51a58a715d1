"""A routing policy with a parameter, state, an index and figures of its own: see docs/write-a-policy.md."""

from typing import Annotated

from headway import Bounds, ClusterView, Context, Request, Route, policy


@policy("routing", "patient-prefix", exact=["inflight", "prefix_index"], reported=[])
class PatientPrefix:
    """Goes where the longest prefix is believed cached, unless that instance has `patience` requests more than the
    least loaded one.

    Ties: fewer requests in flight, then lowest index.
    """

    patience: Annotated[int, Bounds(0, 1000)] = 4  # requests in flight beyond the least loaded instance

    def bind(self, context: Context) -> None:
        self.block_tokens = context.block_tokens
        self.index = context.prefix_index(context.block_tokens, 31_250)
        self.gave_up = 0

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances = cluster.instances
        matched = self.index.matches(request.path)
        longest = min(instances, key=lambda view: (-matched[view.index], view.inflight, view.index))
        idlest = min(instances, key=lambda view: (view.inflight, view.index))
        chosen = longest
        if longest.inflight - idlest.inflight > self.patience:
            chosen = idlest
            self.gave_up += 1
        return Route(chosen.id, cached_tokens=matched[chosen.index] * self.block_tokens)

    def metrics(self) -> dict[str, float]:
        return {"gave_up": self.gave_up}
