"""A routing policy in ten lines: the instance with the fewest prompt tokens in flight."""

from headway import ClusterView, Request, Route


class FewestTokens:
    """Sends each request to the instance with the fewest prompt tokens in flight; ties: lowest index."""

    def route(self, request: Request, cluster: ClusterView) -> Route:
        return Route(min(cluster.instances, key=lambda view: view.inflight_tokens).id)
