"""The basic routing policies: baselines for the other policies, and one that is bad on purpose."""

from collections.abc import Sequence

from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS, Believer, BlockTokens, Context, LruBlocks
from headway.policies.registry import policy
from headway.types import Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView


def least_loaded(instances: Sequence[InstanceView]) -> InstanceView:
    """Return the instance with the fewest requests in flight. On a tie, return the instance with the lowest index."""
    loads = [view.inflight for view in instances]
    return instances[loads.index(min(loads))]


@policy("routing", "round-robin", reported=())
class RoundRobin:
    """Sends requests to the instances in turn.

    The n-th request goes to candidate n mod N, regardless of its size and of the load. Each model has its own count.

    Limits: a slow instance gets as many requests as the others, so its queue grows without end. On real traces near
    their limit, an instance that gets several long answers in turn falls behind. Use `least-loaded`.
    """

    def bind(self, context: Context) -> None:
        self.counts: dict[int, int] = {}

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances, counts = cluster.instances, self.counts
        count = counts.get(cluster.group, 0)
        counts[cluster.group] = count + 1
        return Route(instances[count % len(instances)].id, "next in turn")


@policy("routing", "random", reported=(), kind="extra")
class Random:
    """Sends each request to an instance drawn uniformly at random, by one draw from the seeded routing stream.

    Limits: a slow instance gets as many requests as the others, so its queue grows without end. On real traces near
    their limit, an instance that gets several long prompts by chance falls behind. Use `power-of-two`.
    """

    def bind(self, context: Context) -> None:
        self.draw = context.rng("routing").random

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances = cluster.instances
        return Route(instances[int(self.draw() * len(instances))].id, "drawn at random")


@policy("routing", "least-loaded", exact=["inflight"], reported=())
class LeastLoaded:
    """Sends each request to the instance with the fewest requests in flight.

    Load is the router's own exact count, which is never stale. Ties: lowest index.
    """

    def route(self, request: Request, cluster: ClusterView) -> Route:
        return Route(least_loaded(cluster.instances).id, "fewest requests in flight")


@policy("routing", "always-busiest", exact=["inflight"], reported=(), kind="control")
class AlwaysBusiest:
    """Sends each request to the instance with the most requests in flight: a pathological control.

    Ties: lowest index, so one instance gets every request. A metric that does not rank this policy worst does not
    measure balance.

    Limits: this policy is meant to be the worst. All requests queue on one instance, always: in a healthy cluster,
    under overload, if all requests have the same prompt, while an instance is slow, unreachable or draining, with one
    instance left, and on real traces.
    """

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances = cluster.instances
        loads = [view.inflight for view in instances]
        return Route(instances[loads.index(max(loads))].id, "most requests in flight")


@policy("routing", "prefix-affinity", exact=["inflight", "prefix_index"], reported=(), kind="extra")
class PrefixAffinity(Believer):
    """Sends a prompt to an instance believed to hold all of its full blocks, and otherwise to the least loaded one.

    If an instance lacks one block of the prompt, it does not match. A prompt shorter than one block never matches. If
    several instances match, the least loaded one gets the request; load is the exact count of requests in flight. Ties:
    lowest index. The router believes that an instance holds the `lru_blocks` blocks that it sent there most recently.
    """

    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances = cluster.instances
        size = self.block_tokens
        runs = request.path.blocks(size)
        if runs:
            total = runs[-1][1]
            hits = self.matches(request.path)
            if total in hits:
                full = [view for view in instances if hits[view.index] == total]
                if full:
                    return Route(least_loaded(full).id, "full match", total * size)
            view = least_loaded(instances)
            return Route(view.id, "least loaded", hits[view.index] * size)
        return Route(least_loaded(instances).id, "least loaded")


@policy("routing", "least-kv", reported=["kv_used"], kind="extra")
class LeastKv:
    """Sends each request to the instance with the lowest KV-cache utilisation.

    Utilisation is the number of blocks that requests hold ÷ the number of all blocks, as last reported. Cached blocks
    that no request holds count as free. Ties: lowest index.

    Limits: between two reports every request goes to the same instance, which delays the many short requests of some
    traces. Queued requests hold no blocks, so the queue of a slow instance is invisible. Use `least-loaded`.
    """

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances = cluster.instances
        used = [view.kv_used / view.kv_blocks for view in instances]
        return Route(instances[used.index(min(used))].id, "lowest KV use")


@policy("routing", "power-of-two", exact=["inflight"], reported=())
class PowerOfTwo:
    """Draws two distinct instances at random and sends the request to the less loaded of the two.

    Load is the router's own exact count of requests in flight. Ties: lowest index of the two. Each request takes two
    draws from the seeded routing stream, or none if there is a single candidate.
    """

    def bind(self, context: Context) -> None:
        self.draw = context.rng("routing").random

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances = cluster.instances
        count = len(instances)
        if count == 1:
            return Route(instances[0].id, "only candidate")
        draw = self.draw
        low = int(draw() * count)
        high = int(draw() * (count - 1))
        if high >= low:
            high += 1
        else:
            low, high = high, low
        first, other = instances[low], instances[high]
        return Route(other.id if other.inflight < first.inflight else first.id, "less loaded of two draws")
