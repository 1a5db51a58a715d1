"""Several routers in front of one cluster. To the event loop they are one control plane.

Each router has its own control plane: views, counts, policies, prefix indexes, queue, delayed requests and random
streams. If the routers synchronise, they exchange their counts at every multiple T of the interval: each router learns
what the other routers had counted before T. The views of a router then show its own current counts plus the counts of
the other routers at T. Its prefix indexes learn which prompts the other routers have sent to which instances. The
exchange runs just before the first event at or after T. The exchange may run later than T, because no count changes
between T and that event. If requests wait in a router's queue, the exchange is an event of its own, because it may let
the router send them.
"""

from collections.abc import Callable
from math import isfinite
from random import Random

from headway.config.wording import shown
from headway.control.flights import Answer, Decision, Flight
from headway.control.plane import ControlPlane
from headway.errors import HeadwayError
from headway.hashing import stable
from headway.policies.prefix_index import PrefixIndex
from headway.scenario.scenario import RouterSpec
from headway.sim.reported_signals import Signals
from headway.types import NEVER, Path, Priority, Reject, Request
from headway.views.instance import REPORTED, SHARED, InstanceView


def streams(rng: Callable[[str], Random], router: int) -> Callable[[str], Random]:
    """Return the random streams of a router. The first router has the same streams as a single router would have."""
    return (lambda name: rng(f"router-{router}.{name}")) if router else rng


