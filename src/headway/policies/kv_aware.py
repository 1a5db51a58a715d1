"""A routing policy with a linear score of four normalised terms. A stable hash breaks near-ties."""

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Final

from msgspec import Struct

from headway.errors import HeadwayError
from headway.hashing import ROOT
from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS, Believer, BlockTokens, Context, LruBlocks
from headway.policies.registry import Bounds, policy
from headway.policies.scorecards import single_score_card
from headway.types import Path, Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

Weight = Annotated[float, Bounds(0, 1000)]

ROUNDING = 1e-9  # larger than the rounding error of any score
MAX_PREFIXES: Final = 1024  # maximum number of prefixes whose hashes are cached
TERMS: Final = ("kv", "load", "power", "capacity")  # terms of the score, by the names of their weights
FEW: Final = 8  # with at most this number of instances, all of them are scored
_busy, _capacity, _watts = attrgetter("busy"), attrgetter("capacity"), attrgetter("watts")
_end = itemgetter(1)  # the end of a run


@policy("routing", "kv-aware", exact=["inflight", "prefix_index"], reported=["busy", "watts"], kind="extra")
class KvAware(Believer):
    """Scores cache overlap, idleness, low power and capacity with weights, and breaks near-ties by a stable hash.

    score = kv × overlap + load × (1 − util) + power × (1 − watts ÷ the fleet's highest watts) + capacity × capacity
    figure. The weights are not normalised.

    overlap = leading blocks believed cached ÷ blocks, over the full blocks of the first `prefix_tokens` tokens (null:
    the whole prompt), or 0 without a full block. util = max(requests in flight ÷ `max_concurrent`, busy share), at most
    1. If `max_concurrent` is null, it is the instance's batch limit. watts is a 30 s mean. The capacity figure is
    static, in [0, 1], from TP, dtype, memory and free model slots.

    Ties: among the instances within `epsilon` of the best score (inclusive), the highest hash of (instance id, prefix)
    wins, then the lowest index. So while instances score alike, equal prefixes go to the same one. The hash covers the
    prompt up to the last full block counted. Requests in flight are exact, the match is the router's belief, busy share
    and watts are as last reported.

    Limits: a cached prefix outweighs any load, because util is at most 1. If all requests have the same prompt or the
    same first `prefix_tokens` tokens, as with one system prompt, one instance gets every request while the others idle.
    This happens on Mooncake's conversation trace. If one instance serves alone for a while, or others drain, that
    instance holds all prefixes and gets all requests afterwards. On traces without shared prefixes, scores are nearly
    equal, and long prompts go to busy instances. Use `kv-aware-spill`, which compares whole prompts and leaves
    saturated instances.
    """

    kv: Weight = 0.55
    load: Weight = 0.25
    power: Weight = 0.10
    capacity: Weight = 0.10
    epsilon: Annotated[float, Bounds(0.0, 1.0)] = 0.01
    prefix_tokens: Annotated[int | None, Bounds(1, 1_000_000, log=True)] = 64
    max_concurrent: Annotated[int | None, Bounds(1, 100_000, log=True)] = None
    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS

    def __post_init__(self) -> None:
        check_weights("kv-aware", self.kv, self.load, self.power, self.capacity)
        if self.prefix_tokens is not None and self.prefix_tokens < self.block_tokens:
            wrong = f"{self.prefix_tokens} is less than one block of {self.block_tokens} tokens"
            raise HeadwayError(f"kv-aware: prefix_tokens: {wrong}. Use null for the whole prompt.")

    def bind(self, context: Context) -> None:
        super().bind(context)
        self.highest_uncached = self.load + self.power + self.capacity  # maximum score without a cached block
        self.rendezvous = Rendezvous()

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances, path = cluster.instances, request.path
        size = self.block_tokens
        runs = path.blocks(size)
        blocks = runs[-1][1] if runs else 0
        if self.prefix_tokens is not None and blocks > self.prefix_tokens // size:
            blocks = self.prefix_tokens // size
        hits = self.matches(path)
        peak = highest_watts(instances)
        among: Sequence[InstanceView] = instances
        terms = None
        if cluster.explain:
            terms = self.terms(instances, hits, blocks, peak)
            scores = self.totals(terms)
        else:
            among = holders(instances, hits)
            scores = self.scores(among, hits, blocks, peak)
        floor = max(scores) - self.epsilon - ROUNDING
        if among is not instances and floor <= self.highest_uncached:
            among = instances
            scores = self.scores(among, hits, blocks, peak)
            floor = max(scores) - self.epsilon - ROUNDING
        *others, best = sorted(scores)
        reason = "highest score"
        if not others or others[-1] < floor:
            view = among[scores.index(best)]
        else:
            reason = "near-tie, by hash"
            band = [view for view, score in zip(among, scores, strict=True) if score >= floor]
            view = self.rendezvous.pick(band, prefix_key(path, runs, blocks))
        card = None if terms is None else single_score_card(instances, scores, view, terms=terms)
        return Route(view.id, reason, hits[view.index] * size, None, card)

    def terms(
        self, instances: Sequence[InstanceView], hits: list[int], blocks: int, peak: float
    ) -> dict[str, list[float]]:
        """Return the values of the four terms of the score, before weights."""
        limit = self.max_concurrent
        held = [hits[view.index] for view in instances]
        loads = [view.inflight / (limit or view.max_batch_size) for view in instances]
        utils = map(max, loads, map(_busy, instances))
        return {
            "kv": [hit / blocks if hit < blocks else 1.0 for hit in held] if blocks else [0.0] * len(held),
            "load": [1.0 - util if util < 1.0 else 0.0 for util in utils],
            "power": [1.0 - watts / peak for watts in map(_watts, instances)],
            "capacity": list(map(_capacity, instances)),
        }

    def totals(self, terms: dict[str, list[float]]) -> list[float]:
        """Return the scores of these terms: the same as `scores`."""
        a, b, c, d = self.kv, self.load, self.power, self.capacity
        return [a * kv + b * idle + c * power + d * figure for kv, idle, power, figure in zip(*terms.values())]  # noqa: B905

    def scores(self, instances: Sequence[InstanceView], hits: list[int], blocks: int, peak: float) -> list[float]:
        kv, load, power, capacity = self.kv, self.load, self.power, self.capacity
        limit = self.max_concurrent
        scores = []
        for view in instances:
            util = view.inflight / (limit or view.max_batch_size)
            if (busy := view.busy) > util:
                util = busy
            if util > 1.0:
                util = 1.0
            hit = hits[view.index]
            overlap = (hit / blocks if hit < blocks else 1.0) if blocks else 0.0
            scores.append(
                kv * overlap + load * (1.0 - util) + power * (1.0 - view.watts / peak) + capacity * view.capacity
            )
        return scores


