"""The same policies twice, for each stage: as a program in the policy language, and as a Python class."""

from __future__ import annotations

from heapq import heapify
from typing import Any, Final

from msgspec import Struct

from headway.policies.code.state import Sent
from headway.policies.context import Context
from headway.policies.queues import Ranked, Ticket
from headway.types import ADMIT, PS_PER_SECOND, Admit, Delay, Estimate, Priority, Reject, Request, Route, Scale
from headway.views.cluster import ClusterView
from headway.views.engine import EngineView
from headway.views.events import Event, Finished
from headway.views.instance import InstanceView
from headway.views.pool import PoolView


class Case(Struct, frozen=True):
    """A policy in both forms. Decisions of routers are measured with each of `instances`."""

    name: str
    stage: str
    source: str
    plain: Any  # a class; for `score` and `route`, None: the source itself, run as plain Python
    instances: tuple[int, ...] = (8, 64)


# --- routing: the source is also the Python code ---------------------------------------------------------------------

WEIGHTED: Final = """
W = 0.7
def score(request, instance, cluster):
    q = 1.0 - instance.queued / 12
    kv = instance.kv_used / instance.kv_blocks
    s = W * q + 0.2 * (1.0 - kv) + 0.1 * instance.capacity
    if kv > 0.9:
        s = s - 0.5 * (kv - 0.9)
    return s
"""
LOOP: Final = """
def score(request, instance, cluster):
    most = 1
    for other in cluster.instances:
        if other.queued > most:
            most = other.queued
    return 0.7 * (1.0 - instance.queued / most) + 0.2 * (1.0 - instance.kv_used / instance.kv_blocks)
"""
PRODUCT: Final = """
def score(request, instance, cluster):
    return (instance.pending_prefill_tokens + request.prompt_tokens) * -(instance.inflight + 1)
"""
TIERS: Final = """
def score(request, instance, cluster):
    used = instance.tier_used.get("cpu", 0) / instance.tier_blocks["cpu"]
    weight = cluster.priority.hints.get("weight", 1)
    loaded = 1 if request.adapter in instance.adapters else 0
    return loaded + weight * (1.0 - used) - 0.1 * instance.inflight / (1 + instance.usd_per_hour)
"""
TWO_LOOPS: Final = """
def route(request, instances, cluster):
    most = 1
    for other in instances:
        if other.queued > most:
            most = other.queued
    best = 0
    top = -1e9
    place = 0
    for view in instances:
        kv = view.kv_used / view.kv_blocks
        s = 0.7 * (1.0 - view.queued / most) + 0.2 * (1.0 - kv) + 0.1 * view.capacity
        if kv > 0.9:
            s -= 0.5 * (kv - 0.9)
        if s > top:
            top = s
            best = place
        place += 1
    return best
"""
COMPREHENSIONS: Final = """
def route(request, instances, cluster):
    most = max(v.inflight for v in instances)
    if most == 0:
        return 0
    scores = [v.inflight / most + 0.3 * v.kv_used / v.kv_blocks for v in instances]
    low = min(scores)
    for i in range(len(scores)):
        if scores[i] == low:
            return i
    return 0
"""
PAIR: Final = """
def route(request, instances, cluster):
    prefill = None
    decode = None
    for one in instances:
        if one.role == "prefill":
            if prefill is None or one.pending_prefill_tokens < prefill.pending_prefill_tokens:
                prefill = one
        elif decode is None or one.kv_used < decode.kv_used:
            decode = one
    return send(decode, prefill=prefill, reason="fewest tokens", priority=cluster.priority.score)
"""
ESTIMATES: Final = """
def route(request, instances, cluster):
    best = instances[0]
    low = 1e9
    for one in instances:
        wait = estimated_ttft(one, request.prompt_tokens)
        if wait < low:
            low = wait
            best = one
    return best
"""
BY_KEY: Final = """
def route(request, instances, cluster):
    return min(instances, key=lambda v: (v.inflight, v.queued, v.index))
"""
# What the library adds to Python, as plain functions.
ADDED: Final[dict[str, Any]] = {"send": Sent, "estimated_ttft": lambda view, tokens: view.estimated_ttft(tokens)}


