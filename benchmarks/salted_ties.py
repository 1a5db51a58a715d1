"""A routing policy for `check_errors.py`: two salts decide differently and are equally good in expectation."""

from typing import Annotated

from headway import Bounds, ClusterView, Request, Route, policy

MIX = 0x9E3779B97F4A7C15  # an odd number with well mixed bits
MASK = 2**64 - 1


@policy("routing", "salted-ties", exact=["inflight"], reported=())
class SaltedTies:
    """Sends each request to the instance with the fewest requests in flight; the salt breaks ties."""

    salt: Annotated[int, Bounds(0, 10**9)] = 0

    def route(self, request: Request, cluster: ClusterView) -> Route:
        fewest = min(view.inflight for view in cluster.instances)
        ties = [view for view in cluster.instances if view.inflight == fewest]
        mixed = (request.id * MIX + self.salt * MIX * MIX) & MASK
        mixed = ((mixed ^ mixed >> 29) * MIX) & MASK
        return Route(ties[(mixed >> 32) % len(ties)].id, "fewest in flight")
