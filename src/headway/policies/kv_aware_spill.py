"""A routing policy with the score of `kv-aware` over the whole prompt, among the instances that are not saturated."""

from collections.abc import Sequence
from typing import Annotated, Final

from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS, Believer, BlockTokens, Context, LruBlocks
from headway.policies.kv_aware import ROUNDING, TERMS, Rendezvous, Weight, check_weights, highest_watts, prefix_key
from headway.policies.registry import Bounds, policy
from headway.policies.scorecards import Cuts
from headway.types import Request, Route, Scorecard
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

COUNTERS: Final = ("inflight", "pending_prefill_tokens", "prefix_index")
SPILLED: Final = "spilled over"  # reason of a route: another instance has more of the prompt, but is saturated
Terms = tuple[float, float, float, float]


@policy("routing", "kv-aware-spill", exact=COUNTERS, reported=["busy", "watts"])
class KvAwareSpill(Believer):
    """Scores whole-prompt cache overlap, idleness, low power and capacity, among instances that are not saturated.

    An instance is saturated for a request if its work exceeds the least work of any instance by more than `slack` ×
    prompt tokens. work = pending prefill tokens + this prompt's uncached tokens + `request_tokens` × requests in
    flight. These are the router's own exact counters, without an upper limit, so full queues still differ. The
    instance with the least work is never saturated. If the instance with the most cached blocks is saturated, the
    request spills over to another one.

    Among the other instances, the highest score wins: kv × overlap + load × (1 − util) + power × (1 − watts ÷ the
    fleet's highest watts) + capacity × capacity figure. The weights are not normalised. overlap = leading blocks
    believed cached ÷ all full blocks of the prompt, or 0 without a full block. util = max(requests in flight ÷
    `max_concurrent`, busy share); it may exceed 1. If `max_concurrent` is null, it is the instance's batch limit. watts
    is a 30 s mean, the capacity figure is static. Busy share and watts are as last reported.

    Ties: among the instances within `epsilon` of the best score (inclusive), the least work wins, then the highest hash
    of (instance id, prompt), then the lowest index. If the router knows no key of the prompt, as a gateway for prompts
    shorter than a block, the hash is of (instance id, request number). So cold prompts spread over idle instances.
    """

    kv: Weight = 0.55
    load: Weight = 0.25
    power: Weight = 0.10
    capacity: Weight = 0.10
    slack: Annotated[float, Bounds(0, 1000)] = 0.5
    request_tokens: Annotated[int, Bounds(0, 1_000_000)] = 256
    epsilon: Annotated[float, Bounds(0.0, 1.0)] = 0.01
    max_concurrent: Annotated[int | None, Bounds(1, 100_000, log=True)] = None
    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS

    def __post_init__(self) -> None:
        check_weights("kv-aware-spill", self.kv, self.load, self.power, self.capacity)

    def bind(self, context: Context) -> None:
        super().bind(context)
        self.rendezvous = Rendezvous()
        self.spilled = 0

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances, path = cluster.instances, request.path
        size = self.block_tokens
        runs = path.blocks(size)
        blocks = runs[-1][1] if runs else 0
        hits = self.matches(path)
        work = self.work(instances, hits)
        limit = min(work) + self.slack * request.prompt_tokens
        left = [view for view, tokens in zip(instances, work, strict=True) if tokens <= limit]
        reason = "highest score"
        if len(left) == 1:
            view, reason = left[0], "only one not saturated" if len(instances) > 1 else "only candidate"
        else:
            scores = self.totals(self.terms(left, hits, blocks, highest_watts(instances)))
            floor = max(scores) - self.epsilon - ROUNDING
            band = [view for view, score in zip(left, scores, strict=True) if score >= floor]
            view = band[0]
            if len(band) > 1:
                key = prefix_key(path, runs, blocks) if path.keys else request.id
                view, reason = self.settle(band, hits, key), "near-tie, by work"
        spilled = len(left) < len(instances) and self.most(instances, hits) > self.most(left, hits)
        self.spilled += spilled
        card = self.card(instances, left, hits, blocks, view) if cluster.explain else None
        return Route(view.id, SPILLED if spilled else reason, hits[view.index] * size, None, card)

    def work(self, instances: Sequence[InstanceView], hits: list[int]) -> list[int]:
        """Return the work of each instance minus the prompt's number of tokens, which is the same for all instances."""
        size, each = self.block_tokens, self.request_tokens
        return [view.pending_prefill_tokens + each * view.inflight - hits[view.index] * size for view in instances]

    def settle(self, band: list[InstanceView], hits: list[int], key: int) -> InstanceView:
        """Choose among instances that score alike: the least work, then the highest hash."""
        work = self.work(band, hits)
        least = min(work)
        tied = [view for view, tokens in zip(band, work, strict=True) if tokens == least]
        return tied[0] if len(tied) == 1 else self.rendezvous.pick(tied, key)

    @staticmethod
    def most(instances: Sequence[InstanceView], hits: list[int]) -> int:
        """Return the highest number of the prompt's blocks that any one of the instances is believed to hold."""
        return max([hits[view.index] for view in instances])

    def terms(self, instances: Sequence[InstanceView], hits: list[int], blocks: int, peak: float) -> list[Terms]:
        """Return the four terms of the score of each instance, before weights."""
        limit = self.max_concurrent
        return [
            (
                hits[view.index] / blocks if blocks else 0.0,
                1.0 - max(view.inflight / (limit or view.max_batch_size), view.busy),
                1.0 - view.watts / peak,
                view.capacity,
            )
            for view in instances
        ]

    def totals(self, terms: list[Terms]) -> list[float]:
        kv, load, power, capacity = self.kv, self.load, self.power, self.capacity
        return [
            kv * overlap + load * idle + power * saved + capacity * figure for overlap, idle, saved, figure in terms
        ]

    def card(
        self,
        instances: Sequence[InstanceView],
        left: Sequence[InstanceView],
        hits: list[int],
        blocks: int,
        picked: InstanceView,
    ) -> Scorecard:
        cuts = Cuts(instances)
        cuts.note("saturated", instances, left)
        terms = self.terms(left, hits, blocks, highest_watts(instances))
        columns = {name: [row[at] for row in terms] for at, name in enumerate(TERMS)}
        return cuts.card(left, columns, self.totals(terms), picked)

    def metrics(self) -> dict[str, float]:
        return {"kv_aware_spilled": self.spilled}
