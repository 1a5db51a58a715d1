"""The control plane of a live gateway. Every input goes through here with its time, so that writing them down is enough
to decide the same again: `tape` hears of each before it is acted upon, and of each decision.

The instances have places, as many as the gateway may ever have engines at a time. One that joins takes a free place,
one that has left gives it back; a free place has no id and takes no requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from headway.control.flight import Answer as Answer
from headway.control.model_groups import reachable
from headway.gateway.deciding.policy_plane import Counts as Counts
from headway.gateway.deciding.policy_plane import Decided as Decided
from headway.gateway.deciding.policy_plane import PolicyPlane, Tape
from headway.types import SERVING, Json, Path, Priority, Request
from headway.views.instance import MEAN_IF_MISSING, REPORTED_LIVE, SHARED, STATIC, InstanceView

NOTHING: Final[Mapping[str, float]] = {}


class Plane(PolicyPlane):
    """Made of what is plain, so that it can be made again of a tape's head."""

    @classmethod
    def of(cls, head: Json, tape: Tape | None = None) -> Plane:
        return cls(**head, tape=tape)

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
        control.finished(now_ps, request_id, "retried", 0)
        self._count(flight.view)
        if other is not None:
            self._count(other)
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
        found = self._give_way(now_ps) if self._spent() else []
        for ask in (self.control.wake, self.control.pump):
            while (decision := ask(now_ps)) is not None:
                found.append(self._decided(now_ps, *decision))
        return found

    def handed(self, now_ps: int, request_id: int) -> None:
        """A prompt has been computed on one engine, and its request goes on to the other."""
        self._write(now_ps, "handed", request_id)
        prefill = self.control.flight(request_id).prefill
        self.control.handed(now_ps, request_id)
        if prefill is not None:
            self._count(prefill)

    def first_token(self, now_ps: int, request_id: int) -> None:
        self._write(now_ps, "first_token", request_id)
        self.control.first_token(now_ps, request_id)

    def finished(self, now_ps: int, request_id: int, outcome: str, output_tokens: int) -> None:
        self._write(now_ps, "finished", request_id, outcome, output_tokens)
        flight = self.control.flight(request_id)
        prefill = flight.prefill
        self.control.finished(now_ps, request_id, outcome, output_tokens)
        self._count(flight.view)
        if prefill is not None:
            self._count(prefill)

    def give_up(self, now_ps: int, request_id: int) -> bool:
        self._write(now_ps, "give_up", request_id)
        return self.control.give_up(request_id)

    # --- engines -----------------------------------------------------------------------------------------------------

    def join(self, now_ps: int, place: int, member: Json) -> Decided:
        """An engine takes a free place, or one that has a place is another than before: its id, the models it
        `serves`, and its static figures."""
        self._write(now_ps, "join", place, member)
        view = self.views[place]
        for name in STATIC:
            if name in member:
                setattr(view, name, member[name])
        view.serves = tuple(member["serves"])
        self.roles[place] = view.role
        if view.role == "prefill" and not self.pairs:
            return self._follow(now_ps, self.policies, self.former, "")
        self._stand_in(now_ps, self.control)
        return self._ask_anew(now_ps, self.control.regroup(now_ps))

    def leave(self, now_ps: int, place: int) -> Decided:
        """The place is free again; whoever had it has nothing in flight."""
        self._write(now_ps, "leave", place)
        view = self.views[place]
        if view.state != "stopped":
            self.control.instance_changed(now_ps, place, "stopped")
        self.beliefs.cleared(now_ps, place)
        for counts in self.peers.values():
            self._add(view, counts.pop(place, (0, 0, 0, 0)), -1)
        view.id, view.serves, view.role, view.observed_at = "", (), "both", None
        self.roles[place] = "both"
        view.queued = view.running = view.kv_used = view.routed_since_report = view.routed = view.completed = 0
        view.output_tokens = 0
        view.busy = view.watts = view.hit_rate = 0.0
        self.reporting[place] = False
        self._stand_in(now_ps, self.control)
        return self._ask_anew(now_ps, self.control.regroup(now_ps))

    def _ask_anew(self, now_ps: int, waiting: Iterable[Request]) -> Decided:
        control = self.control
        return [self._decided(now_ps, one, control.arrive(now_ps, one, again=True)) for one in waiting]

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
        self._stand_in(now_ps, self.control)

    def report(self, now_ps: int, place: int, signals: Mapping[str, Any]) -> None:
        """What an engine says of itself, as of now."""
        self._write(now_ps, "report", place, dict(signals))
        view = self.views[place]
        for name in REPORTED_LIVE:
            if name in signals:
                setattr(view, name, signals[name])
        if "queued" in signals or "running" in signals:
            self.reporting[place] = True
            view.routed_since_report = 0
        view.observed_at = now_ps

    def stale(self, now_ps: int, place: int, neutral: Mapping[str, float] = NOTHING) -> None:
        """Nothing fresh has come from an engine for too long: its load is as counted here, and what cannot be counted
        is `neutral`."""
        self._write(now_ps, "stale", place, dict(neutral))
        view = self.views[place]
        self.reporting[place] = False
        view.observed_at, view.routed_since_report, view.adapters = None, 0, ()
        for name in MEAN_IF_MISSING:
            setattr(view, name, neutral.get(name, 0.0))
        self._count(view)

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
        before = self.peers.setdefault(peer, {})
        for place, count in counts.items():
            view = self.views[place]
            self._add(view, before.get(place, (0, 0, 0, 0)), -1)
            self._add(view, count, 1)
            before[place] = count
            self._count(view)
        for place, path in touches:
            for index in self.control.indexes:
                index.touch(place, path)
            self.beliefs.touched(now_ps, place, path)

    def lost(self, now_ps: int, peer: str) -> None:
        """Another gateway is gone, and what it had under way with it."""
        self._write(now_ps, "lost", peer)
        for place, count in self.peers.pop(peer, {}).items():
            self._add(self.views[place], count, -1)
            self._count(self.views[place])

    @staticmethod
    def _add(view: InstanceView, counts: Counts, sign: int) -> None:
        for name, count in zip(SHARED, counts, strict=True):
            setattr(view, name, getattr(view, name) + sign * count)

    def own(self, place: int) -> Counts:
        """What this gateway itself has under way there."""
        view = self.views[place]
        found = [getattr(view, name) for name in SHARED]
        for counts in self.peers.values():
            found = [have - theirs for have, theirs in zip(found, counts.get(place, (0, 0, 0, 0)), strict=True)]
        return found[0], found[1], found[2], found[3]
