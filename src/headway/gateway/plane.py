"""The control plane of a live gateway. Every input goes through here with its time, so that writing them down is enough
to decide the same again: `tape` hears of each before it is acted upon, and of each decision.

The plane has `places`, what it knows of its engines, and `versions`, the policies that decide with their control plane.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from headway.control.flights import Answer as Answer
from headway.control.flights import Decision, Flight, TimedOut
from headway.control.journal import Journal
from headway.control.model_groups import reachable
from headway.control.plane import ControlPlane
from headway.gateway.deciding.places import Counts as Counts
from headway.gateway.deciding.places import Places
from headway.gateway.deciding.policy_versions import MOST_FAILURES, PolicyVersions
from headway.gateway.signals.beliefs import SPECULATIVE_PS, TTL_PS, Beliefs
from headway.types import SERVING, Json, Path, Priority, Reject, Request
from headway.views.instance import InstanceView

Decided = list[Decision]
Tape = Callable[[int, str, tuple[Any, ...]], None]
NOTHING: Final[Mapping[str, float]] = {}


class Plane:
    """Made of what is plain, so that it can be made again of a tape's head."""

    def __init__(
        self,
        places: int,
        policies: Json,
        *,
        block_tokens: int = 16,
        seed: int = 0,
        patience_ps: int = 10**13,
        alone: bool = True,
        ttl_ps: int = TTL_PS,
        speculative_ps: int = SPECULATIVE_PS,
        most_failures: int = MOST_FAILURES,
        tape: Tape | None = None,
        journals: Sequence[Journal] = (),
    ) -> None:
        self.head: Json = {
            "places": places,
            "policies": policies,
            "block_tokens": block_tokens,
            "seed": seed,
            "patience_ps": patience_ps,
            "alone": alone,
            "ttl_ps": ttl_ps,
            "speculative_ps": speculative_ps,
            "most_failures": most_failures,
        }
        self.tape = tape
        self.seed, self.block_tokens = seed, block_tokens
        self.places = Places(places, block_tokens, alone)
        self.views = self.places.views
        self.beliefs = Beliefs(places, (), ttl_ps, speculative_ps)
        self.versions = PolicyVersions(
            policies,
            self.places,
            self.beliefs,
            seed=seed,
            patience_ps=patience_ps,
            most_failures=most_failures,
            journals=journals,
        )
        self.on_sent: Callable[[int, Path], None] | None = None  # hears where a prompt goes

    @classmethod
    def of(cls, head: Json, tape: Tape | None = None) -> Plane:
        return cls(**head, tape=tape)

    @property
    def control(self) -> ControlPlane:
        """That of the policies in force."""
        return self.versions.control

    @property
    def policies(self) -> Json:
        return self.versions.policies

    @property
    def version(self) -> int:
        return self.versions.version

    @property
    def next_ps(self) -> int:
        """When `wake` is to be called if nothing happens before."""
        return 0 if self.versions.spent else self.control.next_ps

    # --- decisions ---------------------------------------------------------------------------------------------------

    def _write(self, now_ps: int, kind: str, *values: Any) -> None:
        """Every input and every decision goes on the tape, if there is one: enough to decide the same again."""
        if self.tape is not None:
            self.tape(now_ps, kind, values)

    def _decided(self, now_ps: int, request: Request, answer: Answer) -> Decision:
        """A decision is written down, and counted where reports do not tell of it yet."""
        if isinstance(answer, Flight):
            self._sent(now_ps, answer.view, request.path)
            if answer.prefill is not None:
                self._sent(now_ps, answer.prefill, request.path)
        if self.tape is not None:  # words that no tape keeps are not made
            self._write(now_ps, "decided", request.id, in_words(answer))
        return request, answer

    def _sent(self, now_ps: int, view: InstanceView, path: Path) -> None:
        self.beliefs.touched(now_ps, view.index, path)
        if self.on_sent is not None:
            self.on_sent(view.index, path)
        self.places.sent(view)

    def _ask(self, now_ps: int, waiting: Sequence[Request], again: bool) -> Decided:
        """Decide on requests that have lost the queue in which they waited."""
        control = self.control
        return [self._decided(now_ps, request, control.arrive(now_ps, request, again)) for request in waiting]

    # --- requests ----------------------------------------------------------------------------------------------------

    def arrive(self, now_ps: int, request: Request) -> Answer:
        self._write(now_ps, "arrive", request)
        return self._decided(now_ps, request, self.control.arrive(now_ps, request))[1]

    def resend(self, now_ps: int, request_id: int, prefill: bool = False) -> Answer:
        """The instance of a request, or that of its prompt, has lost it before anything reached its client; it goes to
        another, if there is one: for this decision its own cannot be reached."""
        self._write(now_ps, "resend", request_id, prefill)
        control = self.control
        flight = control.flight(request_id)
        request, other = flight.request, flight.prefill
        view = other if prefill and other is not None else flight.view
        state = view.state
        control.on_finished(now_ps, request_id, "retried", 0)
        self.places.count(flight.view)
        if other is not None:
            self.places.count(other)
        group = control.groups.of(request.model)
        others = group is not None and state in SERVING and any(one is not view for one in group.instances)
        if others:
            self._reach(now_ps, view, "unreachable")
        try:
            answer = control.resend(now_ps, request, Priority(flight.priority, flight.hints))
        finally:
            if others:
                self._reach(now_ps, view, state)
        return self._decided(now_ps, request, answer)[1]

    def wake(self, now_ps: int) -> Decided:
        """What becomes of requests that were put off, wait for an instance, or stand in the queue."""
        self._write(now_ps, "wake")
        found = self._ask(now_ps, self.versions.give_way(now_ps), again=False) if self.versions.spent else []
        for ask in (self.control.wake, self.control.pump):
            while (decision := ask(now_ps)) is not None:
                found.append(self._decided(now_ps, *decision))
        return found

    def handed(self, now_ps: int, request_id: int) -> None:
        """A prompt has been computed on one engine, and its request goes on to the other."""
        self._write(now_ps, "handed", request_id)
        prefill = self.control.flight(request_id).prefill
        self.control.on_handed(now_ps, request_id)
        if prefill is not None:
            self.places.count(prefill)

    def first_token(self, now_ps: int, request_id: int) -> None:
        self._write(now_ps, "first_token", request_id)
        self.control.on_first_token(now_ps, request_id)

    def finished(self, now_ps: int, request_id: int, outcome: str, output_tokens: int) -> None:
        self._write(now_ps, "finished", request_id, outcome, output_tokens)
        flight = self.control.flight(request_id)
        prefill = flight.prefill
        self.control.on_finished(now_ps, request_id, outcome, output_tokens)
        self.places.count(flight.view)
        if prefill is not None:
            self.places.count(prefill)

    def give_up(self, now_ps: int, request_id: int) -> bool:
        self._write(now_ps, "give_up", request_id)
        return self.control.give_up(request_id)

    # --- engines -----------------------------------------------------------------------------------------------------

    def join(self, now_ps: int, place: int, member: Json) -> Decided:
        """An engine takes a free place, or one that has a place is another than before: its id, the models it
        `serves`, and its static figures."""
        self._write(now_ps, "join", place, member)
        view = self.places.take(place, member)
        if view.role == "prefill" and not self.versions.pairs:
            return self._ask(now_ps, self.versions.rebuild(now_ps), again=False)
        return self._regroup(now_ps)

    def leave(self, now_ps: int, place: int) -> Decided:
        """The place is free again; whoever had it has nothing in flight."""
        self._write(now_ps, "leave", place)
        if self.views[place].state != "stopped":
            self.control.instance_changed(now_ps, place, "stopped")
        self.beliefs.cleared(now_ps, place)
        self.places.free(place)
        return self._regroup(now_ps)

    def _regroup(self, now_ps: int) -> Decided:
        self.versions.stand_in(now_ps)
        return self._ask(now_ps, self.control.regroup(now_ps), again=True)

    def changed(self, now_ps: int, place: int, state: str) -> None:
        self._write(now_ps, "changed", place, state)
        self._reach(now_ps, self.views[place], state)

    @contextmanager
    def confined(self, now_ps: int, request: Request, places: Collection[int]) -> Iterator[bool]:
        """What is decided on a request meanwhile is decided among these places, if they can serve it: whether they can.
        Where prompts are computed apart, who computes them is not what the request is sent to."""
        control = self.control
        group = control.groups.of(request.model)
        members = () if group is None else group.instances
        away = [(view, view.state) for view in members if view.index not in places and view.role != "prefill"]
        hidden = [view for view, _ in away]
        enough = bool(reachable([view for view in members if view not in hidden]))
        if not enough:
            away.clear()
        for view, _ in away:
            self.changed(now_ps, view.index, "unreachable")
        try:
            yield enough
        finally:
            for view, state in away:
                self.changed(now_ps, view.index, state)

    def _reach(self, now_ps: int, view: InstanceView, state: str) -> None:
        self.control.instance_changed(now_ps, view.index, state)
        self.versions.stand_in(now_ps)

    def report(self, now_ps: int, place: int, signals: Mapping[str, Any]) -> None:
        """What an engine says of itself, as of now."""
        self._write(now_ps, "report", place, dict(signals))
        self.places.report(now_ps, place, signals)

    def stale(self, now_ps: int, place: int, neutral: Mapping[str, float] = NOTHING) -> None:
        """Nothing fresh has come from an engine for too long: its load is as counted here, and what cannot be counted
        is `neutral`."""
        self._write(now_ps, "stale", place, dict(neutral))
        self.places.mark_stale(place, neutral)

    # --- what engines have cached ------------------------------------------------------------------------------------

    def stored(self, now_ps: int, place: int, runs: Sequence[Sequence[int]]) -> None:
        """An engine tells that it has stored blocks: (parent's key, key, first token, end) of each."""
        self._write(now_ps, "stored", place, runs)
        self.beliefs.stored(now_ps, place, runs)

    def removed(self, now_ps: int, place: int, keys: Sequence[int]) -> None:
        self._write(now_ps, "removed", place, keys)
        self.beliefs.removed(now_ps, place, keys)

    def cleared(self, now_ps: int, place: int, trust: str) -> None:
        """Nothing is believed of an engine any more; `trust` says how it is known from now on."""
        self._write(now_ps, "cleared", place, trust)
        self.beliefs.cleared(now_ps, place, trust)

    def expire(self, now_ps: int) -> bool:
        """What has been believed for too long is believed no longer; whether there is more of it."""
        self._write(now_ps, "expire")
        return self.beliefs.expire(now_ps)

    # --- other gateways ----------------------------------------------------------------------------------------------

    def heard(self, now_ps: int, peer: str, counts: Mapping[int, Counts], touches: Sequence[tuple[int, Path]]) -> None:
        """What another gateway has under way now, by place, and where it has sent prompts since it last said so."""
        self._write(now_ps, "heard", peer, dict(counts), list(touches))
        self.places.hear(peer, counts)
        for place, path in touches:
            for index in self.control.indexes:
                index.touch(place, path)
            self.beliefs.touched(now_ps, place, path)

    def lost(self, now_ps: int, peer: str) -> None:
        """Another gateway is gone, and what it had under way with it."""
        self._write(now_ps, "lost", peer)
        self.places.lose(peer)

    # --- other policies ----------------------------------------------------------------------------------------------

    def swap(self, now_ps: int, policies: Json) -> Decided:
        """Other policies from now on. A wrong one raises, and all stays as it was. Those in flight are taken over, and
        those that wait are asked anew."""
        self.versions.check(policies)
        self._write(now_ps, "swap", policies)
        return self._ask(now_ps, self.versions.swap(now_ps, policies), again=False)

    def halt(self, now_ps: int, why: str) -> None:
        """The candidate decides on no request any more; those in force go on as they are."""
        self._write(now_ps, "halt", why)
        self.versions.halt(why)


def in_words(answer: Answer) -> str:
    if isinstance(answer, Flight):
        return answer.view.id if answer.prefill is None else f"{answer.view.id} after {answer.prefill.id}"
    if isinstance(answer, Reject | TimedOut):
        return f"refused: {answer.reason}"
    return "later" if answer is None else "queued"
