"""The control plane of a live gateway. Every input goes through here with its time, so that writing them down is enough
to decide the same again: `tape` hears of each before it is acted upon."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headway.control import ControlPlane
from headway.flight import Flight, Queued, TimedOut
from headway.policies.context import Context
from headway.streams import stream
from headway.types import SERVING, InstanceView, Priority, Reject, Request

REPORTED: Final = ("queued", "running", "kv_used", "kv_blocks", "hit_rate", "busy", "watts")
Answer = Flight | Reject | TimedOut | Queued | None
Tape = Callable[[int, str, tuple[Any, ...]], None]


def clock() -> Callable[[], int]:
    """Picoseconds since now, by a clock that never goes back."""
    start = time.monotonic_ns()
    return lambda: (time.monotonic_ns() - start) * 1000


class Plane:
    """Places for backends are fixed; one that comes takes a free place, and one that goes leaves it stopped."""

    def __init__(
        self,
        views: Sequence[InstanceView],
        policies: Callable[[], Mapping[str, Any]],
        estimator: Any,
        block_tokens: int,
        seed: int = 0,
        tape: Tape | None = None,
    ) -> None:
        self.views = tuple(views)
        self.estimator, self.block_tokens, self.seed = estimator, block_tokens, seed
        self.tape = tape
        self.control = self._made(policies())

    def _made(self, policies: Mapping[str, Any]) -> ControlPlane:
        context = Context(self.views, lambda name: stream(self.seed, name), self.estimator, self.block_tokens)
        return ControlPlane(
            context, policies["admission"], policies["priority"], policies["routing"], policies.get("flow")
        )

    # --- what happens ------------------------------------------------------------------------------------------------

    def arrive(self, now_ps: int, request: Request) -> Answer:
        if self.tape is not None:
            self.tape(now_ps, "arrive", (request,))
        return self.control.arrive(now_ps, request)

    def resend(self, now_ps: int, request_id: int) -> Answer:
        """The instance of a request has lost it before anything reached its client; it goes to another, if there is
        one: for this decision its own cannot be reached."""
        if self.tape is not None:
            self.tape(now_ps, "resend", (request_id,))
        control = self.control
        flight = control.flights[request_id]
        request, view, state = flight.request, flight.view, flight.view.state
        control.finished(now_ps, request_id, "retried", 0)
        group = control.groups[0] if control.by_model is None else control.by_model[request.model]
        others = state in SERVING and len(group.instances) > 1
        if others:
            control.instance_changed(now_ps, view.index, "unreachable")
        answer = control.resend(now_ps, request, Priority(flight.priority, flight.hints))
        if others:
            control.instance_changed(now_ps, view.index, state)
        return answer

    def wake(self, now_ps: int) -> list[tuple[Request, Answer]]:
        """What becomes of requests that were put off, wait for an instance, or stand in the queue."""
        if self.tape is not None:
            self.tape(now_ps, "wake", ())
        control = self.control
        found: list[tuple[Request, Answer]] = []
        while (request := control.due(now_ps)) is not None:
            found.append((request, control.arrive(now_ps, request, again=True)))
        while (stranded := control.rescue()) is not None:
            again = stranded.request
            if stranded.priority is None:
                found.append((again, control.arrive(now_ps, again, again=True)))
            else:
                found.append((again, control.resend(now_ps, again, stranded.priority)))
        while (forsaken := control.forsaken(now_ps)) is not None:
            found.append((forsaken, Reject("503: no instance came up in time")))
        if control.flow is not None:
            while (sent := control.pump(now_ps)) is not None:
                found.append(sent)
        return found

    def first_token(self, now_ps: int, request_id: int) -> None:
        if self.tape is not None:
            self.tape(now_ps, "first_token", (request_id,))
        self.control.first_token(now_ps, request_id)

    def finished(self, now_ps: int, request_id: int, outcome: str, output_tokens: int) -> None:
        if self.tape is not None:
            self.tape(now_ps, "finished", (request_id, outcome, output_tokens))
        self.control.finished(now_ps, request_id, outcome, output_tokens)

    def give_up(self, now_ps: int, request_id: int) -> bool:
        if self.tape is not None:
            self.tape(now_ps, "give_up", (request_id,))
        return self.control.give_up(request_id)

    def report(self, now_ps: int, index: int, signals: Mapping[str, int | float]) -> None:
        """What a backend says of itself, as of now."""
        if self.tape is not None:
            self.tape(now_ps, "report", (index, dict(signals)))
        view = self.views[index]
        for name in REPORTED:
            if name in signals:
                setattr(view, name, signals[name])
        view.observed_at = now_ps
        view.routed_since_report = 0

    def changed(self, now_ps: int, index: int, state: str) -> None:
        if self.tape is not None:
            self.tape(now_ps, "changed", (index, state))
        self.control.instance_changed(now_ps, index, state)

    def swap(self, now_ps: int, policies: Callable[[], Mapping[str, Any]], spec: Any) -> None:
        """Other policies from now on; who is in flight or waits is taken along."""
        if self.tape is not None:
            self.tape(now_ps, "swap", (spec,))
        before, self.control = self.control, self._made(policies())
        self.control.flights = before.flights

    @property
    def next_ps(self) -> int:
        return self.control.next_ps
