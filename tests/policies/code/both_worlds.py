"""Runs a scenario in the simulator, and hands the same events to a gateway's control plane: both must decide alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

import headway
from headway.control.flights import Flight
from headway.control.plane import ControlPlane
from headway.gateway.deciding.policy_versions import PlaneSettings
from headway.gateway.live_policies import read_policies
from headway.gateway.plane import Plane
from headway.types import Reject, Request
from headway.views.instance import REPORTED, REPORTED_LIVE, SIGNALS, STATIC

Json = dict[str, Any]
HEARD = ("on_first_token", "on_handed", "on_finished")
LIVE = {"on_first_token": "first_token", "on_handed": "handed", "on_finished": "finished"}


class Cards:
    """A journal that keeps the scorecards of all routes."""

    def __init__(self) -> None:
        self.cards: list[Any] = []

    def bind(self, *arguments: Any) -> None: ...

    on_refused = on_prioritised = on_stopped = bind

    def on_routed(self, now_ps: int, request: Request, route: Any, priority: Any) -> None:
        self.cards.append((request.id, msgspec.to_builtins(route.scorecard)))


class Script:
    """What happened in a simulation: the inputs of its control plane, and its decisions."""

    def __init__(self) -> None:
        self.inputs: list[tuple[int, str, tuple[Any, ...]]] = []
        self.decisions: list[Any] = []
        self.control: ControlPlane | None = None
        self.journal: Cards | None = None

    def look(self, control: ControlPlane, now_ps: int) -> None:
        """Note what the instances report now."""
        self.control = control
        seen = []
        for view in control.ordered:
            names = [name for name in (*REPORTED, "observed_at") if name not in view.hidden]
            seen.append({name: getattr(view, name) for name in names})
        self.inputs.append((now_ps, "report", (seen,)))


def told(answer: Any) -> Any:
    """A decision in plain values."""
    if isinstance(answer, Flight):
        prefill = None if answer.prefill is None else answer.prefill.id
        values = (answer.view.id, prefill, answer.priority, dict(answer.hints), answer.reason, answer.expected)
        return ("route", *values)
    return ("reject", answer.reason) if isinstance(answer, Reject) else None


@contextmanager
def recorded(script: Script) -> Iterator[None]:
    plain = {name: getattr(ControlPlane, name) for name in ("arrive", "wake", *HEARD)}

    def arrive(self: ControlPlane, now_ps: int, request: Request, again: bool = False) -> Any:
        if again:  # a part of `wake`
            return plain["arrive"](self, now_ps, request, again)
        script.look(self, now_ps)
        if script.journal is not None:
            self.cluster.explain, self.journals = True, (script.journal,)
        script.inputs.append((now_ps, "arrive", (request,)))
        answer = plain["arrive"](self, now_ps, request)
        script.decisions.append((request.id, told(answer)))
        return answer

    def wake(self: ControlPlane, now_ps: int) -> Any:
        script.look(self, now_ps)
        decision = plain["wake"](self, now_ps)
        if decision is None:
            script.inputs.pop()
        else:
            script.inputs.append((now_ps, "wake", ()))
            script.decisions.append((decision[0].id, told(decision[1])))
        return decision

    def hear(name: str) -> Any:
        def heard(self: ControlPlane, now_ps: int, *arguments: Any) -> Any:
            script.inputs.append((now_ps, name, arguments))
            return plain[name](self, now_ps, *arguments)

        return heard

    changed = {"arrive": arrive, "wake": wake, **{name: hear(name) for name in HEARD}}
    for name, function in changed.items():
        setattr(ControlPlane, name, function)
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(ControlPlane, name, function)


def simulated(scenario: Json, journal: Cards | None = None) -> tuple[Script, Any]:
    script = Script()
    script.journal = journal
    with recorded(script):
        result = headway.simulate(scenario)
    return script, result


def live(script: Script, policies: Json, journal: Cards | None = None) -> list[Any]:
    """The decisions of a gateway that hears what the simulated router heard."""
    assert script.control is not None
    views = script.control.ordered
    settings = PlaneSettings(len(views), read_policies(policies), belief="routed", alone=False)
    plane = Plane(settings, journals=() if journal is None else (journal,))
    for place, view in enumerate(views):
        member = {name: getattr(view, name) for name in STATIC if name != "serves"}
        plane.join(0, place, {**member, "serves": list(view.serves)})
        plane.changed(0, place, "ready")
        plane.views[place]._estimator = view._estimator  # both estimate steps by the same model
    decisions: list[Any] = []
    for now_ps, name, arguments in script.inputs:
        if name == "report":
            for place, signals in enumerate(arguments[0]):
                plane.report(now_ps, place, {key: signals[key] for key in signals if key in REPORTED_LIVE})
                for key in signals:
                    if not SIGNALS[key].live or key == "observed_at":  # no engine reports it yet
                        setattr(plane.views[place], key, signals[key])
        elif name == "arrive":
            decisions.append((arguments[0].id, told(plane.arrive(now_ps, *arguments))))
        elif name == "wake":
            decisions += [(request.id, told(answer)) for request, answer in plane.wake(now_ps)]
        else:
            getattr(plane, LIVE[name])(now_ps, *arguments)
    return decisions
