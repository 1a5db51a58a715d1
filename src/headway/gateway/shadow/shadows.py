"""Shadow candidates: policies that are asked about live decisions, but decide on none. The gateway records the state
before each decision. After the gateway has sent the request, it asks the candidates, for a few milliseconds at a
time."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from headway.control.journal import Journal
from headway.control.router_state import kept_signals
from headway.errors import HeadwayError
from headway.gateway.shadow.candidate import Candidate, CandidateSpec
from headway.gateway.shadow.frozen import Shot, Stage
from headway.types import Delay, Json, Priority, Reject, Request, Route
from headway.views.cluster import ClusterView
from headway.views.events import Event, Handed, InstanceChanged, Routed

if TYPE_CHECKING:
    from headway.gateway.live_clock import Clock
    from headway.gateway.plane import Plane
    from headway.policies.context import Context

MOST: Final = 16  # maximum number of candidates
TURN_S: Final = 0.002  # maximum time that candidates take before other tasks of the event loop run
BEHIND: Final = 2000  # queue length at which new decisions are skipped; at twice this length, new events are dropped
KEPT: Final = 512  # number of recent decisions whose opinions are kept
EXPLAINED: Final = 16  # candidates write a scorecard for every 16th decision
log = logging.getLogger("headway.gateway")


class Shadows:
    """The shadow candidates. While there is a candidate, this object is one of the control plane's `journals`, to which
    the control plane reports each decision."""

    def __init__(self, clock: Clock, plane: Plane, journals: list[Journal]) -> None:
        self.clock, self.plane, self.journals = clock, plane, journals
        self.sources: dict[str, dict[str, CandidateSpec]] = {"file": {}, "admin": {}}
        self.candidates: dict[str, Candidate] = {}
        self.opinions: OrderedDict[int, Json] = OrderedDict()  # opinions by request id, then by candidate's name
        self._stage: Stage | None = None
        self._pairs = False
        self._waiting: deque[tuple[Shot, list[Candidate]] | Event] = deque()
        self._due = False
        self._count = 0

    # --- candidates --------------------------------------------------------------------------------------------------

    def offer(self, source: str, specs: Mapping[str, CandidateSpec]) -> None:
        """Set the candidates of a source, which is `file` or `admin`. If both sources have a candidate of the same
        name, the file overrides the admin API. If a candidate cannot be built, raise and change nothing."""
        sources = {**self.sources, source: dict(specs)}
        every = {**sources["admin"], **sources["file"]}
        if len(every) > MOST:
            raise HeadwayError(f"shadow: there are {len(every)} candidates; the limit is {MOST}.")
        stage = self._stage or Stage(self.plane.control)
        candidates = {name: self.candidates.get(name) for name in every}
        for name, spec in every.items():
            old = candidates[name]
            if old is None or old.spec != spec:
                candidates[name] = Candidate(name, spec, stage, self.plane.settings.seed)
        self.sources = sources
        self.candidates = {name: candidate for name, candidate in candidates.items() if candidate is not None}
        self._stage = stage if self.candidates else None
        self._attend()

    def _attend(self) -> None:
        """If there are candidates, subscribe to decisions and events; otherwise unsubscribe."""
        plane = self.plane
        journals, control = self.journals, plane.control
        if self in journals:
            journals.remove(self)
        observers = control.audience.observers
        if self._observe in observers:
            observers.remove(self._observe)
        plane.versions.on_rebuilt = self._follow if self.candidates else None
        if not self.candidates:
            self._waiting.clear()
            return
        journals.append(self)
        self._pairs = plane.versions.pairs
        control.show(self.clock.now_ps(), kept_signals([candidate.routing for candidate in self.candidates.values()]))
        if any(candidate.observe is not None for candidate in self.candidates.values()):
            observers.append(self._observe)

    def _follow(self) -> None:
        """Switch to a new control plane, because the live policies were replaced."""
        assert self._stage is not None
        self._drain(everything=True)
        self._stage.follow(self.plane.control)
        if self._pairs != self.plane.versions.pairs:
            for candidate in self.candidates.values():
                candidate.make()
        self._attend()

    # --- decisions and events ----------------------------------------------------------------------------------------

    def bind(self, context: Context, cluster: ClusterView, reported: Collection[str]) -> None:
        pass

    def on_refused(self, now_ps: int, request: Request, verdict: Reject | Delay) -> None:
        pass

    def on_stopped(self, instance: int) -> None:
        pass

    def on_prioritised(self, now_ps: int, request: Request, priority: Priority) -> None:
        pass

    def on_routed(self, now_ps: int, request: Request, route: Route, priority: Priority) -> None:
        willing = [candidate for candidate in self.candidates.values() if candidate.wants()]
        if not willing:
            return
        if len(self._waiting) >= BEHIND:
            for candidate in willing:
                candidate.skipped += 1
            return
        assert self._stage is not None
        shot = Shot(now_ps, request, route, priority, self.plane.control.cluster, self._stage.indexes)
        self._put((shot, willing))

    def _observe(self, event: Event) -> None:
        if len(self._waiting) < 2 * BEHIND:
            self._put(event)

    def _put(self, entry: tuple[Shot, list[Candidate]] | Event) -> None:
        self._waiting.append(entry)
        if not self._due:
            self._due = True
            self.clock.call_soon(self._drain)

    def _drain(self, everything: bool = False) -> None:
        """Handle waiting decisions and events in order. Unless `everything` is set, stop after TURN_S."""
        self._due = False
        waiting, until = self._waiting, perf_counter() + TURN_S
        while waiting:
            entry = waiting.popleft()
            if isinstance(entry, tuple):
                self._ask(*entry)
            else:
                mine = self._own(entry)
                for candidate in self.candidates.values():
                    candidate.hear(mine)
            if perf_counter() > until and not everything:
                break
        if waiting:
            self._due = True
            self.clock.call_soon(self._drain)

    def _ask(self, shot: Shot, candidates: list[Candidate]) -> None:
        self._count += 1
        explain = self._count % EXPLAINED == 1
        opinions: Json = {}
        for candidate in candidates:
            if candidate.why is not None:
                continue
            opinion = candidate.ask(shot, explain)
            if opinion is not None:
                opinions[candidate.name] = opinion
            if candidate.why is not None:
                log.warning("shadow %s: stopped: %s", candidate.name, candidate.why)
        self.opinions[shot.request.id] = opinions
        if len(self.opinions) > KEPT:
            self.opinions.popitem(last=False)

    def _own(self, event: Event) -> Event:
        """Return a copy of the event that refers to the candidates' views instead of the live views."""
        assert self._stage is not None
        views = self._stage.views
        view = views[event.instance.index]
        if isinstance(event, InstanceChanged):
            view.state = event.instance.state
        elif isinstance(event, Routed | Handed) and event.prefill is not None:
            return replace(event, instance=view, prefill=views[event.prefill.index])
        return replace(event, instance=view)

    # --- reports -----------------------------------------------------------------------------------------------------

    def status(self) -> list[Json]:
        return [candidate.status() for candidate in self.candidates.values()]

    def scorecards(self) -> Json:
        """Return the scorecards of each candidate, newest first."""
        return {name: list(reversed(candidate.opinions)) for name, candidate in self.candidates.items()}

    def figures(self) -> dict[str, dict[str, float]]:
        """Return values by metric and labels, in the same form as the gateway's metrics."""
        by_metric: dict[str, dict[str, float]] = {}
        for name, candidate in self.candidates.items():
            values_of: dict[str, dict[str, float]] = {
                "shadow_up": {"": int(candidate.why is None)},
                "shadow_decisions": {"true": candidate.agreed, "false": candidate.decisions - candidate.agreed},
                "shadow_believed_tokens": {"gained": candidate.gained, "forgone": candidate.forgone},
                "shadow_estimated_ttft_seconds": {"live": candidate.ttft_s[0], "candidate": candidate.ttft_s[1]},
                "shadow_skipped": {"": candidate.skipped},
                "shadow_errors": {"": candidate.errors},
                "shadow_seconds": {"": candidate.spent_s},
            }
            for figure, values in values_of.items():
                for label, value in values.items():
                    by_metric.setdefault(figure, {})[f"{name}\x1f{label}" if label else name] = value
        return by_metric