class PlainScore:
    def __init__(self, source: str) -> None:
        space: dict[str, Any] = dict(ADDED)
        exec(source, space)
        self.score = space["score"]

    def route(self, request: Request, cluster: ClusterView) -> Route:
        score, instances = self.score, cluster.instances
        scores = [score(request, view, cluster) for view in instances]
        return Route(instances[scores.index(max(scores))].id, "highest score")


class PlainRoute:
    def __init__(self, source: str) -> None:
        space: dict[str, Any] = dict(ADDED)
        exec(source, space)
        self.choose = space["route"]

    def route(self, request: Request, cluster: ClusterView) -> Route:
        instances = cluster.instances
        best = self.choose(request, instances, cluster)
        if type(best) is Sent:
            prefill = None if best.prefill is None else best.prefill.id
            return Route(best.view.id, best.reason, 0, best.priority, None, prefill)
        return Route((instances[best] if type(best) is int else best).id, "chosen by code")


# --- the other stages of a router ------------------------------------------------------------------------------------


class PlainLimit:
    """Admits short prompts, and long ones while little is in flight."""

    SOURCE = """
def admit(request, cluster):
    return request.prompt_tokens < 500 or cluster.totals.inflight < 900
"""

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject:
        if request.prompt_tokens < 500 or cluster.totals.inflight < 900:
            return ADMIT
        return Reject("503: too much in flight")