class Rendezvous(Struct, eq=False):
    """Breaks ties by rendezvous hashing. It caches the hashes of recent prefixes."""

    hashers: dict[str, Any] = {}  # instance id -> hash of the id
    bids: dict[int, dict[str, bytes]] = {}  # key of a recent prefix -> instance id -> hash that breaks ties

    def pick(self, band: list[InstanceView], key: int) -> InstanceView:
        """Choose an instance by rendezvous hashing: each instance bids `hashing.stable(id, key)`, and the highest bid
        wins."""
        known = self.bids.get(key)
        if known is None:
            if len(self.bids) >= MAX_PREFIXES:
                self.bids.clear()
            known = self.bids[key] = {}
        names = [view.id for view in band]
        if not known.keys() >= set(names):
            self.bid(known, names, key)
        bids = [known[name] for name in names]
        return band[bids.index(max(bids))]

    def bid(self, known: dict[str, bytes], names: list[str], key: int) -> None:
        text, hashers = str(key).encode(), self.hashers
        for name in names:
            if name not in hashers:
                hashers[name] = blake2b(f"{name}\x1f".encode(), digest_size=8)
            hasher = hashers[name].copy()  # reuses the hash of the instance id
            hasher.update(text)
            known[name] = hasher.digest()[::-1]


def check_weights(name: str, *weights: float) -> None:
    """Raise an error if no weight is positive."""
    if not any(weights):
        raise HeadwayError(f"{name}: at least one of the weights kv, load, power and capacity must be positive.")


def highest_watts(instances: Sequence[InstanceView]) -> float:
    """Return the highest power of an instance, or 1 if no instance reports any."""
    return max(map(_watts, instances)) or 1.0


def holders(instances: Sequence[InstanceView], hits: list[int]) -> Sequence[InstanceView]:
    """Return the instances that are believed to hold at least one block of the prompt. If there are none, or if the
    cluster has at most `FEW` instances, return all instances."""
    if len(instances) <= FEW or not any(hits):
        return instances
    return [view for view in instances if hits[view.index]] or instances


def prefix_key(path: Path, runs: tuple[tuple[int, int], ...], block: int) -> int:
    """Return the key of the run that contains `block`. A run is a sequence of consecutive blocks with one key. If no
    run contains the block, return the prompt's first key."""
    at = bisect_left(runs, block, key=_end)
    if at < len(runs):
        return runs[at][0]
    return path.keys[0] if path.keys else ROOT
