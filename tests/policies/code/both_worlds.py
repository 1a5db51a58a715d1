"""Runs a scenario in the simulator, and hands the same events to a gateway's control plane: both must decide alike.
`simulated` and `live` do so for a router, `scaled` and `scaled_live` for an autoscaler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec

import headway
from headway.config.section import read
from headway.control.autoscaler import Autoscaler
from headway.control.flights import Flight
from headway.control.plane import ControlPlane
from headway.gateway.deciding.policy_versions import PlaneSettings
from headway.gateway.live_policies import read_policies
from headway.gateway.live_scaling import LiveScaling, ScalingSettings
from headway.gateway.plane import Plane
from headway.types import SERVING, Reject, Request
from headway.views.events import Finished, FirstToken, InstanceChanged, Routed
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
            self.cluster.explain, self.maker.journals = True, (script.journal,)
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


def report(plane: Plane, now_ps: int, place: int, signals: Json) -> None:
    plane.report(now_ps, place, {key: signals[key] for key in signals if key in REPORTED_LIVE})
    for key in signals:
        if not SIGNALS[key].live or key == "observed_at":  # no engine reports it yet
            setattr(plane.views[place], key, signals[key])


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
                report(plane, now_ps, place, signals)
        elif name == "arrive":
            decisions.append((arguments[0].id, told(plane.arrive(now_ps, *arguments))))
        elif name == "wake":
            decisions += [(request.id, told(answer)) for request, answer in plane.wake(now_ps)]
        else:
            getattr(plane, LIVE[name])(now_ps, *arguments)
    return decisions


# --- autoscalers -----------------------------------------------------------------------------------------------------

Scaled = tuple[int, int, int, str, Any]  # time, replicas before and after, reason, and what the autoscaler saw


def scaled(scenario: Json) -> tuple[list[Any], list[Scaled], Any]:
    """Simulate, and return the inputs of the autoscaler, its decisions and the instances. An input is an event, or a
    check with what the instances report."""
    inputs: list[Any] = []
    decided: list[Scaled] = []
    views: list[Any] = []
    plain = {name: getattr(Autoscaler, name) for name in ("start", "observe", "decide")}

    def start(self: Autoscaler, now_ps: int) -> None:
        views.extend(view for pool in self.pools for view in pool.views)
        inputs.append((now_ps, [view.state for view in views]))
        plain["start"](self, now_ps)

    def observe(self: Autoscaler, event: Any) -> None:
        inputs.append((event, event.instance.state))
        plain["observe"](self, event)

    def decide(self: Autoscaler, now_ps: int, cause: str) -> Any:
        names = [name for name in REPORTED if name not in views[0].hidden]
        inputs.append((now_ps, [{name: getattr(view, name) for name in names} for view in views]))
        decisions = plain["decide"](self, now_ps, cause)
        decided.extend((now_ps, each.before, each.after, each.reason, each.metrics) for each in decisions)
        return decisions

    for name, function in {"start": start, "observe": observe, "decide": decide}.items():
        setattr(Autoscaler, name, function)
    try:
        headway.simulate(scenario)
    finally:
        for name, function in plain.items():
            setattr(Autoscaler, name, function)
    return inputs, decided, views


def scaled_live(inputs: list[Any], views: list[Any], scaling: Json) -> list[Scaled]:
    """The decisions of a gateway whose engines join and leave as they did in the simulation, with the same requests. An
    engine joins when it serves: before, the gateway only knows that it is wanted."""
    settings = PlaneSettings(len(views), read_policies({"routing": "least-loaded"}), belief="routed")
    plane = Plane(settings)

    def join(now_ps: int, place: int) -> None:
        member = {name: getattr(views[place], name) for name in STATIC if name != "serves"}
        plane.join(now_ps, place, {**member, "serves": list(views[place].serves)})
        plane.changed(now_ps, place, "ready")

    start_ps, states = inputs[0]
    for place, state in enumerate(states):
        if state in SERVING:
            join(start_ps, place)
    live = LiveScaling(SimpleNamespace(), plane, read(ScalingSettings, scaling, "scaling"))  # type: ignore[arg-type]
    live.begin(start_ps)
    decided: list[Scaled] = []
    for first, second in inputs[1:]:
        if isinstance(first, int):
            for place, signals in enumerate(second):
                if plane.views[place].id:
                    report(plane, first, place, signals)
            for each in live.check(first):
                means = each.metrics.signals if each.metrics is not None else {}
                if "busy" not in second[0]:  # the simulation keeps only the signals that its policies read
                    del means["busy"]
                decided.append((first, each.before, each.after, each.reason, each.metrics))
            continue
        event, place = first, first.instance.index
        if isinstance(event, Routed):
            plane.control.maker.forced[event.request.id] = (event.instance.id, None)
            plane.arrive(event.at_ps, event.request)
        elif isinstance(event, FirstToken):
            plane.first_token(event.at_ps, event.request.id)
        elif isinstance(event, Finished):
            plane.finished(event.at_ps, event.request.id, event.outcome, event.output_tokens)
        elif isinstance(event, InstanceChanged):
            if second in SERVING and not plane.views[place].id:
                join(event.at_ps, place)
            elif second == "draining":
                plane.changed(event.at_ps, place, second)
            elif second == "stopped" and plane.views[place].id:
                plane.leave(event.at_ps, place)
    return decided
