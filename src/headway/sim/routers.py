"""Several routers before one cluster: to the event loop they are one control plane, and each request has its router.

Each is a control plane of its own: own counts on views of its own, own policies, prefix indexes, queue, requests put
off and random streams. Where they exchange what they know, each takes over at every multiple T of the interval what the
others had counted by the events before T: its views then show its own count as it is and the others' as of T, and its
prefix indexes learn where the others have sent prompts. Nothing is scheduled: that is done before the first instant at
or after T at which anything happens, and until then nothing has changed. Only where requests wait in a router's queue
is the exchange an instant of its own: what a router hears may open its queue.
"""

from collections.abc import Callable
from functools import partial
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
    """The random streams of a router; the first has those that it would have alone."""
    return partial(draw_stream, rng, router) if router else rng


def draw_stream(rng: Callable[[str], Random], router: int, name: str) -> Random:
    return rng(f"router-{router}.{name}")


class Routers:
    """What the event loop asks of a control plane, done by the router whose request it is."""

    def __init__(self, spec: RouterSpec, seed: int, planes: list[ControlPlane], signals: Signals) -> None:
        self.sync_ps = spec.sync_interval_ps
        self.by_session = spec.spread == "sessions"
        self.seed = seed
        self.planes = planes
        self.cluster = planes[0].cluster  # of the router that has looked last
        self.flow = planes[0].flow  # all of them have one, or none
        self.observers = planes[0].observers
        self.indexes: list[PrefixIndex] = [index for plane in planes for index in plane.indexes]
        self.views: list[list[InstanceView]] = [list(plane.views.values()) for plane in planes]
        self.home: list[int] = []  # the router of each request
        self.pumped = 0  # the router whose queue is being looked through
        # What is reported stands on a board; a router copies it to its views before it looks.
        self.signals = signals
        self.board = signals.views
        self.reported = ("observed_at", *[name for name in REPORTED if hasattr(self.board[0], name)])
        self.copied: list[int | None] = [-1] * len(planes)  # the report that each has copied
        # What the others had counted by the last exchange: by name, router and instance.
        self.foreign: dict[str, list[list[int]]] = {name: [[0] * len(views) for views in self.views] for name in SHARED}
        self.changed: dict[int, None] = {}  # instances of which any of them has counted anything since
        self.touches: list[tuple[int, int, Path]] = []  # router, instance and prompt, since then
        self.sync_at = NEVER if self.sync_ps is None else self.sync_ps

    # --- which router ------------------------------------------------------------------------------------------

    def choose(self, request: Request) -> int:
        """By a hash, so that it is nobody's draw."""
        if self.by_session and request.session is not None:
            drawn = stable(self.seed, request.tenant, request.session)
        else:
            drawn = stable(self.seed, request.id)
        return drawn % len(self.planes)

    def counts(self) -> list[int]:
        """How many requests came to each router."""
        requests = [0] * len(self.planes)
        for router in self.home:
            requests[router] += 1
        return requests

    def looking(self, router: int) -> ControlPlane:
        """A router that is about to look, with what is reported on its views."""
        plane = self.planes[router]
        self.cluster = plane.cluster
        at = self.board[0].observed_at
        if at is None or at != self.copied[router]:  # without a date they are as of now
            self.copied[router] = at
            for source, view in zip(self.board, self.views[router], strict=True):
                for name in self.reported:
                    setattr(view, name, getattr(source, name))
        return plane

    # --- the way of a request ----------------------------------------------------------------------------------

    def arrive(self, now_ps: int, request: Request) -> Answer:
        router = self.choose(request)
        self.home.append(router)
        answer = self.looking(router).arrive(now_ps, request)
        self.note_sent(router, answer)
        return answer

    def wake(self, now_ps: int) -> Decision | None:
        """By request among those that admission delayed, whichever router did; then by router."""
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
        """By router, then in the order of its queue."""
        while self.pumped < len(self.planes):
            router = self.pumped
            if self.planes[router].waiting.queued:
                plane = self.looking(router)
                decision = plane.pump(now_ps)
                if decision is not None:
                    if not plane.waiting.queued:  # it will not be asked again
                        plane.waiting.set_next()
                    self.note_sent(router, decision[1])
                    return decision
            self.pumped += 1
        self.pumped = 0
        return None

    def note_sent(self, router: int, flight: Answer) -> None:
        if not isinstance(flight, Flight):
            return
        self.changed[flight.view.index] = None
        if flight.prefill is not None:
            self.changed[flight.prefill.index] = None
        if self.sync_ps is not None and self.indexes:
            self.touches.append((router, flight.view.index, flight.request.path))
            if flight.prefill is not None:
                self.touches.append((router, flight.prefill.index, flight.request.path))

    @property
    def next_ps(self) -> int:
        queued = self.flow is not None and self.changed and any(plane.waiting.queued for plane in self.planes)
        earliest = self.sync_at if queued else NEVER
        for plane in self.planes:
            if plane.next_ps < earliest:
                earliest = plane.next_ps
        return earliest

    # --- what happened -----------------------------------------------------------------------------------------

    def on_first_token(self, now_ps: int, request_id: int) -> None:
        self.hearing(request_id).on_first_token(now_ps, request_id)

    def flight(self, request_id: int) -> Flight:
        return self.planes[self.home[request_id]].flight(request_id)

    def on_handed(self, now_ps: int, request_id: int) -> Flight:
        router = self.home[request_id]
        flight = self.planes[router].flight(request_id)
        if flight.prefill is not None:
            self.changed[flight.prefill.index] = None
        plane = self.looking(router) if self.observers else self.planes[router]
        return plane.on_handed(now_ps, request_id)

    def on_finished(self, now_ps: int, request_id: int, outcome: str, output_tokens: int) -> None:
        self.hearing(request_id).on_finished(now_ps, request_id, outcome, output_tokens)

    def hearing(self, request_id: int) -> ControlPlane:
        """The router of a request, whose policies may look when they hear of it, and which counts it."""
        router = self.home[request_id]
        flight = self.planes[router].flight(request_id)
        self.changed[flight.view.index] = None
        if flight.prefill is not None:
            self.changed[flight.prefill.index] = None
        return self.looking(router) if self.observers else self.planes[router]

    def give_up(self, request_id: int) -> bool:
        return self.planes[self.home[request_id]].give_up(request_id)

    # --- instances that come and go --------------------------------------------------------------------------------

    def instance_changed(self, now_ps: int, index: int, state: str) -> None:
        self.board[index].state = state
        if state == "stopped":  # what it was sent is not there any more
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
        """What the policies report of themselves, added up in order of the routers."""
        totals: dict[str, float] = {}
        for plane in self.planes:
            for name, value in plane.metrics().items():
                totals[name] = totals.get(name, 0.0) + value
                if not isfinite(totals[name]):
                    raise HeadwayError(f"policies: {shown(name)}, added up over the routers, is too large a number.")
        return totals

    # --- what they tell each other -----------------------------------------------------------------------------

    def sync(self, now_ps: int) -> None:
        """The exchange that is due by this instant, at which nothing has been counted yet. Of several the first: by
        the others nothing had changed."""
        assert self.sync_ps is not None
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
        """The indexes learn of what was sent, after the evictions that they hear of by then."""
        if not self.touches:
            return
        if self.signals.kv_events is not None:
            self.signals.kv_events.tell(tick)
        for router, plane in enumerate(self.planes):
            for sender, instance, path in self.touches:
                if sender != router:
                    for index in plane.indexes:
                        index.touch(instance, path)
        self.touches.clear()
