"""The control plane of a live gateway. An input is an event, such as an arriving request or a report of an engine. Each
method that receives an input takes the time of the input, and writes the input to the `tape` before applying it.
Therefore a replay of the tape makes the same decisions. Methods and tape records have the same names.

`places` holds the state of the engines. `versions` holds the policies and their control plane. An engine's place is its
index in `views`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headway.control.flights import Answer, Decision, Flight, TimedOut
from headway.control.journal import Journal
from headway.control.model_groups import reachable
from headway.control.plane import ControlPlane
from headway.gateway.deciding.places import Counts, Places
from headway.gateway.deciding.policy_versions import PlaneSettings, PolicyVersions
from headway.gateway.signals.beliefs import Beliefs
from headway.types import SERVING, Json, Path, Priority, Reject, Request
from headway.views.instance import InstanceView

Decided = list[Decision]
Tape = Callable[[int, str, tuple[Any, ...]], None]


class Plane:
    def __init__(self, settings: PlaneSettings, tape: Tape | None = None, journals: Sequence[Journal] = ()) -> None:
        self.settings, self.tape, self.block_tokens = settings, tape, settings.block_tokens
        self.places = Places(settings.places, settings.block_tokens, settings.alone, settings.effective_load)
        self.views = self.places.views
        self.beliefs = Beliefs(settings.places, (), settings.ttl_ps, settings.speculative_ps, settings.belief)
        self.versions = PolicyVersions(settings, self.places, self.beliefs, journals)
        # Called for each sent prompt, with the engine's index and the prompt's block keys.
        self.on_sent: Callable[[int, Path], None] | None = None

    @property
    def control(self) -> ControlPlane:
        return self.versions.control

    @property
    def policies(self) -> Json:
        return self.versions.policies

    @property
    def version(self) -> int:
        return self.versions.version

    @property
    def next_ps(self) -> int:
        """The time at which `wake` must be called next."""
        return 0 if self.versions.spent else self.control.next_ps

    # --- decisions ---------------------------------------------------------------------------------------------------

    def _write(self, now_ps: int, kind: str, *values: Any) -> None:
        if self.tape is not None:
            self.tape(now_ps, kind, values)

    def _record(self, now_ps: int, request: Request, answer: Answer) -> Decision:
        """If the decision is a route, count the request at its engines and record that its prompt is sent there. Write
        the decision to the tape."""
        if isinstance(answer, Flight):
            for view in flight_views(answer):
                self.beliefs.touch(now_ps, view.index, request.path)
                if self.on_sent is not None:
                    self.on_sent(view.index, request.path)
                self.places.count_route(view)
        if self.tape is not None:  # without a tape, do not format the decision
            self._write(now_ps, "decided", request.id, in_words(answer))
        return request, answer

    def _decide_again(self, now_ps: int, waiting: Sequence[Request], again: bool) -> Decided:
        """Decide again on requests that waited in a queue which has been replaced."""
        control = self.control
        return [self._record(now_ps, request, control.arrive(now_ps, request, again)) for request in waiting]

    # --- requests ----------------------------------------------------------------------------------------------------

    def arrive(self, now_ps: int, request: Request) -> Answer:
        if self.tape is not None:  # saves a call for each request
            self._write(now_ps, "arrive", request)
        return self._record(now_ps, request, self.versions.control.arrive(now_ps, request))[1]

    def resend(self, now_ps: int, request_id: int, prefill: bool = False, tried: Sequence[int] = ()) -> Answer:
        """Route a request again, after its engine (with `prefill`, its prefill engine) failed before the client
        received a byte. `tried` has the places of engines that failed the request earlier. If the model has other
        engines, all these engines count as unreachable for this decision."""
        self._write(now_ps, "resend", request_id, prefill, list(tried))
        control = self.control
        flight = control.flight(request_id)
        request, engines = flight.request, flight_views(flight)
        failed = engines[-1] if prefill else flight.view
        control.on_finished(now_ps, request_id, "retried", 0)
        for engine in engines:
            self.places.count_end(engine)
        hidden = [(view, view.state) for view in self._avoided(request, failed, tried)]
        for view, _ in hidden:
            self._reach(now_ps, view, "unreachable")
        try:
            answer = control.resend(now_ps, request, Priority(flight.priority, flight.hints))
        finally:
            for view, state in hidden:
                self._reach(now_ps, view, state)
        return self._record(now_ps, request, answer)[1]

    def _avoided(self, request: Request, failed: InstanceView, tried: Sequence[int]) -> list[InstanceView]:
        """Return the serving engines that a repeated request avoids: all that have failed it, or only the last one
        if no other engine is left. If that is the only engine, avoid none."""
        group = self.control.groups.of(request.model)
        members = () if group is None else group.instances
        for places in ({failed.index, *tried}, {failed.index}):
            left = [view for view in members if view.index not in places]
            if left and (self.settings.alone or reachable(left)):
                return [view for view in self.views if view.index in places and view.state in SERVING]
        return []

    def wake(self, now_ps: int) -> Decided:
        """Return decisions on requests that were delayed, that wait for an engine, or that are in the queue."""
        self._write(now_ps, "wake")
        decisions: Decided = []
        if self.versions.spent:
            decisions = self._decide_again(now_ps, self.versions.give_way(now_ps), again=False)
        for next_decision in (self.control.wake, self.control.pump):
            while (decision := next_decision(now_ps)) is not None:
                decisions.append(self._record(now_ps, *decision))
        return decisions

    def handed(self, now_ps: int, request_id: int) -> None:
        """Record that the prefill engine has computed the prompt of a request."""
        self._write(now_ps, "handed", request_id)
        prefill = self.control.flight(request_id).prefill
        self.control.on_handed(now_ps, request_id)
        if prefill is not None:
            self.places.count_end(prefill)

    def first_token(self, now_ps: int, request_id: int) -> None:
        if self.tape is not None:
            self._write(now_ps, "first_token", request_id)
        self.versions.control.on_first_token(now_ps, request_id)

    def finished(self, now_ps: int, request_id: int, outcome: str, output_tokens: int) -> None:
        if self.tape is not None:
            self._write(now_ps, "finished", request_id, outcome, output_tokens)
        control = self.versions.control
        engines = flight_views(control.flight(request_id))
        control.on_finished(now_ps, request_id, outcome, output_tokens)
        for view in engines:
            self.places.count_end(view)

    def give_up(self, now_ps: int, request_id: int) -> bool:
        self._write(now_ps, "give_up", request_id)
        return self.control.give_up(request_id)

    # --- engines -----------------------------------------------------------------------------------------------------

    def join(self, now_ps: int, place: int, member: Json) -> Decided:
        """Add an engine at a place, or change the engine there. `member` has the engine's id, the models that it
        serves, and its static signals."""
        self._write(now_ps, "join", place, member)
        view = self.places.take(place, member)
        self._fit(place)
        if view.role == "prefill" and not self.versions.pairs:
            return self._decide_again(now_ps, self.versions.rebuild(now_ps), again=False)
        return self._regroup(now_ps)

    def leave(self, now_ps: int, place: int) -> Decided:
        """Free the place of an engine that has no requests in flight."""
        self._write(now_ps, "leave", place)
        if self.views[place].state != "stopped":
            self.control.instance_changed(now_ps, place, "stopped")
        self.beliefs.cleared(now_ps, place)
        self.places.free(place)
        return self._regroup(now_ps)

    def _regroup(self, now_ps: int) -> Decided:
        self.versions.stand_in(now_ps)
        return self._decide_again(now_ps, self.control.regroup(now_ps), again=True)

    def changed(self, now_ps: int, place: int, state: str) -> None:
        self._write(now_ps, "changed", place, state)
        self._reach(now_ps, self.views[place], state)

    @contextmanager
    def confine(self, now_ps: int, request: Request, places: Collection[int]) -> Iterator[bool]:
        """Until the context ends, let only the engines at these places serve the request. If none of these engines can
        serve the request, restrict nothing and yield False. Prefill engines are not restricted, because they do not
        answer the request."""
        group = self.control.groups.of(request.model)
        members = () if group is None else group.instances
        hidden = [view for view in members if view.index not in places and view.role != "prefill"]
        enough = bool(reachable([view for view in members if view not in hidden]))
        states = [(view.index, view.state) for view in hidden] if enough else []
        for place, _ in states:
            self.changed(now_ps, place, "unreachable")
        try:
            yield enough
        finally:
            for place, state in states:
                self.changed(now_ps, place, state)

    def _reach(self, now_ps: int, view: InstanceView, state: str) -> None:
        self.control.instance_changed(now_ps, view.index, state)
        self.versions.stand_in(now_ps)

    def report(self, now_ps: int, place: int, signals: Mapping[str, Any], finished: int = 0) -> None:
        """Update the signals that an engine reports. `finished` is the number of requests that have ended since the
        engine read these values; 0 if that time is unknown."""
        self._write(now_ps, "report", place, dict(signals), finished)
        self.places.report(now_ps, place, signals, finished)
        if "kv_blocks" in signals:
            self._fit(place)

    def _fit(self, place: int) -> None:
        """Adapt the prefix indexes to the size of an engine's KV cache."""
        self.control.context.fit(place)
        self.beliefs.resized(place)

    def stale(self, now_ps: int, place: int, neutral: Mapping[str, float]) -> None:
        """Discard an engine's last report: use the gateway's own counts for load and `neutral` for other signals."""
        self._write(now_ps, "stale", place, dict(neutral))
        self.places.mark_stale(place, neutral)

    # --- beliefs about engines' caches -------------------------------------------------------------------------------

    def stored(self, now_ps: int, place: int, runs: Sequence[Sequence[int]]) -> None:
        """Record blocks that an engine has stored. Each element of `runs` is one block: its parent's key, its own key,
        the index of its first token, and the index after its last token."""
        self._write(now_ps, "stored", place, runs)
        self.beliefs.stored(now_ps, place, runs)

    def moved(self, now_ps: int, place: int, keys: Sequence[int], level: int) -> None:
        """Record the tier of blocks that an engine has stored."""
        self._write(now_ps, "moved", place, keys, level)
        self.beliefs.moved(now_ps, place, keys, level)

    def removed(self, now_ps: int, place: int, keys: Sequence[int]) -> None:
        self._write(now_ps, "removed", place, keys)
        self.beliefs.removed(now_ps, place, keys)

    def cleared(self, now_ps: int, place: int, trust: str) -> None:
        """Drop all beliefs about an engine's cache. `trust` says how well the cache is known from now on (see
        `Beliefs.trust`)."""
        self._write(now_ps, "cleared", place, trust)
        self.beliefs.cleared(now_ps, place, trust)

    def expire(self, now_ps: int) -> bool:
        """Drop expired beliefs about engines' caches, a limited number per call. Return whether expired beliefs
        remain."""
        self._write(now_ps, "expire")
        return self.beliefs.expire(now_ps)

    # --- other gateways ----------------------------------------------------------------------------------------------

    def heard(self, now_ps: int, peer: str, counts: Mapping[int, Counts], touches: Sequence[tuple[int, Path]]) -> None:
        """Store the request counts of another gateway, by the engine's place. Record the prompts that the other gateway
        sent to engines (`touches`)."""
        self._write(now_ps, "heard", peer, dict(counts), list(touches))
        self.places.hear(peer, counts)
        for place, path in touches:
            for index in self.control.routed_indexes:
                index.touch(place, path)
            self.control.audience.record_access(now_ps, place, path)
            self.beliefs.touch(now_ps, place, path)

    def lost(self, now_ps: int, peer: str) -> None:
        """Remove the counts of another gateway that disconnected."""
        self._write(now_ps, "lost", peer)
        self.places.lose(peer)

    # --- policies ----------------------------------------------------------------------------------------------------

    def swap(self, now_ps: int, policies: Json) -> Decided:
        """Put new policies in force, and decide again on waiting requests. If the policies are invalid, raise
        HeadwayError and change nothing."""
        self.versions.check(policies)
        self._write(now_ps, "swap", policies)
        return self._decide_again(now_ps, self.versions.swap(now_ps, policies), again=False)

    def halt(self, now_ps: int, why: str) -> None:
        """End the canary, for the reason `why`."""
        self._write(now_ps, "halt", why)
        self.versions.halt(why)


def flight_views(flight: Flight) -> tuple[InstanceView, ...]:
    """Return the view of the engine that serves a request in flight, followed by the view of its prefill engine if it
    has one."""
    return (flight.view,) if flight.prefill is None else (flight.view, flight.prefill)


def in_words(answer: Answer) -> str:
    if isinstance(answer, Flight):
        return answer.view.id if answer.prefill is None else f"{answer.view.id} after {answer.prefill.id}"
    if isinstance(answer, Reject | TimedOut):
        return f"refused: {answer.reason}"
    return "later" if answer is None else "queued"