class PlainShedding:
    """Sheds a bursting tenant, and delays the others while the queues are long."""

    SOURCE = """
def admit(request, cluster):
    if tenant(request).burst and tenant(request).active > 20:
        return False
    if min(one.queued for one in cluster.instances) > 8 and request.slo_class != "realtime":
        return 0.25
    return True
"""

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject | Delay:
        tenant = cluster.tenants[request.tenant]
        if tenant.burst and tenant.active > 20:
            return Reject("503: a burst")
        if min([view.queued for view in cluster.instances]) > 8 and request.slo_class != "realtime":
            return Delay(PS_PER_SECOND // 4)
        return ADMIT


class PlainImportance:
    """The weight of a class, the age of a request, and the length of its prompt."""

    SOURCE = """
def prioritise(request, cluster):
    weight = 3 if request.slo_class == "realtime" else 1
    return (weight + 0.1 * (cluster.now - request.arrival) - request.prompt_tokens / 10000, {"weight": weight})
"""

    def prioritise(self, request: Request, cluster: ClusterView) -> Priority:
        weight = 3 if request.slo_class == "realtime" else 1
        score = weight + 0.1 * (cluster.now - request.arrival) - request.prompt_tokens / 10000
        return Priority(score, {"weight": weight}, "by class, age and length")


class PlainMean:
    """A moving mean of the lengths of each class."""

    SOURCE = """
def estimate(request, cluster):
    return recall(request.slo_class, 256)

def finished(request, instance, tokens, outcome):
    if outcome == "completed":
        mean = recall(request.slo_class, tokens)
        remember(request.slo_class, mean + 0.05 * (tokens - mean))
"""

    def bind(self, context: Context) -> None:
        self.means: dict[str, float] = {}

    def estimate(self, request: Request, cluster: ClusterView) -> Estimate:
        tokens = max(1, round(self.means.get(request.slo_class, 256)))
        return Estimate(tokens if request.max_tokens is None else min(tokens, request.max_tokens))

    def observe(self, event: Event) -> None:
        if isinstance(event, Finished) and event.outcome == "completed":
            mean = self.means.get(event.request.slo_class, event.output_tokens)
            self.means[event.request.slo_class] = mean + 0.05 * (event.output_tokens - mean)


class PlainThreshold:
    """Splits a request if the decode instance is believed to lack many of its tokens."""

    SOURCE = """
def apart(request, instance, cluster):
    return request.prompt_tokens - cached_tokens(instance) > 300 and instance.inflight < 40
"""

    def bind(self, context: Context) -> None:
        self.index = context.prefix_index(16, 31_250)

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool:
        cached = self.index.matches(request.path)[view.index] * 16
        return request.prompt_tokens - cached > 300 and view.inflight < 40


class PlainSooner:
    """Splits a request if a prefill instance computes its prompt sooner."""

    SOURCE = """
def apart(request, instance, cluster):
    tokens = request.prompt_tokens
    prefills = [one for one in cluster.instances if one.role == "prefill" and one.pool == instance.pool]
    soonest = min([estimated_ttft(one, tokens) for one in prefills], default=1e9)
    return 1.2 * soonest < estimated_ttft(instance, tokens)
"""

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool:
        tokens = request.prompt_tokens
        prefills = [one for one in cluster.instances if one.role == "prefill" and one.pool == view.pool]
        soonest = min([one.estimated_ttft(tokens) for one in prefills], default=1e9)
        return 1.2 * soonest < view.estimated_ttft(tokens)


# --- schedulers and autoscalers --------------------------------------------------------------------------------------


class PlainShortest:
    """Serves short prompts first, without starvation."""

    SOURCE = """
def key(ticket):
    return ticket.request.prompt_tokens + 100 * ticket.enqueued
"""

    def queue(self) -> Ranked:
        return Ranked(self.key, None)

    def key(self, ticket: Ticket) -> float:
        return ticket.request.prompt_tokens + 100 * ticket.enqueued


class PlainWaiting:
    """Serves short prompts first, and the longest waiting ones while memory is free: ordered anew after each change."""

    SOURCE = """
def key(ticket, engine):
    waited = engine.now - ticket.enqueued
    return ticket.request.prompt_tokens - (2000 if engine.kv_utilization < 0.5 else 200) * waited
"""

    def queue(self) -> PlainWaitingQueue:
        return PlainWaitingQueue()


class PlainWaitingQueue(Ranked):
    def __init__(self) -> None:
        super().__init__(self.rank, None)

    def see(self, engine: EngineView) -> None:
        self.engine = engine

    def rank(self, ticket: Ticket) -> float:
        engine = self.engine
        waited = engine.now - ticket.enqueued
        return ticket.request.prompt_tokens - (2000 if engine.kv_utilization < 0.5 else 200) * waited

    def rerank(self) -> None:
        waiting = [ticket for _, _, ticket in self.heap if ticket not in self.removed]
        self.removed.clear()
        for ticket in waiting:
            ticket.rank = (self.rank(ticket), ticket.number)
        self.heap = [(*ticket.rank, ticket) for ticket in waiting]
        heapify(self.heap)


class PlainTarget:
    """Keeps the mean concurrency of a replica near a target."""

    SOURCE = """
def scale(pool):
    wanted = concurrency(pool, 60) / 24
    if wanted < pool.replicas and pool.since_scaled is not None and pool.since_scaled < 120:
        return pool.replicas
    return wanted
"""

    def scale(self, pool: PoolView) -> Scale | None:
        wanted = pool.concurrency(60.0) / 24
        if wanted < pool.replicas and pool.since_scaled is not None and pool.since_scaled < 120:
            return None
        replicas = min(max(round(wanted), pool.minimum), pool.maximum)
        return None if replicas == pool.replicas else Scale(replicas, f"{wanted:.1f} replicas wanted")


def _case(name: str, stage: str, plain: Any, *instances: int) -> Case:
    return Case(name, stage, plain.SOURCE, plain, instances or (8, 64))


CASES: Final = (
    Case("a score: weighted", "routing", WEIGHTED, PlainScore),
    Case("a score: with a loop", "routing", LOOP, PlainScore),
    Case("a score: a product", "routing", PRODUCT, PlainScore),
    Case("a score: tiers, hints, adapters", "routing", TIERS, PlainScore),
    Case("a route: two loops", "routing", TWO_LOOPS, PlainRoute),
    Case("a route: comprehensions", "routing", COMPREHENSIONS, PlainRoute),
    Case("a route: a pair with reasons", "routing", PAIR, PlainRoute),
    Case("a route: an estimate of each", "routing", ESTIMATES, PlainRoute),
    Case("a route: by a key", "routing", BY_KEY, PlainRoute),
    _case("a limit", "admission", PlainLimit, 8),
    _case("shedding and delays", "admission", PlainShedding),
    _case("class, age and length", "priority", PlainImportance, 8),
    _case("a moving mean", "estimator", PlainMean, 8),
    _case("uncached tokens", "decider", PlainThreshold),
    _case("the sooner side", "decider", PlainSooner),
    _case("a key", "scheduler", PlainShortest, 8),
    _case("a key after each change", "scheduler", PlainWaiting, 8, 64),
    _case("a target of concurrency", "scaling", PlainTarget, 8),
)