class Routers:
    """Forwards the calls of the event loop to the router of each request."""

    def __init__(self, spec: RouterSpec, seed: int, planes: list[ControlPlane], signals: Signals) -> None:
        self.sync_ps = spec.sync_interval_ps
        self.by_session = spec.spread == "sessions"
        self.seed = seed
        self.planes = planes
        self.cluster = planes[0].cluster  # cluster view of the router that was called last
        self.flow = planes[0].flow  # either all routers have flow control or none
        self.observers = planes[0].observers
        self.indexes: list[PrefixIndex] = [index for plane in planes for index in plane.indexes]
        self.exchanges = self.sync_ps is not None and any(
            plane.routed_indexes or plane.audience.accessed for plane in planes
        )
        self.views: list[list[InstanceView]] = [list(plane.ordered) for plane in planes]
        self.home: list[int] = []  # index of each request's router, by request id
        self.pumped = 0  # index of the router whose queue `pump` reads next
        # The reported signals are written to the views of a shared board. A router copies them before it decides.
        self.signals = signals
        self.board = signals.board
        self.reported = ("observed_at", *[name for name in REPORTED if hasattr(self.board[0], name)])
        self.copied: list[int | None] = [-1] * len(planes)  # time of the report that each router has copied
        # For each signal name, router and instance: the sum of the other routers' counts at the last exchange.
        self.foreign: dict[str, list[list[int]]] = {name: [[0] * len(views) for views in self.views] for name in SHARED}
        self.changed: dict[int, None] = {}  # indices of instances whose counts changed since the last exchange
        # (router, instance, prompt) of each request that a router has sent since the last exchange
        self.touches: list[tuple[int, int, Path]] = []
        self.sync_at = NEVER if self.sync_ps is None else self.sync_ps

    def choose(self, request: Request) -> int:
        """Return the router of a request. The choice is a hash and uses no random stream."""
        sender = (request.tenant, request.session) if self.by_session and request.session is not None else (request.id,)
        return stable(self.seed, *sender) % len(self.planes)

    def counts(self) -> list[int]:
        """Return how many requests each router has received."""
        requests = [0] * len(self.planes)
        for router in self.home:
            requests[router] += 1
        return requests

    def looking(self, router: int) -> ControlPlane:
        """Copy the reported signals to a router's views before it decides, and return its control plane."""
        plane = self.planes[router]
        self.cluster = plane.cluster
        at = self.board[0].observed_at
        if at is None or at != self.copied[router]:  # None: the signals are always fresh
            self.copied[router] = at
            for source, view in zip(self.board, self.views[router], strict=True):
                for name in self.reported:
                    setattr(view, name, getattr(source, name))
        return plane

    def arrive(self, now_ps: int, request: Request) -> Answer:
        router = self.choose(request)
        self.home.append(router)
        answer = self.looking(router).arrive(now_ps, request)
        self.note_sent(router, answer)
        return answer

    def wake(self, now_ps: int) -> Decision | None:
        """Decide again about one waiting request. Requests that an admission policy delayed come first, in order of
        their ids over all routers. The other requests follow, in order of router."""
        turns = [
            (turn, router)
            for router, plane in enumerate(self.planes)
            if (turn := plane.waiting.next_turn(now_ps)) is not None
        ]
        if not turns:
            return None
        router = min(turns)[1]
        decision = self.looking(router).wake(now_ps)
        assert decision is not None
        self.note_sent(router, decision[1])
        return decision

    def pump(self, now_ps: int) -> Decision | None:
        """Return the next decision about a queued request, in order of router and then in the order of its queue."""
        while self.pumped < len(self.planes):
            router = self.pumped
            if self.planes[router].waiting.queued:
                plane = self.looking(router)
                decision = plane.pump(now_ps)
                if decision is not None:
                    if not plane.waiting.queued:  # `pump` is not called again for this router
                        plane.waiting.set_next()
                    self.note_sent(router, decision[1])
                    return decision
            self.pumped += 1
        self.pumped = 0
        return None

    def note_sent(self, router: int, flight: Answer) -> None:
        if not isinstance(flight, Flight):
            return
        for view in (flight.view, flight.prefill):
            if view is not None:
                self.changed[view.index] = None
                if self.exchanges:
                    self.touches.append((router, view.index, flight.request.path))

    @property
    def next_ps(self) -> int:
        queued = self.flow is not None and self.changed and any(plane.waiting.queued for plane in self.planes)
        earliest = self.sync_at if queued else NEVER
        for plane in self.planes:
            if plane.next_ps < earliest:
                earliest = plane.next_ps
        return earliest

    def on_first_token(self, now_ps: int, request_id: int) -> None:
        self.hearing(request_id).on_first_token(now_ps, request_id)

    def flight(self, request_id: int) -> Flight:
        return self.planes[self.home[request_id]].flight(request_id)

    def on_handed(self, now_ps: int, request_id: int) -> Flight:
        return self.hearing(request_id).on_handed(now_ps, request_id)

    def on_finished(self, now_ps: int, request_id: int, outcome: str, output_tokens: int) -> None:
        self.hearing(request_id).on_finished(now_ps, request_id, outcome, output_tokens)

    def hearing(self, request_id: int) -> ControlPlane:
        """Prepare the router of a request for an event that its policies may observe, and return its control plane."""
        router = self.home[request_id]
        flight = self.planes[router].flight(request_id)
        self.changed[flight.view.index] = None
        if flight.prefill is not None:
            self.changed[flight.prefill.index] = None
        return self.looking(router) if self.observers else self.planes[router]

    def listening(self, request_id: int = -1) -> list[ControlPlane]:
        """Return the control planes whose policies may observe an event: that of the request's router or, if
        `request_id` is -1, those of all routers."""
        routers = range(len(self.planes)) if request_id < 0 else [self.home[request_id]]
        return [self.looking(router) for router in routers]

    def give_up(self, request_id: int) -> bool:
        return self.planes[self.home[request_id]].give_up(request_id)

    def instance_changed(self, now_ps: int, index: int, state: str) -> None:
        self.board[index].state = state
        if state == "stopped":  # the cache of the instance is lost
            self.touches = [touch for touch in self.touches if touch[1] != index]
        for router, plane in enumerate(self.planes):
            if self.observers:
                self.looking(router)
            plane.instance_changed(now_ps, index, state)

    def resend(self, now_ps: int, request: Request, priority: Priority) -> Flight | Reject | None:
        router = self.home[request.id]
        answer = self.looking(router).resend(now_ps, request, priority)
        self.note_sent(router, answer)
        return answer

    def pools_of(self, request: Request) -> tuple[str, ...]:
        return self.planes[0].pools_of(request)

    def pending(self, pool: str) -> int:
        return sum(plane.pending(pool) for plane in self.planes)

    def check(self) -> None:
        for router, plane in enumerate(self.planes):
            plane.check(self.foreign["inflight"][router])

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the policies, summed over the routers in order."""
        totals: dict[str, float] = {}
        for plane in self.planes:
            for name, value in plane.metrics().items():
                totals[name] = totals.get(name, 0.0) + value
                if not isfinite(totals[name]):
                    raise HeadwayError(f"policies: the metric {shown(name)}, summed over the routers, is not finite.")
        return totals

    def sync(self, now_ps: int) -> None:
        """Exchange the counts between the routers if an exchange is due. Call this before any count changes at this
        instant. If several exchanges are due, run only the first one, because no count has changed between them."""
        if now_ps < self.sync_at or self.sync_ps is None:
            return
        tick = self.sync_at
        self.sync_at = now_ps // self.sync_ps * self.sync_ps + self.sync_ps
        if not self.changed:
            return
        self.exchange_touches(tick)
        for name, foreign in self.foreign.items():
            for at in self.changed:
                own = [getattr(views[at], name) - counts[at] for views, counts in zip(self.views, foreign, strict=True)]
                total = sum(own)
                for views, counts, count in zip(self.views, foreign, own, strict=True):
                    setattr(views[at], name, total)
                    counts[at] = total - count
        self.changed.clear()

    def exchange_touches(self, tick: int) -> None:
        """Tell each router's prefix indexes which prompts the other routers have sent to which instances. Before that,
        apply the KV events that are due at `tick`."""
        if not self.touches:
            return
        if self.signals.kv_events is not None:
            self.signals.kv_events.tell(tick)
        for router, plane in enumerate(self.planes):
            for sender, instance, path in self.touches:
                if sender != router:
                    for index in plane.routed_indexes:
                        index.touch(instance, path)
                    plane.audience.record_access(tick, instance, path)
        self.touches.clear()
