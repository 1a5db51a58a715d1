"""Routing with prefill/decode disaggregation: a policy for each half, and a decider that says which requests to split.

The decode half chooses an instance first. This instance also computes the prompt if it has the role `both`, or if the
decider (`policies.decider`) returns False. Otherwise the prefill half chooses a prefill instance of the same
deployment. The decider may also choose another instance that serves the request whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Annotated, Any

from msgspec.structs import replace

from headway.config.keys import Form
from headway.config.wording import one_line, shown
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.answers import wrong_answer
from headway.policies.context import Context
from headway.policies.deciders import Always
from headway.policies.parts import collect_metrics, combine_entries, combine_kinds
from headway.policies.policy_schema import policy_form
from headway.policies.registry import policy
from headway.policies.scorecards import ids
from headway.types import Reject, Request, Route, Scorecard
from headway.views.cluster import ClusterView
from headway.views.events import FURTHER, Event, InstanceChanged, Routed, observed_kinds
from headway.views.instance import InstanceView

PLACE = "policies.routing"
Spec = str | dict[str, Any]  # a policy: its name, or a mapping with name and parameters
HalfSpec = Annotated[Spec, policy_form("routing")]
DECIDER = "policies.decider"
TWICE = f"{DECIDER}: the routing policy names a decider too. Remove its key `decider`, which is the former place."


class Half(ClusterView):
    """The cluster as the prefill or decode half sees it: only the instances that the half may choose."""

    __slots__ = ("by_id",)

    def __init__(self, instances: Sequence[InstanceView]) -> None:
        super().__init__(instances)
        self.by_id = {view.id: view for view in instances}

    def at(self, cluster: ClusterView) -> Half:
        """Copy the time, priority and other state of the current decision from `cluster` into this view, and return
        this view."""
        self.now_ps = cluster.now_ps
        self.priority = cluster.priority
        self.explain = cluster.explain
        self._estimate = cluster._estimate
        self._tenants = cluster._tenants
        self._totals = cluster._totals
        return self

    def find(self, answer: Any) -> InstanceView | None:
        """Return the instance that a policy's answer names. If the answer is not a `Route` to a single instance of this
        half, return None."""
        if not isinstance(answer, Route) or answer.prefill is not None:
            return None
        try:
            return self.by_id.get(answer.target)
        except TypeError:  # the target is not hashable
            return None


class Halves:
    """The views of a group of instances: one view of all instances that generate tokens, and for each deployment one
    view of its prefill instances."""

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
    """Combines a prefill policy, a decode policy and a decider. Each policy sees only the instances of its half."""

    pairs = True  # marks a policy that chooses a prefill instance and a decode instance

    def __init__(self, prefill: Any, decode: Any, decider: Any) -> None:
        self.assemble(decode, prefill, decode, decider)

    def assemble(self, whole: Any, prefill: Any, decode: Any, decider: Any) -> None:
        """Set the policies of the two halves and the decider. The pairing gets the catalogue entry of `whole`, except
        that it declares the signals that the two policies and the decider read."""
        self._whole, self.parts = whole, (prefill, decode, decider)
        self._parts = [inner for part in self.parts for inner in (part, *getattr(part, "_parts", ()))]
        self.entry = combine_entries(whole, self.parts)
        self.split = 0  # number of requests with a prefill instance and a decode instance
        self.whole = 0  # number of requests on one instance
        self.halves: dict[int, Halves] = {}  # index of a group of instances -> its prefill and decode views
        self.numbers: dict[tuple[int, str], int] = {}  # (group, pool) -> group number that the prefill half sees
        self.sent: dict[int, InstanceView] = {}  # request id -> prefill instance, if the prefill half gets events
        if any(hasattr(part, "observe") for part in self.parts):
            self.observe, self.observes = self._observe, combine_kinds(self.parts)

    def bind(self, context: Context) -> None:
        renamed = context.with_streams("prefill.{}")  # other random streams than those of the decode half
        for part, part_context in zip(self.parts, (renamed, context, context), strict=True):
            if hasattr(part, "bind"):
                part.bind(part_context)

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
        if view.role == "both" or prompting is None:
            self.whole += 1
            return chosen
        apart = self.apart(request, view, cluster, generating)
        if apart is not True:
            self.whole += 1
            return chosen if apart is False else self.moved(chosen, apart, generating)
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

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView, generating: Half) -> bool | Route:
        """Ask the decider: True to split the request, False to serve it whole on `view`, or a route to serve it whole
        on another instance."""
        decider = self.parts[2]
        answer = decider.apart(request, view, cluster)
        if not isinstance(answer, bool) and generating.find(answer) is None:
            right = "apart must return True, False, or a Route to one instance that generates"
            raise wrong_answer(DECIDER, decider, right, answer, request)
        whole: bool | Route = answer
        return whole

    @staticmethod
    def moved(chosen: Route, whole: Route, generating: Half) -> Route:
        """Return the route of a request that the decider serves whole on another instance."""
        card = chosen.scorecard
        if card is not None:
            card = replace(card, picked=whole.target)
        return replace(whole, priority=chosen.priority if whole.priority is None else whole.priority, scorecard=card)

    def use(self, decider: Any) -> None:
        """Replace the decider."""
        self.assemble(self._whole, self.parts[0], self.parts[1], decider)

    def _observe(self, event: Event) -> None:
        """Pass an event on to the policies. The decode half and the decider get the event unchanged. The prefill half
        gets it only if the request has a prefill instance; `event.instance` is then the prefill instance. An event
        in `FURTHER` goes unchanged to the parts that list its class in `observes`."""
        prefill, *others = self.parts
        if isinstance(event, FURTHER):
            for part in self.parts:
                if type(event) in observed_kinds(part):
                    part.observe(event)
            return
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
    """Chooses a prefill instance and a decode instance, each by its own routing policy.

    `prefill` and `decode` are routing policies, by name or with parameters. Each sees only the instances of its half
    and breaks ties by its own rule. `decode` chooses first. If the decider (`policies.decider`) does not split the
    request, or the instance has role both, the decode instance also computes the prompt. It reads the signals that its
    parts read. Its own key `decider` is the former place of `policies.decider`, and works in this version only.

    Limits: those of its parts. By default, `least-kv` chooses the decode instance. Between two reports it sends every
    request to the same instance, which delays the many short requests of some traces. It cannot see the queue of a slow
    instance. For `decode`, use `least-loaded`.
    """

    prefill: HalfSpec = "least-loaded"
    decode: HalfSpec = "least-kv"
    decider: Annotated[Spec | None, Form.of(policy_form("decider"), None)] = None

    def __post_init__(self) -> None:
        halves = [registry.build("routing", getattr(self, role), f"{PLACE}.{role}") for role in ("prefill", "decode")]
        for role, half in zip(("prefill", "decode"), halves, strict=True):
            if getattr(half, "pairs", False):
                raise HeadwayError(f"{PLACE}.{role}: the policy chooses two instances. Use a policy that chooses one.")
        decider = Always() if self.decider is None else registry.build("decider", self.decider, f"{PLACE}.decider")
        self.assemble(type(self), halves[0], halves[1], decider)

    def use(self, decider: Any) -> None:
        if self.decider is None:
            super().use(decider)
        elif not isinstance(decider, Always):
            raise HeadwayError(TWICE)

    @property
    def seeks_prefixes(self) -> bool:
        """Whether the policy prefers prefill instances that it believes to have the prompt cached."""
        return "prefix_index" in registry.entry_of(self.parts[0]).exact


@policy("routing", "least-loaded-pair", exact=("inflight",), reported=())
class LeastLoadedPair(Pair):
    """Chooses the prefill instance and the decode instance with the fewest requests in flight.

    Both loads are the router's own exact counts. A request counts on the prefill instance until its prompt is computed,
    and on the decode instance from routing until it ends. Ties: lowest index.
    """

    decode: HalfSpec = "least-loaded"


@policy(
    "routing", "prefix-pair", exact=("prefix_index", "routed_since_report"), reported=("queued", "running", "kv_used")
)
class PrefixPair(Pair):
    """Chooses the prefill instance by cached prefix, queue and KV use, and the decode instance by lowest KV use.

    Set `keep_prefill_copy: true` in the deployment's `transfer`. Without it a prefill instance loses its copy of the
    prefix when the blocks are transferred, and the run prints a warning. Ties: lowest index.

    Limits: those of its parts. By default, `least-kv` chooses the decode instance. Between two reports it sends every
    request to the same instance, which delays the many short requests of some traces. It cannot see the queue of a slow
    instance. For `decode`, use `least-loaded`.
    """

    prefill: HalfSpec = "weighted"


def make_pairing(routing: Any, instances: Sequence[InstanceView], decider: Any = None) -> Any:
    """Adapt a routing policy to the cluster. If there are prefill instances and the policy chooses one instance for a
    request, the policy chooses the decode instance, and an independent copy of it chooses the prefill instance. The
    decider says which requests are split, unless the policy decides that itself."""
    if getattr(routing, "pairs", False):
        if isinstance(routing, Pairing) and decider is not None:
            routing.use(decider)
        return routing
    if not has_prefill(instances):
        return routing
    try:
        other = deepcopy(routing)
    except Exception as error:
        problem = f"{PLACE}: a copy of {type(routing).__name__} must choose prefill instances, but copying it failed"
        remedy = "Pass the policy's class or name instead of an object"
        raise HeadwayError(f"{problem}: {one_line(error)}. {remedy}.") from error
    return Pairing(other, routing, Always() if decider is None else decider)


def has_prefill(instances: Sequence[InstanceView]) -> bool:
    return any(view.role == "prefill" for view in instances)


def wrong_half(half: Any, role: str, answer: Any, request: Request, cluster: ClusterView) -> HeadwayError:
    """Return the error for a wrong answer of the prefill or decode policy."""
    if not isinstance(answer, Route):
        right = "route must return a Route, as in Route(view.id), or a Reject"
        return wrong_answer(f"{PLACE}.{role}", half, right, answer, request)
    where = f"{PLACE}.{role}: {type(half).__name__}"
    if answer.prefill is not None:
        wrong = f"must choose one of its candidates, but also named an instance for 'prefill', at request {request.id}"
        return HeadwayError(f"{where} {wrong}. If the policy chooses both instances, set `pairs = True` in it.")
    known = ", ".join(ids(cluster.instances)[:8])
    wrong = f"routed request {request.id} to {shown(answer.target)}, which is not one of its candidates ({known})"
    return HeadwayError(f"{where} {wrong}.")


def both_cards(chosen: Route, generating: ClusterView, other: Route, prompting: ClusterView) -> Scorecard:
    """Return the scorecard of the decode half. It contains the scorecard of the prefill half."""
    prefill = other.scorecard or Scorecard(ids(prompting.instances), other.target)
    if chosen.scorecard is None:
        return Scorecard(ids(generating.instances), chosen.target, prefill=prefill)
    return replace(chosen.scorecard, prefill=prefill)
