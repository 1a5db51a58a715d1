"""A routing policy whose constants a search chose on a real trace: the least delay for a prompt and for all others."""

from typing import Annotated

from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS, Believer, BlockTokens, LruBlocks
from headway.policies.registry import Bounds, policy
from headway.policies.scorecards import single_score_card
from headway.types import Request, Route
from headway.views.cluster import ClusterView

MILLION = 1_000_000


ESTIMATED = ("inflight_tokens", "pending_prefill_tokens")  # what the estimates of waits and TTFT read


@policy(
    "routing",
    "least-delay",
    exact=("inflight", "decode_tokens", "prefix_index", *ESTIMATED),
    reported=("running",),
    kind="extra",
)
class LeastDelay(Believer):
    """Minimises the delay in seconds that a prompt causes, for itself and for the other requests of an instance.

    delay = `wait` × estimated wait + compute × (1 + `others` × requests in flight) + `decode` × decode load. The
    estimated wait is the time to compute the prefill that is pending there. compute is the time for this prompt's own
    uncached tokens, during which all others there decode more slowly. The decode load is the number of prompt tokens of
    decoding requests, in millions, which each step reads. The lowest delay wins; ties: lowest index. A search chose the
    constants on windows of Mooncake's conversation trace.

    Limits: a short prompt causes almost no delay, however long its answer, and the estimate ignores the batch limit. On
    real traces with short prompts and long answers (ServeGen), one instance gets twice its share and its batch is full
    while others have room. On traces with a low load, most prompts of one system prompt go to one instance.
    """

    wait: Annotated[float, Bounds(0, 100)] = 2.2
    others: Annotated[float, Bounds(0, 100)] = 0.44
    decode: Annotated[float, Bounds(0, 10_000)] = 11.0
    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances, size, tokens = cluster.instances, self.block_tokens, request.prompt_tokens
        hits = self.matches(request.path)
        waits = [view.estimated_wait for view in instances]
        computes = [
            view.estimated_ttft(tokens - hits[view.index] * size) - wait
            for view, wait in zip(instances, waits, strict=True)
        ]
        delays = [
            self.wait * wait + compute * (1 + self.others * view.inflight) + self.decode * view.decode_tokens / MILLION
            for view, wait, compute in zip(instances, waits, computes, strict=True)
        ]
        view = instances[delays.index(min(delays))]
        card = None
        if cluster.explain:
            terms = {"wait": waits, "compute": computes}
            card = single_score_card(instances, delays, view, lowest_wins=True, terms=terms)
        return Route(view.id, "least delay", hits[view.index] * size, None, card)
