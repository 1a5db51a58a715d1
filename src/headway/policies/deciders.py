"""Deciders: whether a disaggregated request is split, so that a prefill instance computes its prompt.

The routing policy has chosen the decode instance `view` when the decider is asked. `apart` returns True to split the
request, and False to serve it whole on `view`. It may also return a `Route` to serve the request whole on another
instance that generates. `cluster` has the instances of both roles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

from headway.config.keys import DURATION
from headway.config.units import positive_duration_ps
from headway.policies.classes import TTFT, ClassTargets, OneDuration, class_targets
from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS, Believer, BlockTokens, Context, LruBlocks
from headway.policies.registry import Bounds, policy
from headway.types import PS_PER_SECOND, Request, Route
from headway.views.cluster import ClusterView
from headway.views.events import Event, Finished, FirstToken
from headway.views.instance import InstanceView

Threshold = Annotated[int, Bounds(1, 10_000_000, log=True)]
Duration = Annotated[str | int | float, DURATION]
Rate = Annotated[float, Bounds(1, 1e12, log=True)]
KV_TOKENS_PER_S = 150_000.0  # of Llama-3.1-70B in 16 bits over 50 GB/s
SHORT = "prefill instances are short"


@policy("decider", "always", reported=())
class Always:
    """Computes every prompt on a prefill instance."""

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool:
        return True


@policy("decider", "never", reported=())
class Never:
    """Computes every prompt on the decode instance; prefill instances stay idle."""

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool:
        return False


@policy("decider", "prompt-threshold", reported=())
class PromptThreshold:
    """Splits a request if its prompt has at least `colocate_below_tokens` tokens, cached or not."""

    colocate_below_tokens: Threshold = 256

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool:
        return request.prompt_tokens >= self.colocate_below_tokens


@policy("decider", "uncached-threshold", exact=("prefix_index",), reported=())
class UncachedThreshold(Believer):
    """Splits a request if the decode instance is believed to lack at least `colocate_below_tokens` prompt tokens.

    llm-d's prefix-based decider has the same rule, with 16 tokens (nonCachedTokens).
    """

    colocate_below_tokens: Threshold = 256
    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool:
        cached = self.matches(request.path)[view.index] * self.block_tokens
        return request.prompt_tokens - cached >= self.colocate_below_tokens


Weights = tuple[list[InstanceView], list[InstanceView], list[int]]


class Sides:
    """The instances of each deployment by role: those that only prefill, and those that generate."""

    def __init__(self) -> None:
        self.instances: Sequence[InstanceView] = ()
        self.by_pool: dict[str, tuple[list[InstanceView], list[InstanceView]]] = {}

    def of(self, cluster: ClusterView, pool: str) -> tuple[list[InstanceView], list[InstanceView]]:
        if cluster.instances is not self.instances:
            self.instances, self.by_pool = cluster.instances, {}
            for view in cluster.instances:
                prefills, generating = self.by_pool.setdefault(view.pool, ([], []))
                (prefills if view.role == "prefill" else generating).append(view)
        return self.by_pool[pool]


class Weighing(Believer):
    """A decider that compares both sides, with the tokens that the router believes cached on each instance."""

    def bind(self, context: Context) -> None:
        super().bind(context)
        self.sides: dict[int, Sides] = {}  # index of a group of instances -> its sides

    def weigh(self, request: Request, view: InstanceView, cluster: ClusterView) -> Weights:
        """Return the prefill instances, the generating instances, and the tokens that each instance must compute."""
        sides = self.sides.setdefault(cluster.group, Sides())
        prefills, generating = sides.of(cluster, view.pool)
        size, tokens = self.block_tokens, request.prompt_tokens
        return prefills, generating, [max(1, tokens - blocks * size) for blocks in self.matches(request.path)]


@policy(
    "decider",
    "estimated-ttft",
    exact=("inflight_tokens", "pending_prefill_tokens", "prefix_index"),
    reported=("running",),
)
class EstimatedTtft(Weighing):
    """Splits a request if a prefill instance is expected to have computed and sent its prompt before the decode
    instance could have computed it.

    Both times are estimated: pending prefill and the prompt tokens not believed cached, in steps of the batch's size.
    The decode instance also decodes its running sequences in each step. The transfer takes `latency` + prompt tokens ÷
    `kv_tokens_per_s`. `margin` multiplies the time of the split: above 1, fewer requests are split. Ties: whole.
    """

    margin: Annotated[float, Bounds(0.01, 100, log=True)] = 1.0
    latency: Duration = "1ms"
    kv_tokens_per_s: Rate = KV_TOKENS_PER_S
    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS

    def __post_init__(self) -> None:
        self.latency_s = positive_duration_ps(self.latency, "decider.latency") / PS_PER_SECOND

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool:
        prefills, _, tokens = self.weigh(request, view, cluster)
        computed = min([prefill.estimated_ttft(tokens[prefill.index]) for prefill in prefills])
        split = computed + self.latency_s + request.prompt_tokens / self.kv_tokens_per_s
        return self.margin * split < view.estimated_ttft(tokens[view.index])


class Debt:
    """What a class of requests has exceeded its targets by, in seconds, less what it has stayed below them."""

    __slots__ = ("itl", "ttft")

    def __init__(self) -> None:
        self.ttft = self.itl = 0.0


@policy("decider", "drift-plus-penalty", exact=("inflight", "prefix_index"), reported=())
class DriftPlusPenalty(Weighing):
    """Splits a request if the backlogs of both sides, the missed targets so far and the transfer say so, as BLIS does.

    With a prompt of work W, all in seconds, and the targets T (first token) and I (between tokens) of its class:
    split if q_d × W ÷ w_d − q_p × W ÷ w_p > `v` × c ÷ T × `reference` ÷ T + z_t × (t_p − t_d) ÷ T − z_i × h ÷ I.

    Backlog Q is the requests in flight on a side × the work of a nominal one (`nominal_prompt` tokens of a prompt, a
    token at `nominal_context`). q = Q ÷ w, w = m × T, m_d = 1 − a ÷ I, m_p = 1 − a ÷ step of the nominal prompt, where
    a is the time of the smallest step. c is the transfer: `latency` + prompt tokens ÷ `kv_tokens_per_s`. The expected
    first tokens are t_p = (Q_p + W) ÷ m_p + c and t_d = (Q_d + W) ÷ m_d. h is the work of one chunk of the prompt. z is
    what completed requests of the class have exceeded a target by, less what others have stayed below it, but at least
    0, ÷ the target. W counts the tokens not believed cached on the decode instance; without any, the request is whole.
    Exact: the router's own counts and index. The step times are estimates. Ties: whole.
    """

    v: Annotated[float, Bounds(0, 1e6)] = 1.0
    targets: ClassTargets = dataclasses.field(default_factory=lambda: dict(TTFT))  # TTFT target of each class
    other: OneDuration = "1s"
    itl: Duration = "50ms"
    reference: Duration = "1s"
    latency: Duration = "1ms"
    kv_tokens_per_s: Rate = KV_TOKENS_PER_S
    nominal_prompt: Threshold = 512
    nominal_context: Threshold = 1024
    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS

    def __post_init__(self) -> None:
        self.target_s = {name: ps / PS_PER_SECOND for name, ps in class_targets(self.targets, "targets").items()}
        self.other_s = class_targets({"other": self.other}, "drift-plus-penalty")["other"] / PS_PER_SECOND
        durations = {name: getattr(self, name) for name in ("itl", "reference", "latency")}
        self.itl_s, self.reference_s, self.latency_s = (
            positive_duration_ps(value, f"decider.{name}") / PS_PER_SECOND for name, value in durations.items()
        )

    def bind(self, context: Context) -> None:
        super().bind(context)
        self.estimator = context.estimator
        self.debts: dict[str, Debt] = {}
        self.first_ps: dict[int, int] = {}  # request id -> time of its first token, for requests in flight

    def work(self, view: InstanceView, tokens: int) -> float:
        """Return the seconds that these prompt tokens add to an otherwise empty step."""
        step = self.estimator.step_seconds
        return max(0.0, step(view, tokens, 0, 0) - step(view, 1, 0, 0))

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool:
        prefills, generating, tokens = self.weigh(request, view, cluster)
        if request.prompt_tokens - self.matches(request.path)[view.index] * self.block_tokens <= 0:
            return False
        prefill, uncached = prefills[0], tokens[view.index]
        target, debt = self.target_s.get(request.slo_class, self.other_s), self.debts.get(request.slo_class)
        work = self.work(prefill, uncached)
        context, step = self.nominal_context, self.estimator.step_seconds
        one_token = step(view, 0, 2, 2 * context) - step(view, 0, 1, context)
        backlog_d = sum([each.inflight for each in generating]) * max(0.0, one_token)
        backlog_p = sum([each.inflight for each in prefills]) * self.work(prefill, self.nominal_prompt)
        free_d = bounded(1.0 - step(view, 0, 1, 0) / self.itl_s)
        free_p = bounded(1.0 - step(prefill, 1, 0, 0) / step(prefill, self.nominal_prompt, 0, 0))
        room_d, room_p = free_d * target, free_p * target
        benefit = work * (backlog_d / room_d / room_d - backlog_p / room_p / room_p)
        transfer = self.latency_s + request.prompt_tokens / self.kv_tokens_per_s
        cost = self.v * (transfer / target) * (self.reference_s / target)
        if debt is not None:
            later = (backlog_p + work) / free_p + transfer - (backlog_d + work) / free_d
            cost += debt.ttft / target * later / target
            chunk = self.work(view, min(uncached, view.max_batch_tokens))
            cost -= debt.itl / self.itl_s * chunk / self.itl_s
        return benefit > cost

    def observe(self, event: Event) -> None:
        if isinstance(event, FirstToken):
            self.first_ps[event.request.id] = event.at_ps
        elif isinstance(event, Finished):
            first_ps = self.first_ps.pop(event.request.id, None)
            if first_ps is None or event.outcome != "completed":
                return
            name = event.request.slo_class
            debt = self.debts.setdefault(name, Debt())
            ttft = (first_ps - event.request.arrival_ps) / PS_PER_SECOND
            debt.ttft = max(0.0, debt.ttft + ttft - self.target_s.get(name, self.other_s))
            if event.output_tokens > 1:
                itl = (event.at_ps - first_ps) / PS_PER_SECOND / (event.output_tokens - 1)
                debt.itl = max(0.0, debt.itl + itl - self.itl_s)


def bounded(share: float) -> float:
    """Return the share of a step that is left for work, which the rule divides by, from 0.001 to 1."""
    return min(1.0, max(0.001, share))


@policy("decider", "lend", exact=("inflight_tokens", "pending_prefill_tokens", "prefix_index"), reported=("running",))
class Lend(Weighing):
    """Splits every request, but lends decode instances as prefillers while prefill instances are short.

    They are short if each is expected to need more than `wait` for the prompts that are pending there. Then a prompt
    goes to the lent instance that is expected to have computed it first, if that is before any prefill instance, and
    the request stays there. Lent are the last `share` of the deployment's decode instances, at least one, so that the
    others decode undisturbed. Pending tokens are the router's exact counts; the running sequences are reported. Ties:
    lowest index.
    """

    wait: Duration = "200ms"
    share: Annotated[float, Bounds(0.01, 1)] = 0.34
    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS

    def __post_init__(self) -> None:
        self.wait_s = positive_duration_ps(self.wait, "decider.wait") / PS_PER_SECOND

    def bind(self, context: Context) -> None:
        super().bind(context)
        self.lent = 0  # number of requests that a lent instance serves whole

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool | Route:
        prefills, generating, tokens = self.weigh(request, view, cluster)
        if min([prefill.estimated_wait for prefill in prefills]) <= self.wait_s:
            return True
        count = max(1, int(self.share * len(generating)))
        times = [(each.estimated_ttft(tokens[each.index]), each.index, each) for each in generating[-count:]]
        soonest, _, best = min(times)
        if soonest >= min([prefill.estimated_ttft(tokens[prefill.index]) for prefill in prefills]):
            return True
        self.lent += 1
        return Route(best.id, f"lent: {SHORT}", max(0, request.prompt_tokens - tokens[best.index]))

    def metrics(self) -> dict[str, float]:
        return {"lent": self.lent}
