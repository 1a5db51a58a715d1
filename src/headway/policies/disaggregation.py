"""Routing with prefill/decode disaggregation: a policy for each half, and a decider that says which requests to split.

The decode half chooses first, among the instances that generate. If its choice also computes prompts, or the decider
says no, that instance computes the prompt. Else the prefill half chooses among the deployment's prefill instances.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Annotated, Any

from msgspec.structs import replace

from headway.config.wording import one_line, shown
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.answers import wrong_answer
from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS, Believer, BlockTokens, Context, LruBlocks
from headway.policies.parts import collect_metrics, combine_entries
from headway.policies.registry import Bounds, policy
from headway.policies.scorecards import ids
from headway.types import Reject, Request, Route, Scorecard
from headway.views.cluster import ClusterView
from headway.views.events import Event, InstanceChanged, Routed
from headway.views.instance import InstanceView

PLACE = "policies.routing"
Spec = str | dict[str, Any]  # a policy by its name, or with parameters
Threshold = Annotated[int, Bounds(1, 10_000_000, log=True)]


@policy("decider", "always", reported=())
class Always:
    """Computes every prompt on an instance for that."""

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool:
        return True


@policy("decider", "never", reported=())
class Never:
    """Lets the instance that generates compute the prompt too; those for prompts alone stay idle."""

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool:
        return False


@policy("decider", "prompt-threshold", reported=())
class PromptThreshold:
    """Splits the requests whose prompts have at least `colocate_below_tokens` tokens, cached or not."""

    colocate_below_tokens: Threshold = 256

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool:
        return request.prompt_tokens >= self.colocate_below_tokens


@policy("decider", "uncached-threshold", exact=("prefix_index",), reported=())
class UncachedThreshold(Believer):
    """Splits the requests of whose prompts at least `colocate_below_tokens` tokens are not believed cached on the
    instance that is to generate."""

    colocate_below_tokens: Threshold = 256
    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool:
        cached = self.matches(request.path)[view.index] * self.block_tokens
        return request.prompt_tokens - cached >= self.colocate_below_tokens


class Half(ClusterView):
    """The instances that one half chooses among, as the cluster that it sees."""

    __slots__ = ("by_id",)

    def __init__(self, instances: Sequence[InstanceView]) -> None:
        super().__init__(instances)
        self.by_id = {view.id: view for view in instances}

    def at(self, cluster: ClusterView) -> Half:
        """At the present decision."""
        self.now_ps = cluster.now_ps
        self.priority = cluster.priority
        self.explain = cluster.explain
        self._tenants = cluster._tenants
        self._totals = cluster._totals
        return self

    def find(self, answer: Any) -> InstanceView | None:
        """The instance that an answer names, if it is one that a half may give."""
        if not isinstance(answer, Route) or answer.prefill is not None:
            return None
        try:
            return self.by_id.get(answer.target)
        except TypeError:  # not even hashable
            return None


class Halves:
    """What each half sees of a group of instances: those that generate, and those for prompts of each deployment."""

    def __init__(self, cluster: ClusterView, numbers: dict[tuple[int, str], int]) -> None:
        self.instances = cluster.instances
        self.generating = Half([view for view in cluster.instances if view.role != "prefill"])
        self.generating.group = cluster.group
        self.prompting: dict[str, Half] = {}
        prompts = [view for view in cluster.instances if view.role == "prefill"]
        for pool in dict.fromkeys(view.pool for view in prompts):
            half = self.prompting[pool] = Half([view for view in prompts if view.pool == pool])
            half.group = numbers.setdefault((cluster.group, pool), len(numbers))


class Pairing:
    """Two routing policies and a decider, as one policy. Each of the two sees the instances of its half alone."""

    pairs = True  # it chooses for both halves itself

    def __init__(self, prefill: Any, decode: Any, decider: Any) -> None:
        self.assemble(decode, prefill, decode, decider)

    def assemble(self, whole: Any, prefill: Any, decode: Any, decider: Any) -> None:
        """Take these as the parts; the entry is that of `whole`, with what the parts read."""
        self.parts = (prefill, decode, decider)
        self.entry = combine_entries(whole, self.parts)
        self.split = 0  # requests
        self.whole = 0
        self.halves: dict[int, Halves] = {}  # by group of instances
        self.numbers: dict[tuple[int, str], int] = {}  # of the groups that the prefill half sees, by group and pool
        self.sent: dict[int, InstanceView] = {}  # where prompts are computed, while the prefill half observes
        if any(hasattr(part, "observe") for part in self.parts):
            self.observe = self._observe

    def bind(self, context: Context) -> None:
        own = context.with_streams("prefill.{}")  # the decode half has those that it would have alone
        for part, own_context in zip(self.parts, (own, context, context), strict=True):
            if hasattr(part, "bind"):
                part.bind(own_context)

    def route(self, request: Request, cluster: ClusterView) -> Route | Reject:
        prefill, decode, _ = self.parts
        halves = self.halves.get(cluster.group)
        if halves is None or halves.instances is not cluster.instances:
            halves = self.halves[cluster.group] = Halves(cluster, self.numbers)
        generating = halves.generating.at(cluster)
        chosen: Route | Reject = decode.route(request, generating)
        if isinstance(chosen, Reject):
            return chosen
        view = generating.find(chosen)
        if view is None:
            raise wrong_half(decode, "decode", chosen, request, generating)
        prompting = halves.prompting.get(view.pool)
        if view.role == "both" or prompting is None or not self.apart(request, view, generating):
            self.whole += 1
            return chosen
        other: Route | Reject = prefill.route(request, prompting.at(cluster))
        if isinstance(other, Reject):
            return other
        if prompting.find(other) is None:
            raise wrong_half(prefill, "prefill", other, request, prompting)
        self.split += 1
        return Route(
            chosen.target,
            f"{other.reason}; {chosen.reason}" if other.reason and chosen.reason else other.reason or chosen.reason,
            other.cached_tokens,
            other.priority if chosen.priority is None else chosen.priority,
            both_cards(chosen, generating, other, prompting) if cluster.explain else None,
            other.target,
        )

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool:
        decider = self.parts[2]
        answer = decider.apart(request, view, cluster)
        if not isinstance(answer, bool):
            right = "apart must return True or False"
            raise wrong_answer(f"{PLACE}.decider", decider, right, answer, request)
        return answer

    def _observe(self, event: Event) -> None:
        """The prefill half hears of the instance that computes the prompt, if any; the other parts of the target."""
        prefill, *others = self.parts
        for part in others:
            if hasattr(part, "observe"):
                part.observe(event)
        if not hasattr(prefill, "observe"):
            return
        if isinstance(event, InstanceChanged):
            prefill.observe(event)
            return
        row = event.request.id
        if isinstance(event, Routed):
            if event.prefill is None:
                return
            self.sent[row] = event.prefill
        view = self.sent.get(row)
        if view is not None:
            prefill.observe(replace(event, instance=view))
            if not isinstance(event, Routed) and hasattr(event, "outcome"):
                del self.sent[row]

    def metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = {"pair_split": self.split, "pair_whole": self.whole}
        for role, part in zip(("prefill", "decode", "decider"), self.parts, strict=True):
            own = collect_metrics([(f"{PLACE}.{role}", part)])
            metrics |= {f"{role}.{name}": value for name, value in own.items()}
        return metrics


@policy("routing", "pair", exact=("inflight",), reported=("kv_used",))
class Pair(Pairing):
    """Chooses an instance that computes the prompt and one that generates, each by a routing policy of its own.

    `prefill` and `decode` are any routing policies, by name or with parameters; each sees only the instances of its
    half, and ties are decided as it decides them. `decode` chooses first. `decider` then says whether the prompt is
    computed apart: always, never, prompt-threshold or uncached-threshold; where not, and on instances that do both, the
    one that generates computes it too. It reads what its parts read.
    """

    prefill: Spec = "least-loaded"
    decode: Spec = "least-kv"
    decider: Spec = "always"

    def __post_init__(self) -> None:
        halves = [registry.build("routing", getattr(self, role), f"{PLACE}.{role}") for role in ("prefill", "decode")]
        for role, half in zip(("prefill", "decode"), halves, strict=True):
            if getattr(half, "pairs", False):
                raise HeadwayError(f"{PLACE}.{role}: a policy that chooses pairs is none for a half of one.")
        decider = registry.build("decider", self.decider, f"{PLACE}.decider")
        self.assemble(type(self), halves[0], halves[1], decider)
        self._parts = [inner for part in self.parts for inner in (part, *getattr(part, "_parts", ()))]

    @property
    def seeks_prefixes(self) -> bool:
        """Whether it sends prompts where it believes them cached."""
        return "prefix_index" in registry.entry_of(self.parts[0]).exact


@policy("routing", "least-loaded-pair", exact=("inflight",), reported=())
class LeastLoadedPair(Pair):
    """Chooses the instances with the fewest requests in flight, one that computes the prompt and one that generates.

    Both loads are the router's own exact counts. A request counts at the first until its prompt is computed, and at the
    second from when it is routed until it has ended. Ties: lowest index.
    """

    prefill: Spec = "least-loaded"
    decode: Spec = "least-loaded"
    decider: Spec = "always"


@policy(
    "routing", "prefix-pair", exact=("prefix_index", "routed_since_report"), reported=("queued", "running", "kv_used")
)
class PrefixPair(Pair):
    """Sends prompts where most of them is believed cached and little waits, and on to the lowest KV use.

    It lives on prefixes that stay on the instances for prompts, so it wants `keep_prefill_copy: true` in the
    deployment's `transfer`; without it what was moved is cached there no longer, and a warning says so.
    Ties: lowest index.
    """

    prefill: Spec = "weighted"
    decode: Spec = "least-kv"
    decider: Spec = "always"


def make_pairing(routing: Any, instances: Sequence[InstanceView]) -> Any:
    """A routing policy as this cluster needs it: where prompts are computed apart, one that knows nothing of pairs is
    used for both halves, as two policies that share nothing."""
    if getattr(routing, "pairs", False) or not any(view.role == "prefill" for view in instances):
        return routing
    try:
        other = deepcopy(routing)
    except Exception as error:
        name = f"{PLACE}: a copy of {type(routing).__name__} for the other half could not be made: {one_line(error)}"
        raise HeadwayError(f"{name}; give it by its class or name, or let it choose pairs.") from error
    return Pairing(other, routing, Always())


def wrong_half(half: Any, role: str, answer: Any, request: Request, cluster: ClusterView) -> HeadwayError:
    """What is wrong with the answer of a half."""
    if not isinstance(answer, Route):
        right = "route must return a Route, as in Route(view.id), or a Reject"
        return wrong_answer(f"{PLACE}.{role}", half, right, answer, request)
    where = f"{PLACE}.{role}: {type(half).__name__}"
    if answer.prefill is not None:
        wrong = "chooses one instance of those it is shown, and named one for 'prefill' too"
        right = "a policy that chooses both says so with `pairs = True` in its class"
        return HeadwayError(f"{where} {wrong}; {right}, at request {request.id}.")
    known = ", ".join(ids(cluster.instances)[:8])
    wrong = f"routed to {shown(answer.target)}, which is not one of those it was shown ({known})"
    return HeadwayError(f"{where} {wrong}, at request {request.id}.")


def both_cards(chosen: Route, generating: ClusterView, other: Route, prompting: ClusterView) -> Scorecard:
    """That of the instance which generates, with the other in it."""
    mine = chosen.scorecard or Scorecard(ids(generating.instances), chosen.target)
    return replace(mine, prefill=other.scorecard or Scorecard(ids(prompting.instances), other.target))
