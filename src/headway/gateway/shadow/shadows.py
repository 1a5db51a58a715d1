"""Candidates that give an opinion on live decisions without deciding. Each decision is recorded with the state it was
based on; candidates are asked once the request is on its way, a few milliseconds of work at a time."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Final

from headway.control.journal import Journal
from headway.control.router_state import kept_signals
from headway.errors import HeadwayError
from headway.gateway.shadow.candidate import Candidate, CandidateSpec, describe_opinion
from headway.gateway.shadow.frozen import Shot, Stage
from headway.types import Delay, Json, Priority, Reject, Request, Route
from headway.views.cluster import ClusterView
from headway.views.events import Event, Finished, FirstToken, Handed, InstanceChanged, Routed

if TYPE_CHECKING:
    from headway.gateway.live_clock import Clock
    from headway.gateway.plane import Plane
    from headway.policies.context import Context

MOST: Final = 16  # candidates
TURN_S: Final = 0.002  # of work, until others have their turn
BEHIND: Final = 2000  # decisions and events that wait to be looked at; beyond them none is taken down
KEPT: Final = 512  # decisions whose opinions are told
EXPLAINED: Final = 16  # every so many decisions a candidate writes a scorecard
log = logging.getLogger("headway.gateway")


class Shadows:
    """A journal of the plane while there are candidates."""

    def __init__(self, clock: Clock, plane: Plane, journals: list[Journal]) -> None:
        """`journals` are those of the plane."""
        self.clock, self.plane, self.journals = clock, plane, journals
        self.sources: dict[str, dict[str, CandidateSpec]] = {"file": {}, "admin": {}}
        self.candidates: dict[str, Candidate] = {}
        self.opinions: OrderedDict[int, Json] = OrderedDict()  # by request and candidate
        self._stage: Stage | None = None
        self._pairs = False
        self._waiting: deque[tuple[Shot, list[Candidate]] | Event] = deque()
        self._due = False
        self._count = 0

    # --- who they are ------------------------------------------------------------------------------------------------

    def offer(self, source: str, wanted: Mapping[str, CandidateSpec]) -> None:
        """Take all candidates that this source names now; the file overrides the admin API. Raises, and changes
        nothing, if one cannot be built."""
        sources = {**self.sources, source: dict(wanted)}
        every = {**sources["admin"], **sources["file"]}
        if len(every) > MOST:
            raise HeadwayError(f"shadow: there are {len(every)} candidates; {MOST} are the most.")
        stage = self._stage or Stage(self.plane.control)
        made = {name: self.candidates.get(name) for name in every}
        for name, spec in every.items():
            old = made[name]
            if old is None or old.spec != spec:
                made[name] = Candidate(name, spec, stage, self.plane.seed)
        self.sources = sources
        self.candidates = {name: one for name, one in made.items() if one is not None}
        self._stage = stage if self.candidates else None
        self._attend()

    def _attend(self) -> None:
        """Subscribe to decisions and events while there are candidates."""
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
        control.show(self.clock.now_ps(), kept_signals([one.routing for one in self.candidates.values()]))
        if any(one.observe is not None for one in self.candidates.values()):
            observers.append(self._observe)

    def _follow(self) -> None:
        """Follow a new control plane: other policies decide live."""
        assert self._stage is not None
        self._drain(everything=True)
        self._stage.follow(self.plane.control)
        if self._pairs != self.plane.versions.pairs:
            for candidate in self.candidates.values():
                candidate.make()
        self._attend()

    # --- what happens ------------------------------------------------------------------------------------------------

    def bind(self, context: Context, cluster: ClusterView, reported: Collection[str]) -> None:
        pass

    def on_refused(self, now_ps: int, request: Request, verdict: Reject | Delay) -> None:
        pass

    def on_stopped(self, instance: int) -> None:
        pass

    def on_routed(self, now_ps: int, request: Request, route: Route, priority: Priority) -> None:
        asked = [one for one in self.candidates.values() if one.wants()]
        if not asked:
            return
        if len(self._waiting) >= BEHIND:
            for one in asked:
                one.skipped += 1
            return
        assert self._stage is not None
        shot = Shot(now_ps, request, route, priority, self.plane.control.cluster, self._stage.indexes)
        self._put((shot, asked))

    def _observe(self, event: Event) -> None:
        if len(self._waiting) < 2 * BEHIND:
            self._put(event)

    def _put(self, one: tuple[Shot, list[Candidate]] | Event) -> None:
        self._waiting.append(one)
        if not self._due:
            self._due = True
            self.clock.call_soon(self._drain)

    def _drain(self, everything: bool = False) -> None:
        """Handle waiting decisions and events in order, for one turn's time."""
        self._due = False
        waiting, until = self._waiting, perf_counter() + TURN_S
        while waiting:
            one = waiting.popleft()
            if isinstance(one, tuple):
                self._ask(*one)
            else:
                mine = self._own(one)
                for candidate in self.candidates.values():
                    candidate.hear(mine)
            if perf_counter() > until and not everything:
                break
        if waiting:
            self._due = True
            self.clock.call_soon(self._drain)

    def _ask(self, shot: Shot, asked: list[Candidate]) -> None:
        self._count += 1
        explain = self._count % EXPLAINED == 1
        found: Json = {}
        for candidate in asked:
            if candidate.why is not None:
                continue
            opinion = candidate.ask(shot, explain)
            if opinion is not None:
                found[candidate.name] = opinion
            if candidate.why is not None:
                log.warning("shadow %s: is asked no more: %s", candidate.name, candidate.why)
        self.opinions[shot.request.id] = found
        if len(self.opinions) > KEPT:
            self.opinions.popitem(last=False)

    def _own(self, event: Event) -> Event:
        """Return the event with the candidates' own views."""
        assert self._stage is not None
        views = self._stage.views
        view = views[event.instance.index]
        if isinstance(event, Routed):
            other = None if event.prefill is None else views[event.prefill.index]
            return Routed(event.at_ps, event.request, view, other)
        if isinstance(event, Handed):
            return Handed(event.at_ps, event.request, view, views[event.prefill.index])
        if isinstance(event, FirstToken):
            return FirstToken(event.at_ps, event.request, view)
        if isinstance(event, Finished):
            return Finished(event.at_ps, event.request, view, event.outcome, event.output_tokens)
        view.state = event.instance.state
        return InstanceChanged(event.at_ps, view, event.was)

    # --- told --------------------------------------------------------------------------------------------------------

    def of(self, request: int) -> Json:
        """Return the candidates' opinions on a decision."""
        return {name: describe_opinion(opinion) for name, opinion in self.opinions.get(request, {}).items()}

    def status(self) -> list[Json]:
        return [one.status() for one in self.candidates.values()]

    def scorecards(self) -> Json:
        """Return scorecards by candidate, the newest first."""
        return {
            name: [
                {"request": one.request, "live": one.live, **describe_opinion(one)}
                for one in reversed(candidate.opinions)
            ]
            for name, candidate in self.candidates.items()
        }

    def figures(self) -> dict[str, dict[str, float]]:
        """Return values by metric and labels, in the form of the gateway's metrics."""
        found: dict[str, dict[str, float]] = {}
        for name, one in self.candidates.items():
            values_of: dict[str, dict[str, float]] = {
                "shadow_up": {"": int(one.why is None)},
                "shadow_decisions": {"true": one.agreed, "false": one.asked - one.agreed},
                "shadow_believed_tokens": {"gained": one.gained, "forgone": one.forgone},
                "shadow_estimated_ttft_seconds": {"live": one.ttft_s[0], "candidate": one.ttft_s[1]},
                "shadow_skipped": {"": one.skipped},
                "shadow_errors": {"": one.errors},
                "shadow_seconds": {"": one.spent_s},
            }
            for figure, values in values_of.items():
                for label, value in values.items():
                    found.setdefault(figure, {})[f"{name}\x1f{label}" if label else name] = value
        return found
