"""RouteSim's policies, based on the router's beliefs: cache against load, sticky sessions, decaying costs.

Load is the *effective* load, which counts each outstanding request once: the reported queue and batch, plus the
requests routed since that report. RouteSim's design does not say how to break ties; here the lowest index wins.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS, Believer, BlockTokens, Context, LruBlocks
from headway.policies.registry import Bounds, policy
from headway.policies.scorecards import single_score_card
from headway.policies.sessions import MaxSessions, SessionBound
from headway.types import PS_PER_SECOND, Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

Share = Annotated[float, Bounds(0.0, 1.0)]
MaxLoad = Annotated[float | None, Bounds(0.0, 1.0)]  # None: no limit; cached blocks count at any load
Weight = Annotated[float, Bounds(0, 1000)]
LOAD = ("queued", "running")


def least_outstanding(instances: Sequence[InstanceView]) -> InstanceView:
    """Return the instance with the lowest effective load. On a tie, return the instance with the lowest index."""
    loads = [view.effective_load for view in instances]
    return instances[loads.index(min(loads))]


@policy("routing", "least-outstanding", exact=["routed_since_report"], reported=LOAD, kind="extra")
class LeastOutstanding:
    """Sends each request to the instance with the fewest queued and running requests.

    Load = reported queue + reported batch + requests routed since that report. With `effective_load: outstanding`, the
    requests that ended since the report are subtracted, but load is at least the number of requests in flight. Ties:
    lowest index. With reports that are always fresh and `effective_load: snapshot`, it differs from `least-loaded` only
    if a request ends at the instant at which another arrives: the report no longer counts the ended request, but the
    router's own count still does.
    """

    def route(self, request: Request, cluster: ClusterView) -> Route:
        return Route(least_outstanding(cluster.instances).id, "lowest effective load")


@policy("routing", "prefix-aware", exact=["prefix_index", "routed_since_report"], reported=LOAD, kind="extra")
class PrefixAware(Believer):
    """Weighs whether the request's shared prefix is believed cached, as 1 or 0, against load.

    score = cache_weight × has_prefix + (1 − cache_weight) × (1 − load); the highest wins. has_prefix is 1 if the router
    believes all full blocks of the declared shared prefix cached (without a declaration: the first block) and load <
    `max_load`, else 0. load = min(1, effective load ÷ the instance's queue limit). The effective load is as reported
    plus requests routed since. If `max_load` is null, load does not limit has_prefix: a prefix then stays on its
    instances however long their queues are.

    Ties: the lowest effective load ÷ queue limit, not limited to 1, then the lowest index. So full queues still differ.

    Limits: below `max_load`, a cached prefix outweighs any queue, and the queue limit is 256 by default. If all prompts
    of a trace share a prefix, or one instance served alone for a while, that instance keeps the requests until its
    queue is long. Set the cluster's `max_queue` to the number of requests that an instance can serve in time.
    """

    cache_weight: Share = 0.8
    max_load: MaxLoad = 0.9
    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances = cluster.instances
        size = self.block_tokens
        weight = self.cache_weight
        max_load = math.inf if self.max_load is None else self.max_load
        rest = 1.0 - weight
        prefix_blocks = min(request.shared_prefix_tokens, request.prompt_tokens) // size or 1
        hits = self.matches(request.path)
        loads = [view.effective_load / view.max_queue for view in instances]
        scores = []
        for view, load in zip(instances, loads, strict=True):
            score = rest * (1.0 - load) if load < 1.0 else 0.0
            has_prefix = hits[view.index] >= prefix_blocks and load < max_load
            scores.append(weight + score if has_prefix else score)
        view = instances[least_loaded_best(scores, loads)]
        card = None
        if cluster.explain:
            idle = [rest * (1.0 - load) if load < 1.0 else 0.0 for load in loads]
            holding = [hits[view.index] >= prefix_blocks for view in instances]
            cache = [weight if has and load < max_load else 0.0 for has, load in zip(holding, loads, strict=True)]
            card = single_score_card(instances, scores, view, terms={"cache": cache, "load": idle})
        return Route(view.id, "highest score", hits[view.index] * size, None, card)


def least_loaded_best(scores: list[float], loads: list[float]) -> int:
    """Return the position of the highest score. On a tie, return the one with the lowest load, then the first one."""
    best = max(scores)
    place = scores.index(best)
    if scores.count(best) > 1:
        for at in range(place + 1, len(scores)):
            if scores[at] == best and loads[at] < loads[place]:
                place = at
    return place


@policy("routing", "prefix-overlap", exact=["prefix_index", "routed_since_report"], reported=LOAD)
class PrefixOverlap(Believer):
    """Weighs the share of the prompt's blocks believed cached against load.

    score = cache_weight × cache + (1 − cache_weight) × (1 − load); the highest wins. cache = |prompt's blocks ∩ blocks
    believed cached| ÷ |prompt's blocks|, and 0 if load exceeds `max_load` (null: no limit). load = effective load ÷ the
    instance's queue limit. The effective load is as reported plus requests routed since. Ties: lowest index. A prompt
    without a full block goes to the instance with the lowest effective load.

    `match` selects how blocks are compared: `set` as an intersection, `leading` as the longest common prefix. Both give
    the same number, because an instance that is believed to hold a block is believed to hold all blocks before it.

    Limits: below `max_load`, a cached prompt outweighs most queues, and the queue limit is 256 by default. If one
    instance served alone for a while, it keeps the requests until its queue is long. Set the cluster's `max_queue` to
    the number of requests that an instance can serve in time.
    """

    cache_weight: Share = 0.7
    max_load: MaxLoad = 0.9
    match: Literal["set", "leading"] = "set"
    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances = cluster.instances
        size = self.block_tokens
        runs = request.path.blocks(size)
        if not runs:
            return Route(least_outstanding(instances).id, "no full block")
        total = runs[-1][1]
        weight = self.cache_weight
        max_load = math.inf if self.max_load is None else self.max_load
        rest = 1.0 - weight
        hits = self.matches(request.path)
        scores = []
        for view in instances:
            load = view.effective_load / view.max_queue
            cache = 0.0 if load > max_load else hits[view.index] / total
            scores.append(weight * cache + rest * (1.0 - load))
        view = instances[scores.index(max(scores))]
        card = None
        if cluster.explain:
            loads = [view.effective_load / view.max_queue for view in instances]
            shares = [hits[view.index] / total for view in instances]
            cached = [0.0 if load > max_load else weight * share for load, share in zip(loads, shares, strict=True)]
            idle = [rest * (1.0 - load) for load in loads]
            card = single_score_card(instances, scores, view, terms={"cache": cached, "load": idle})
        return Route(view.id, "highest score", hits[view.index] * size, None, card)


@policy("routing", "session-affinity", exact=["routed_since_report"], reported=LOAD)
class SessionAffinity(SessionBound):
    """Keeps a session on the instance that served its first request.

    A new session, or a request without one, goes to the instance with the lowest effective load: as reported plus
    requests routed since. Ties: lowest index. Load never breaks a binding. Beyond `max_sessions` the least recently
    seen session is forgotten.
    """

    max_sessions: MaxSessions = 100_000
    least = staticmethod(least_outstanding)


@policy("routing", "cost-escalation", reported=["queued", "kv_used"], kind="extra")
class CostEscalation:
    """Charges an instance for each request it gets, lets the charges decay, and picks the cheapest.

    Before each decision, cost ← cost × exp(−decay × seconds since the last decision). The instance with the lowest cost
    wins, and is charged base + queue_weight × queue + kv_weight × KV utilisation, as last reported. Costs are rounded
    to billionths, so that they are the same on every machine. Ties: lowest index.

    Limits: charges decay whether or not the requests have ended, so a slow instance gets requests until its queue is
    long. Use `least-loaded`.
    """

    decay: Annotated[float, Bounds(0, 1000)] = 0.1
    base: Weight = 1.0
    queue_weight: Weight = 0.5
    kv_weight: Weight = 2.0

    def bind(self, context: Context) -> None:
        self.costs = [0] * len(context.instances)
        self.last_ps = 0

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances = cluster.instances
        costs = self.costs
        elapsed_ps = cluster.now_ps - self.last_ps
        if elapsed_ps:
            factor = math.exp(-self.decay * (elapsed_ps / PS_PER_SECOND))
            costs = self.costs = [int(cost * factor + 0.5) for cost in costs]
            self.last_ps = cluster.now_ps
        offers = [costs[view.index] for view in instances]
        view = instances[offers.index(min(offers))]
        charge = self.base + self.queue_weight * view.queued + self.kv_weight * (view.kv_used / view.kv_blocks)
        costs[view.index] += int(charge * 1e9 + 0.5)
        card = single_score_card(instances, offers, view, lowest_wins=True) if cluster.explain else None
        return Route(view.id, "lowest cost", scorecard=card)
