"""The B3 family: LMetric, its controls that ignore the cache or the load, and hybrids that switch between rules.

All policies use the same quantities. `num_requests` is the number of requests in flight, waiting or running. `pending`
counts prompt tokens of the requests that have no first token yet; tokens that the router believes to be cached do not
count. Both numbers are the router's own exact counters. They change when a request is routed, generates its first
token, or ends. `hit` is the number of prompt tokens that the router believes to be cached: the longest matching prefix
of 512-token blocks. Only full blocks match, so `uncached` = prompt tokens − hit is never negative.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from operator import attrgetter
from typing import Annotated

from msgspec import Struct

from headway.policies.basic import LeastLoaded, least_loaded
from headway.policies.context import Believer, BlockTokens, Context, LruBlocks
from headway.policies.registry import Bounds, Usual, policy
from headway.policies.scorecards import single_score_card
from headway.policies.sessions import Binds, MaxSessions, SessionBound, Sessions
from headway.types import Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

LRU_BLOCKS = Usual(
    976
)  # about 500,000 tokens in blocks of 512 tokens; the usual 31,250 blocks of 16 tokens hold the same number
_inflight, _pending = attrgetter("inflight"), attrgetter("pending_prefill_tokens")
COUNTERS = ("inflight", "pending_prefill_tokens", "prefix_index")


def prefill_terms(instances: Sequence[InstanceView], uncached: list[int], joining: int = 0) -> Mapping[str, list[int]]:
    """Return the quantities that the scores combine, for scorecards. `joining` is 1 if this request counts too."""
    return {
        "pending_tokens": list(map(_pending, instances)),
        "uncached_tokens": uncached,
        "num_requests": [count + joining for count in map(_inflight, instances)],
    }


class Rotation(Struct, eq=False):
    """Finds the instance with the lowest key. If several instances have the same lowest key, they are chosen in turn.
    The turns are counted for each group of instances, and advance only on ties."""

    turns: dict[int, int] = {}  # index of a group of instances -> number of ties so far

    @property
    def ties(self) -> int:
        return sum(self.turns.values())

    def lowest(self, keys: Sequence[tuple[int, ...]], group: int) -> int:
        best = min(keys)
        place = keys.index(best)
        tied = keys.count(best)
        if tied > 1:
            turn = self.turns.get(group, 0)
            for _ in range(turn % tied):
                place = keys.index(best, place + 1)
            self.turns[group] = turn + 1
        return place


@policy("routing", "lmetric", exact=COUNTERS, reported=())
class LMetric(Believer):
    """Minimises the pending prefill tokens, including this request's uncached tokens, times the requests in flight.

    score = (pending + uncached) × num_requests; the lowest wins. Ties: lowest index. Every idle instance scores 0, so
    it wins regardless of its cache; `lmetric-plus-one`, the published form, avoids that.
    """

    block_tokens: BlockTokens = 512
    lru_blocks: LruBlocks = LRU_BLOCKS

    joining = 0  # 1 if `num_requests` includes this request, else 0

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances = cluster.instances
        size, joining = self.block_tokens, self.joining
        tokens = request.prompt_tokens
        hits = self.matches(request.path)
        scores = [
            (view.pending_prefill_tokens + tokens - hits[view.index] * size) * (view.inflight + joining)
            for view in instances
        ]
        view = instances[scores.index(min(scores))]
        card = None
        if cluster.explain:
            uncached = [tokens - hits[view.index] * size for view in instances]
            terms = prefill_terms(instances, uncached, joining)
            card = single_score_card(instances, scores, view, lowest_wins=True, terms=terms)
        return Route(view.id, "lowest score", hits[view.index] * size, None, card)


@policy("routing", "load-only", exact=["inflight"], reported=(), kind="control")
class LoadOnly(LeastLoaded):
    """Minimises requests in flight and ignores cache and session: the control for `lmetric`.

    score = num_requests, exact. Ties: lowest index. Light traffic therefore keeps going to instance 0 and hits its
    cache by accident; published results of this control contain that effect.
    """


@policy("routing", "sticky", exact=["inflight"], reported=(), kind="control")
class Sticky(SessionBound):
    """Binds each new session to the instance with the fewest requests in flight, regardless of later load.

    It is the upper bound of locality and the worst case of hot spots. A request without a session goes to the
    instance with the fewest requests in flight. Ties: lowest index. Bindings end if the instance cannot serve, or
    beyond `max_sessions`.
    """

    max_sessions: MaxSessions = 1_000_000
    least = staticmethod(least_loaded)


@policy("routing", "unified", exact=COUNTERS, reported=())
class Unified(Believer, Binds):
    """Keeps a session on its instance while the cache is warm and the load is not high, else decides by LMetric.

    It stays if hit ÷ prompt tokens > `min_hit_ratio` (strictly) and num_requests ≤ `overload_factor` × max(mean
    num_requests, 1). Otherwise the lowest (score, uncached, num_requests) wins, with score = (pending + uncached) ×
    num_requests. Ties: in rotation, by a counter that advances on ties only. The session is then bound to the chosen
    instance. Beyond `max_sessions` the least recently seen session is forgotten.
    """

    overload_factor: Annotated[float, Bounds(0, 1000)] = 2.0
    min_hit_ratio: Annotated[float, Bounds(0.0, 1.0)] = 0.5
    block_tokens: BlockTokens = 512
    lru_blocks: LruBlocks = LRU_BLOCKS
    max_sessions: MaxSessions = 1_000_000

    def bind(self, context: Context) -> None:
        super().bind(context)
        self.sessions = Sessions(self.max_sessions)
        self.ratio = Fraction(str(self.min_hit_ratio)).as_integer_ratio()
        self.factor = Fraction(str(self.overload_factor)).as_integer_ratio()
        self.rotation = Rotation()
        self.stayed = 0
        self.fell_back = 0

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances = cluster.instances
        size = self.block_tokens
        tokens = request.prompt_tokens
        hits = self.matches(request.path)
        session = request.session
        if session is not None:
            view = self.sessions.find(session, instances)
            if view is not None:
                hit = hits[view.index] * size
                if self.warm(hit, tokens) and self.calm(view, instances):
                    self.stayed += 1
                    return Route(view.id, "affinity", hit)
                self.fell_back += 1
        keys = []
        for view in instances:
            uncached = tokens - hits[view.index] * size
            requests = view.inflight
            keys.append(((view.pending_prefill_tokens + uncached) * requests, uncached, requests))
        view = instances[self.rotation.lowest(keys, cluster.group)]
        card = None
        if cluster.explain:
            terms = prefill_terms(instances, [uncached for _, uncached, _ in keys])
            card = single_score_card(instances, [key[0] for key in keys], view, lowest_wins=True, terms=terms)
        return Route(view.id, "lmetric", hits[view.index] * size, None, card)

    def warm(self, hit: int, tokens: int) -> bool:
        """Return whether hit / max(tokens, 1) > min_hit_ratio."""
        part, whole = self.ratio
        return hit * whole > part * max(tokens, 1)

    def calm(self, view: InstanceView, instances: Sequence[InstanceView]) -> bool:
        """Return whether num_requests <= overload_factor * max(mean num_requests, 1)."""
        part, whole = self.factor
        count = len(instances)
        total = sum([other.inflight for other in instances])
        return view.inflight * count * whole <= part * max(total, count)

    def metrics(self) -> dict[str, float]:
        return {"unified_stayed": self.stayed, "unified_fell_back": self.fell_back, "unified_ties": self.rotation.ties}


@policy("routing", "lmetric-plus-one", exact=COUNTERS, reported=(), kind="extra")
class LMetricPlusOne(LMetric):
    """Minimises pending prefill tokens times the batch size with this request: LMetric as published.

    score = (pending + uncached) × (num_requests + 1); the lowest wins. Unlike with `lmetric`, idle instances do not
    score 0, so among idle ones the warmest cache wins. Ties: lowest index.
    """

    joining = 1


@policy("routing", "least-prefill-work", exact=COUNTERS, reported=())
class LeastPrefillWork(Believer):
    """Minimises the prefill tokens that an instance has left to compute, including this request's uncached tokens.

    The lowest (pending + uncached, num_requests) wins. Ties: in rotation, by a counter that advances on ties only.
    """

    block_tokens: BlockTokens = 512
    lru_blocks: LruBlocks = LRU_BLOCKS

    def bind(self, context: Context) -> None:
        super().bind(context)
        self.rotation = Rotation()

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances = cluster.instances
        size = self.block_tokens
        tokens = request.prompt_tokens
        hits = self.matches(request.path)
        keys = [(view.pending_prefill_tokens + tokens - hits[view.index] * size, view.inflight) for view in instances]
        view = instances[self.rotation.lowest(keys, cluster.group)]
        card = None
        if cluster.explain:
            terms = prefill_terms(instances, [tokens - hits[view.index] * size for view in instances])
            card = single_score_card(instances, [work for work, _ in keys], view, lowest_wins=True, terms=terms)
        return Route(view.id, "least prefill work", hits[view.index] * size, None, card)
