"""Scorers: each returns a value in [0, 1] for every candidate of a routing decision; a higher value is better.

`score(request, candidates, cluster)` returns one value for each candidate, in their order. The candidates may be only
some of the cluster's instances.
`bind(context)` and `observe(event)` are optional. `weighted` clamps the values of users' scorers.
"""

from typing import Annotated

from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS, Believer, BlockTokens, Candidates, Context, LruBlocks
from headway.policies.registry import Bounds, policy
from headway.policies.sessions import Binds, MaxSessions, Sessions
from headway.types import Request
from headway.views.cluster import ClusterView
from headway.views.events import Event, Finished, InstanceChanged, Routed
from headway.views.instance import InstanceView


@policy("scorer", "adapter-affinity", reported=("adapters",))
class AdapterAffinity:
    """1 if the request's adapter is loaded (as reported) or about to be, `free` if a slot is free, else 0.

    An adapter is about to be loaded while a request for it, sent by this router, is in flight there. A request without
    an adapter, and an instance that always has all adapters, score 1.
    """

    free: Annotated[float, Bounds(0.0, 1.0)] = 0.5

    def bind(self, context: Context) -> None:
        self._sent: list[dict[str, int]] = [{} for _ in context.instances]  # by instance: adapter -> requests in flight

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


class Prefixed(Believer):
    """A scorer that reads the router's prefix index. After each call, it can report how many tokens of the last scored
    prompt it believes to be cached."""

    def bind(self, context: Context) -> None:
        super().bind(context)
        self._matched: list[int] = [0] * self.index.instances

    def believed_tokens(self, view: InstanceView) -> int:
        """Return how many prompt tokens of the last scored request are believed to be cached on the instance."""
        return self._matched[view.index] * self.block_tokens


@policy("scorer", "prefix-affinity", exact=("prefix_index",), reported=())
class PrefixAffinity(Prefixed):
    """Leading full blocks of the prompt believed cached on the instance / all its full blocks; 0 for a prompt shorter
    than a block. Exact: the router's own index of its routing decisions, not the instance's true cache."""

    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS

    def score(self, request: Request, candidates: Candidates, cluster: ClusterView) -> list[float]:
        path = request.path
        self._matched = matched = self.matches(path)
        blocks = path.ends[-1] // self.block_tokens if path.ends else 0
        if not blocks:
            return [0.0] * len(candidates)
        if len(candidates) == len(matched):
            return [count / blocks for count in matched]
        return [matched[view.index] / blocks for view in candidates]

    def metrics(self) -> dict[str, float]:
        index = self.index
        return {
            "prefix_index_blocks": float(sum(index.size(instance) for instance in range(index.instances))),
            "prefix_index_capacity": float(sum(index.capacities)),
        }


@policy("scorer", "queue-depth", reported=("queued", "running"))
class QueueDepth:
    """(highest load - load) / (highest - lowest) over the candidates, 1 if all are equal. Load is the effective load:
    the reported queue and batch, plus the requests routed since that report. With `effective_load: outstanding`, the
    requests that ended since the report are subtracted."""

    def score(self, request: Request, candidates: Candidates, cluster: ClusterView) -> list[float]:
        # This computes `effective_load` inline, because the property would take twice as long.
        loads = [view.queued + view.running + view.routed_since_report for view in candidates]
        if candidates[0]._load_rule != "snapshot":
            pairs = zip(loads, candidates, strict=True)
            loads = [max(load - view.finished_since_report, view.inflight) for load, view in pairs]
        high = max(loads)
        span = high - min(loads)
        if not span:
            return [1.0] * len(loads)
        return [(high - load) / span for load in loads]


@policy("scorer", "kv-utilization", reported=("kv_used",))
class KvUtilization:
    """1 - share of the instance's KV blocks in use, as reported."""

    def score(self, request: Request, candidates: Candidates, cluster: ClusterView) -> list[float]:
        return [1.0 - view.kv_used / view.kv_blocks for view in candidates]


@policy("scorer", "expected-kv", exact=("inflight_tokens", "expected_output_tokens", "expected_tokens"), reported=())
class ExpectedKv:
    """1 - expected KV / the larger of the instance's KV cache and the highest expected KV of a candidate. Exact: the
    router's own counts and the estimator's expectations.

    Expected KV is what the requests in flight there, and this request, would hold at their expected ends: prompt tokens
    and expected output tokens. llm-d's token-load-scorer has a fixed limit instead of the cache (4,194,304 tokens).
    """

    def bind(self, context: Context) -> None:
        self._block_tokens = context.block_tokens

    def score(self, request: Request, candidates: Candidates, cluster: ClusterView) -> list[float]:
        own = request.prompt_tokens + cluster.expected_tokens
        tokens = [view.inflight_tokens + view.expected_output_tokens + own for view in candidates]
        high, size = max(tokens), self._block_tokens
        return [1.0 - held / max(view.kv_blocks * size, high) for held, view in zip(tokens, candidates, strict=True)]


