"""Flow control: a queue at the router, between priority and routing, that dispatches requests while the cluster is not
saturated. While a request is queued, other requests can overtake it, and its instance is not chosen yet.

    bands       the highest band that contains a request is served first
    fairness    which lane of a band is served first; all tenants share one lane (strict), or each has its own lane
    order       which request of a lane is served first
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from heapq import heapify, heappop, heappush
from math import fsum, isfinite, lcm
from typing import Annotated, Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from headway.config.keys import DURATION
from headway.config.units import positive_duration_ps
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.policies.classes import CLASSES, exact_weights
from headway.policies.context import Context
from headway.policies.registry import Bounds, entry_of, policy
from headway.types import NEVER, Priority, Request
from headway.views.cluster import ClusterView

SLACK: Final = 16  # number of stale entries that a lane may always keep, even if it has no waiting request
READS: Final = {  # saturation signal -> (exact signals, reported signals) that it reads
    "never": ((), ()),
    "utilization": (("inflight",), ("queued", "kv_used")),
    "concurrency": (("inflight", "inflight_tokens"), ()),
}
Capacity = Annotated[int | None, Bounds(1, 1e9, log=True)]


@policy("flow", "none", exact=(), reported=())
class NoFlow:
    """Routes an admitted request at once, without a queue."""


class Waiting(Struct, eq=False):
    """A request in the queue."""

    request: Request
    priority: Priority
    number: int  # sequence number of arrival in the queue
    since_ps: int
    key: float  # the lowest key is served first; of equal keys, the lowest `number`
    band: Band
    lane: Lane
    left: bool = False  # whether the request has left the queue
    reason: str = ""  # reason of its timeout or rejection, if any


class Lane(Struct, eq=False):
    """Requests in the order in which they are served. If a request has left, its entry is stale, and `pop` skips it."""

    heap: list[tuple[float, int, Waiting]] = []
    live: int = 0
    rank: int = 0  # rank of the lane's next turn
    waits: bool = False  # whether the lane waits for a turn

    def push(self, entry: Waiting) -> None:
        heappush(self.heap, (entry.key, entry.number, entry))
        self.live += 1

    def pop(self) -> Waiting:
        """Remove and return the first request; the lane must not be empty."""
        while True:
            _, _, entry = heappop(self.heap)
            if not entry.left:
                return entry

    def forget(self) -> None:
        """Decrease the number of live requests by one. If the heap then has many stale entries, remove all stale
        entries."""
        self.live -= 1
        if len(self.heap) > 2 * self.live + SLACK:
            self.heap = [item for item in self.heap if not item[2].left]
            heapify(self.heap)


class Band(Struct, eq=False):
    """The lanes of one priority. The lane with the lowest rank is served next. If several lanes have the same rank, the
    lane whose first request entered the queue earliest is served next."""

    name: str
    lanes: defaultdict[str, Lane] = field(default_factory=lambda: defaultdict(Lane))  # tenant -> lane
    members: OrderedDict[int, Waiting] = field(default_factory=OrderedDict)  # request id -> entry, the newest last
    turns: list[tuple[int, int, Lane]] = []  # heap: (rank, number of the lane's first request, lane) of waiting lanes
    clock: int = 0  # with weighted fairness: rank of the last turn; otherwise: highest rank assigned so far


@policy("flow", "bands", exact=READS["utilization"][0], reported=READS["utilization"][1])
class Bands:
    """Queues requests in priority bands and dispatches them while the cluster is not saturated.

    Bands: `by: class` makes one band for each SLO class in `classes`, the most important first. A class that is not
    listed uses the band of standard, or the last one. `by: score` makes bands of the priority score: `thresholds:
    [10, 0]` makes three, from 10 on, from 0 on, and below. A band is served only while those above are empty.

    Inside a band, `fairness` is strict (all tenants in one order), round-robin (one request of each tenant in turn) or
    weighted (shares by `weights`, 1 for others, of the prompt tokens or requests that `share` names). Weighted uses
    virtual time, so an idle tenant saves up nothing. `order` is fifo, priority (highest score first) or deadline
    (earliest first, none last). Ties: first come, first served.

    `saturation` is never, utilization or concurrency. With utilization the cluster is saturated if every instance
    reports `queue_threshold` queued requests or KV use of `kv_threshold`, unless nothing is in flight. With concurrency
    it is saturated at `max_inflight` requests in flight per instance, by the router's exact count, or at
    `max_inflight_tokens` prompt tokens per instance, if set. Between two reports utilization dispatches every queued
    request; concurrency does not.

    `ceiling` holds the lower bands back before that, gradually. It replaces the rule above by a saturation s: the mean
    over instances of max(queue ÷ `queue_threshold`, KV use ÷ `kv_threshold`), or with concurrency the highest share of
    a limit. Band i of N (0: the most important) is open while s is below its ceiling. With holdback the ceilings fall
    in equal steps from 1 to `min_ceiling`. With reflective the ceiling is 1 − i × s ÷ (N − 1). Between it and s = 1 a
    reflective band is open for one dispatch in round(s ÷ (1 − s)). While nothing is in flight, every band is open.

    The queue is examined when a request arrives, gets its first token or ends, and when a timeout is due. Requests that
    waited for `ttl` time out first. Then requests are dispatched. Then those beyond `band_capacity` in a band, or
    beyond `capacity` in all, are rejected, the newest first.
    """

    by: Literal["class", "score"] = "class"
    classes: list[str] = dataclasses.field(default_factory=lambda: list(CLASSES))
    thresholds: list[float] = dataclasses.field(default_factory=lambda: [0.0])
    order: Literal["fifo", "priority", "deadline"] = "fifo"
    fairness: Literal["strict", "round-robin", "weighted"] = "strict"
    weights: dict[str, float] = dataclasses.field(default_factory=dict)
    share: Literal["tokens", "requests"] = "tokens"
    ttl: Annotated[str | int | float | None, DURATION] = None
    band_capacity: Capacity = None
    capacity: Capacity = None
    saturation: Literal["never", "utilization", "concurrency"] = "utilization"
    queue_threshold: Annotated[int, Bounds(1, 100_000, log=True)] = 5
    kv_threshold: Annotated[float, Bounds(0.01, 1)] = 0.8
    max_inflight: Annotated[int, Bounds(1, 100_000, log=True)] = 100
    max_inflight_tokens: Annotated[int | None, Bounds(1, 1e9, log=True)] = None
    ceiling: Literal["none", "holdback", "reflective"] = "none"
    min_ceiling: Annotated[float, Bounds(0, 1)] = 0.5

    def __post_init__(self) -> None:
        exact, reported = READS[self.saturation]
        self.entry = replace(entry_of(type(self)), exact=exact, reported=reported)
        self.ttl_ps = None if self.ttl is None else positive_duration_ps(self.ttl, "policies.flow.ttl")
        if not self.classes or len(set(self.classes)) != len(self.classes):
            raise HeadwayError(f"policies.flow.classes: expected different names, got {shown(self.classes)}.")
        falling = all(high > low for high, low in zip(self.thresholds, self.thresholds[1:], strict=False))
        if not falling or not all(map(isfinite, self.thresholds)):
            raise HeadwayError(f"policies.flow.thresholds: expected decreasing numbers, got {shown(self.thresholds)}.")
        # A turn of a tenant with weight w takes cost / w of virtual time. The factor `unit` makes this an integer.
        weights = exact_weights(self.weights, "policies.flow.weights")
        self.unit = lcm(*(weight.numerator for weight in weights.values()))
        self.prices = {tenant: int(self.unit / weight) for tenant, weight in weights.items()}

    def bind(self, context: Context) -> None:
        names = self.classes if self.by == "class" else [*(f"from {low:g}" for low in self.thresholds), "the last"]
        self.bands = [Band(name) for name in names]
        self.places = {name: place for place, name in enumerate(self.classes)}
        self.usual = self.places.get("standard", len(self.classes) - 1)
        self.waiting: OrderedDict[int, Waiting] = OrderedDict()  # request id -> entry, the oldest first
        self.came = 0
        self.turn = 0  # number of dispatches for which a reflective ceiling was reached
        self.peak = 0
        self.timed_out = 0
        self.turned_away = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def put(self, now_ps: int, request: Request, priority: Priority) -> None:
        self.came += 1
        band = self.bands[self.place(request, priority)]
        lane = band.lanes["" if self.fairness == "strict" else request.tenant]
        entry = Waiting(request, priority, self.came, now_ps, self.key(request, priority), band, lane)
        self.waiting[request.id] = band.members[request.id] = entry
        lane.push(entry)
        if not lane.waits:
            self.give_turn(band, lane)

    def key(self, request: Request, priority: Priority) -> float:
        if self.order == "priority":
            return -priority.score
        if self.order == "deadline":
            return NEVER if request.deadline_ps is None else request.deadline_ps
        return 0

    def place(self, request: Request, priority: Priority) -> int:
        if self.by == "class":
            return self.places.get(request.slo_class, self.usual)
        reached = (place for place, low in enumerate(self.thresholds) if priority.score >= low)
        return next(reached, len(self.thresholds))

    def give_turn(self, band: Band, lane: Lane) -> None:
        """Add the lane to the lanes that wait for a turn. With weighted fairness, its rank is raised to the rank of the
        last turn, so that a lane earns no advantage while it is empty."""
        if self.fairness != "weighted":
            band.clock += 1
            lane.rank = band.clock
        elif lane.rank < band.clock:
            lane.rank = band.clock
        lane.waits = True
        while lane.heap[0][2].left:  # a stale entry must not break a tie
            heappop(lane.heap)
        heappush(band.turns, (lane.rank, lane.heap[0][1], lane))

    def take(self, cluster: ClusterView) -> Waiting | None:
        """Remove and return the next request to dispatch. If the queue is empty or the cluster is saturated, return
        None."""
        if not self.waiting:
            return None
        place = next(place for place, band in enumerate(self.bands) if band.members)
        if self.saturated(cluster) if self.ceiling == "none" else not self.is_open(place, cluster):
            return None
        band = self.bands[place]
        while True:
            rank, _, lane = heappop(band.turns)
            lane.waits = False
            if lane.live:
                break
        entry = lane.pop()
        if self.fairness == "weighted":
            band.clock = rank
            cost = entry.request.prompt_tokens if self.share == "tokens" else 1
            lane.rank = rank + cost * self.prices.get(entry.request.tenant, self.unit)
        self.forget(entry)
        if lane.live:
            self.give_turn(band, lane)
        return entry

    def forget(self, entry: Waiting) -> None:
        entry.left = True
        del self.waiting[entry.request.id], entry.band.members[entry.request.id]
        entry.lane.forget()

    def remove(self, request_id: int) -> Waiting | None:
        """Remove and return a request. If it is not in the queue, return None."""
        entry = self.waiting.get(request_id)
        if entry is not None:
            self.forget(entry)
        return entry

    def saturated(self, cluster: ClusterView) -> bool:
        instances = cluster.instances
        if self.saturation == "utilization":
            most, share = self.queue_threshold, self.kv_threshold
            full = all(view.queued >= most or view.kv_used >= share * view.kv_blocks for view in instances)
            return full and any(view.inflight for view in instances)
        if self.saturation == "concurrency":
            if sum([view.inflight for view in instances]) >= len(instances) * self.max_inflight:
                return True
            most_tokens = self.max_inflight_tokens
            if most_tokens is not None:
                return sum([view.inflight_tokens for view in instances]) >= len(instances) * most_tokens
        return False

    def is_open(self, place: int, cluster: ClusterView) -> bool:
        """Return whether the band at this place is below its ceiling. A ceiling never rises from one band to the
        next."""
        level = self.level(cluster)
        last = len(self.bands) - 1
        if self.ceiling == "holdback":
            open_now = level < 1.0 - (place * (1.0 - self.min_ceiling) / last if last else 0.0)
        elif not place or level < 1.0 - place * level / last:
            open_now = level < 1.0
        elif level >= 1.0:
            open_now = False
        else:
            self.turn += 1
            open_now = self.turn % max(1, int(level / (1.0 - level) + 0.5)) == 0
        return open_now or not any(view.inflight for view in cluster.instances)

    def level(self, cluster: ClusterView) -> float:
        """Return the saturation that ceilings are compared with; from 1 on, the cluster is saturated."""
        instances = cluster.instances
        if self.saturation == "utilization":
            queue, kv = self.queue_threshold, self.kv_threshold
            shares = [max(view.queued / queue, view.kv_used / view.kv_blocks / kv) for view in instances]
            return fsum(shares) / len(instances)
        if self.saturation == "concurrency":
            level = sum([view.inflight for view in instances]) / (len(instances) * self.max_inflight)
            if self.max_inflight_tokens is not None:
                tokens = sum([view.inflight_tokens for view in instances])
                level = max(level, tokens / (len(instances) * self.max_inflight_tokens))
            return level
        return 0.0

    @property
    def next_ps(self) -> int:
        """The time at which the next request times out, in picoseconds. NEVER if no request can time out."""
        if self.ttl_ps is None or not self.waiting:
            return NEVER
        return next(iter(self.waiting.values())).since_ps + self.ttl_ps

    def pop_expired(self, now_ps: int) -> Waiting | None:
        """If the oldest request has timed out by now, remove and return it. Otherwise return None."""
        if self.next_ps > now_ps:
            return None
        entry = next(iter(self.waiting.values()))
        entry.reason = f"waited {self.ttl} in the router's queue"
        self.timed_out += 1
        self.forget(entry)
        return entry

    def oldest(self) -> Waiting | None:
        """Remove and return the request that has waited longest. If the queue is empty, return None."""
        return self.remove(next(iter(self.waiting))) if self.waiting else None

    def excess(self) -> Waiting | None:
        """If a band or the whole queue exceeds its capacity, remove and return its newest request. Otherwise return
        None."""
        bands = [] if self.band_capacity is None else [(self.band_capacity, band.members, band) for band in self.bands]
        for limit, members, band in (*bands, (self.capacity, self.waiting, None)):
            if limit is not None and len(members) > limit:
                entry = next(reversed(members.values()))
                where = "" if band is None else f" in the band {band.name}"
                entry.reason = f"429: the router's queue is full: its limit is {limit}{where}"
                self.turned_away += 1
                self.forget(entry)
                return entry
        self.peak = max(self.peak, len(self.waiting))
        return None

    def metrics(self) -> dict[str, float]:
        return {"flow_queued_peak": self.peak, "flow_timed_out": self.timed_out, "flow_turned_away": self.turned_away}
