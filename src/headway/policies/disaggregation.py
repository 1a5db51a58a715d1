"""Routing where prompts are computed on other instances than those that generate: a policy for each half, and who
decides whether a request is split at all.

The decode half goes first, among the instances that generate and those that do both. Where it takes one that does both,
nothing is split. Else the decider is asked, and the prefill half chooses among the instances of the same deployment
that compute prompts; decided against, the instance that was chosen computes the prompt itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from functools import partial
from random import Random
from typing import Annotated, Any

from msgspec.structs import replace

from headway.config.wording import one_line, shown
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.belief import BLOCK_TOKENS, LRU_BLOCKS, Believer, BlockTokens, LruBlocks
from headway.policies.context import Context
from headway.policies.registry import REPORTED, Bounds, Entry, policy
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

    def chosen(self, answer: Any) -> InstanceView | None:
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
            found = self.prompting[pool] = Half([view for view in prompts if view.pool == pool])
            found.group = numbers.setdefault((cluster.group, pool), len(numbers))


class Pairing:
    """Two routing policies and a decider, as one policy. Each of the two sees the instances of its half alone."""

    pairs = True

    def __init__(self, prefill: Any, decode: Any, decider: Any) -> None:
        self.prefill = prefill
        self.decode = decode
        self.decider = decider
        self.parts = (prefill, decode, decider)
        self.entry = joined(registry.declared(decode), self.parts)
        self.split = 0  # requests
        self.whole = 0
        self.halves: dict[int, Halves] = {}  # by group of instances
        self.numbers: dict[tuple[int, str], int] = {}  # of the groups that the prefill half sees, by group and pool
        self.sent: dict[int, InstanceView] = {}  # where prompts are computed, while somebody wants to hear of it
        if any(hasattr(part, "observe") for part in self.parts):
            self.observe = self.tell

    def bind(self, context: Context) -> None:
        own = copy(context)  # with the same indexes
        own.rng = partial(of_prefill, context.rng)
        for part, given in zip(self.parts, (own, context, context), strict=True):
            if hasattr(part, "bind"):
                part.bind(given)

    def route(self, request: Request, cluster: ClusterView) -> Route | Reject:
        halves = self.halves.get(cluster.group)
        if halves is None or halves.instances is not cluster.instances:
            halves = self.halves[cluster.group] = Halves(cluster, self.numbers)
        generating = halves.generating.at(cluster)
        chosen: Route | Reject = self.decode.route(request, generating)
        if isinstance(chosen, Reject):
            return chosen
        view = generating.chosen(chosen)
        if view is None:
            raise wrong_half(self.decode, "decode", chosen, request, generating)
        prompting = halves.prompting.get(view.pool)
        if view.role == "both" or prompting is None or not self.apart(request, view, generating):
            self.whole += 1
            return chosen
        other: Route | Reject = self.prefill.route(request, prompting.at(cluster))
        if isinstance(other, Reject):
            return other
        if prompting.chosen(other) is None:
            raise wrong_half(self.prefill, "prefill", other, request, prompting)
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
        answer = self.decider.apart(request, view, cluster)
        if not isinstance(answer, bool):
            where = f"{PLACE}.decider: {type(self.decider).__name__}"
            raise HeadwayError(
                f"{where}.apart must return True or False, got {shown(answer)}, at request {request.id}."
            )
        return answer

    def tell(self, event: Event) -> None:
        """Who chose the instance for the prompt hears of that one, if there is one; the others of the target."""
        for part in self.parts[1:]:
            if hasattr(part, "observe"):
                part.observe(event)
        if not hasattr(self.prefill, "observe"):
            return
        if isinstance(event, InstanceChanged):
            self.prefill.observe(event)
            return
        row = event.request.id
        if isinstance(event, Routed):
            if event.prefill is None:
                return
            self.sent[row] = event.prefill
        view = self.sent.get(row)
        if view is not None:
            self.prefill.observe(replace(event, instance=view))
            if not isinstance(event, Routed) and hasattr(event, "outcome"):
                del self.sent[row]

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = {"pair_split": self.split, "pair_whole": self.whole}
        for name, part in zip(("prefill", "decode", "decider"), self.parts, strict=True):
            if hasattr(part, "metrics"):
                own = registry.figures(part, f"{PLACE}.{name}")
                found.update({f"{name}.{figure}": value for figure, value in own.items()})
        return found


@policy("routing", "pair", exact=("inflight",), reported=("kv_used",))
class Pair:
    """Chooses an instance that computes the prompt and one that generates, each by a routing policy of its own.

    `prefill` and `decode` are any routing policies, by name or with parameters; each sees only the instances of its
    half, and ties are decided as it decides them. `decode` chooses first. `decider` then says whether the prompt is
    computed apart: always, never, prompt-threshold or uncached-threshold; where not, and on instances that do both, the
    one that generates computes it too. It reads what its parts read.
    """

    prefill: Spec = "least-loaded"
    decode: Spec = "least-kv"
    decider: Spec = "always"

    pairs = True  # it chooses for both halves itself

    def __post_init__(self) -> None:
        halves = [registry.build("routing", getattr(self, role), f"{PLACE}.{role}") for role in ("prefill", "decode")]
        for role, half in zip(("prefill", "decode"), halves, strict=True):
            if getattr(half, "pairs", False):
                raise HeadwayError(f"{PLACE}.{role}: a policy that chooses pairs is none for a half of one.")
        decider = registry.build("decider", self.decider, f"{PLACE}.decider")
        self.pairing = Pairing(halves[0], halves[1], decider)
        self._parts = [part for one in self.pairing.parts for part in (one, *getattr(one, "_parts", ()))]
        self.entry = joined(registry.declared(type(self)), self.pairing.parts)
        self.route = self.pairing.route
        self.bind = self.pairing.bind
        self.metrics = self.pairing.metrics
        if hasattr(self.pairing, "observe"):
            self.observe = self.pairing.observe

    @property
    def seeks_prefixes(self) -> bool:
        """Whether it sends prompts where it believes them cached."""
        return "prefix_index" in registry.declared(self.pairing.prefill).exact


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


def joined(own: Entry, parts: Sequence[Any]) -> Entry:
    """What a pair reads: what its parts declare."""
    read = [registry.declared(part) for part in parts]
    return replace(
        own,
        exact=tuple(dict.fromkeys(signal for entry in read for signal in entry.exact)),
        reported=tuple(signal for signal in REPORTED if any(signal in entry.reported for entry in read)),
        oracle=any(entry.oracle for entry in read),
    )


def paired(routing: Any, instances: Sequence[InstanceView]) -> Any:
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


def of_prefill(rng: Callable[[str], Random], name: str) -> Random:
    """The decode half has the streams that it would have alone."""
    return rng(f"prefill.{name}")


def wrong_half(half: Any, role: str, answer: Any, request: Request, cluster: ClusterView) -> HeadwayError:
    """What is wrong with the answer of a half."""
    where = f"{PLACE}.{role}: {type(half).__name__}"
    if not isinstance(answer, Route):
        right = "route must return a Route, as in Route(view.id), or a Reject"
        return HeadwayError(f"{where}.{right}, got {shown(answer)}, at request {request.id}.")
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