@policy("scorer", "load-balance", exact=("inflight",), reported=())
class LoadBalance:
    """1 / (1 + requests in flight), by the router's exact count. Used alone, it decides as least-loaded."""

    def score(self, request: Request, candidates: Candidates, cluster: ClusterView) -> list[float]:
        return [1.0 / (1 + view.inflight) for view in candidates]


@policy("scorer", "active-requests", exact=("inflight",), reported=())
class ActiveRequests:
    """(highest - n) / highest over the candidates, n the exact count of requests in flight; 1 if none has any.

    Unlike queue-depth it measures from zero: if all are equally busy, all score 0.
    """

    def score(self, request: Request, candidates: Candidates, cluster: ClusterView) -> list[float]:
        counts = [view.inflight for view in candidates]
        high = max(counts)
        if not high:
            return [1.0] * len(counts)
        return [(high - count) / high for count in counts]


@policy("scorer", "oracle-prefix", reported=(), oracle=True)
class OraclePrefix:
    """Prompt tokens cached on the instance / all prompt tokens: the truth, which no live router knows."""

    def bind(self, context: Context) -> None:
        self._context = context
        self._cached: list[int] = [0] * len(context.instances)

    def believed_tokens(self, view: InstanceView) -> int:
        return self._cached[view.index]

    def score(self, request: Request, candidates: Candidates, cluster: ClusterView) -> list[float]:
        self._cached = cached = self._context.truth(request)
        tokens = request.prompt_tokens
        if not tokens:
            return [0.0] * len(candidates)
        return [cached[view.index] / tokens for view in candidates]


@policy("scorer", "no-hit-lru", exact=("prefix_index",), reported=())
class NoHitLru(Prefixed):
    """Spreads cold prompts: 1 - rank / (candidates - 1) if no candidate is believed to hold a block of the prompt, else
    0.5 for all. Exact: the router's own index and record.

    Rank 0 is the instance that never got a cold prompt, or got one longest ago.
    """

    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS

    def bind(self, context: Context) -> None:
        super().bind(context)
        self._used = [0] * len(context.instances)  # by instance: sequence number of its last cold request; 0 if none
        self._cold: int | None = None  # id of the last scored request, if it was cold
        self._count = 0

    def score(self, request: Request, candidates: Candidates, cluster: ClusterView) -> list[float]:
        self._matched = matched = self.matches(request.path)
        if any(matched[view.index] for view in candidates):
            self._cold = None
            return [0.5] * len(candidates)
        self._cold = request.id
        last = len(candidates) - 1
        if not last:
            return [1.0]
        used = self._used
        scores = [0.0] * len(candidates)
        order = sorted(range(len(candidates)), key=lambda at: (used[candidates[at].index], candidates[at].index))
        for rank, at in enumerate(order):
            scores[at] = 1.0 - rank / last
        return scores

    def observe(self, event: Event) -> None:
        if isinstance(event, Routed) and event.request.id == self._cold:
            self._count += 1
            self._used[event.instance.index] = self._count


@policy("scorer", "session-affinity", reported=())
class SessionAffinity(Binds):
    """1 for the instance that the request's session was last routed to, else 0; 0 for all without a session. Exact: the
    router's own record of the last `max_sessions` sessions."""

    max_sessions: MaxSessions = 100_000

    def bind(self, context: Context) -> None:
        self.sessions = Sessions(self.max_sessions)

    def score(self, request: Request, candidates: Candidates, cluster: ClusterView) -> list[float]:
        home = self.sessions.find(request.session, candidates) if request.session is not None else None
        return [1.0 if view is home else 0.0 for view in candidates]


@policy(
    "scorer",
    "predicted-latency",
    exact=("inflight_tokens", "pending_prefill_tokens", "prefix_index"),
    reported=("running",),
)
class PredictedLatency(Prefixed):
    """Lowest predicted time to first token among the candidates / the instance's own. Exact: pending prefill and the
    router's index; reported: the running sequences.

    The prediction is the view's `estimated_ttft` for the prompt tokens not believed cached (at least one). It is the
    time to compute these and the pending prefill tokens in steps of max_batch_tokens. In each step every running
    sequence decodes one token, over the prompt tokens in flight that are no longer pending. The latency estimator gives
    the step times.
    """

    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS

    def score(self, request: Request, candidates: Candidates, cluster: ClusterView) -> list[float]:
        self._matched = self.matches(request.path)
        times = [self.predict(request, view) for view in candidates]
        best = min(times)
        return [best / time if time > 0.0 else 1.0 for time in times]

    def predict(self, request: Request, view: InstanceView) -> float:
        """Return the seconds until the first token if the request is routed to this instance."""
        return view.estimated_ttft(max(1, request.prompt_tokens - self.believed_tokens(view)))
