"""Flow control: a queue at the router that is exact under leaping, keeps its order and its limits, and loses nobody."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headway
from drawing import draws
from headway.control.flights import QUEUED, Flight, TimedOut
from headway.control.plane import ControlPlane
from headway.errors import HeadwayError
from headway.hashing import GROUP, OUTPUT, PROMPT, key
from headway.latency.step_models.fixed import Fixed
from headway.policies import registry
from headway.policies.context import Context
from headway.policies.flow import Bands
from headway.results.recorder import COLUMNS, COMPLETED, IN_FLIGHT, REJECTED, TIMED_OUT, Recorder
from headway.sim.setup import ClusterSetup, EngineSetup
from headway.sim.simulation import Simulation
from headway.types import ADMIT, NEVER, Delay, Path, Priority, Reject, Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView
from headway.workload.traffic import OpenLoop, Planned

Json = dict[str, Any]
LEAPS: tuple[bool | str, ...] = (True, False, "random-cuts")
CLASSES = ("realtime", "standard", "batch", "odd")


def ask(number: int, tenant: str = "a", tokens: int = 10, **fields: Any) -> Request:
    return Request(number, 0, tokens, Path((4 * number + 1,), (tokens,)), tenant=tenant, **fields)


def bands(**parameters: Any) -> Bands:
    made: Bands = registry.build("flow", {"name": "bands", **parameters}, "policies.flow")
    made.bind(Context([], Random, None, 16))  # type: ignore[arg-type]
    return made


def drain(flow: Bands) -> list[int]:
    """What is sent, in order, while nothing is saturated."""
    found = []
    while (entry := flow.take(ClusterView([]))) is not None:
        found.append(entry.request.id)
    return found


def filled(requests: list[Request], scores: list[float] | None = None, **parameters: Any) -> Bands:
    flow = bands(saturation="never", **parameters)
    for at, asked in enumerate(requests):
        flow.put(at, asked, Priority(scores[at] if scores else 0.0))
    return flow


# --- bands, order, fairness --------------------------------------------------------------------------------------


def test_a_higher_band_goes_first_and_an_unknown_class_goes_with_standard() -> None:
    classes = ["batch", "odd", "realtime", "standard", "best-effort", "realtime"]
    requests = [ask(number, slo_class=name) for number, name in enumerate(classes)]
    assert drain(filled(requests)) == [2, 5, 1, 3, 0, 4]
    assert drain(filled(requests, classes=["batch", "realtime"])) == [0, 1, 2, 3, 4, 5]  # the unlisted with the last


def test_bands_by_score_begin_at_their_thresholds() -> None:
    requests = [ask(number) for number in range(6)]
    scores = [-1.0, 0.0, 10.0, 9.9, 12.0, -0.1]
    assert drain(filled(requests, scores, by="score", thresholds=[10, 0])) == [2, 4, 1, 3, 0, 5]
    assert drain(filled(requests, scores, by="score", thresholds=[])) == [0, 1, 2, 3, 4, 5]


def test_the_order_inside_a_band_is_that_of_coming_of_score_or_of_deadline() -> None:
    deadlines = [None, 30, 20, 30, None, 10]
    requests = [ask(number, deadline_ps=deadline) for number, deadline in enumerate(deadlines)]
    scores = [1.0, 5.0, 5.0, -2.0, 0.0, 7.0]
    assert drain(filled(requests, scores)) == [0, 1, 2, 3, 4, 5]
    assert drain(filled(requests, scores, order="priority")) == [5, 1, 2, 0, 4, 3]
    assert drain(filled(requests, scores, order="deadline")) == [5, 2, 1, 3, 0, 4]


def test_round_robin_gives_each_tenant_a_turn_and_strict_does_not() -> None:
    requests = [ask(number, tenant) for number, tenant in enumerate("aaaabbc")]
    assert drain(filled(requests)) == [0, 1, 2, 3, 4, 5, 6]
    assert drain(filled(requests, fairness="round-robin")) == [0, 4, 6, 1, 5, 2, 3]


def test_weights_share_requests_or_tokens_out_exactly() -> None:
    requests = [ask(number, "ab"[number % 2], tokens=10 if number % 2 else 40) for number in range(400)]
    flow = filled(requests, fairness="weighted", weights={"a": 3}, share="requests")
    first = [requests[number].tenant for number in drain(flow)[:100]]
    assert Counter(first) == {"a": 75, "b": 25}
    flow = filled(requests, fairness="weighted", weights={"a": 3})
    first = [requests[number] for number in drain(flow)[:140]]  # 60 x 40 tokens and 80 x 10
    assert Counter(asked.tenant for asked in first) == {"a": 60, "b": 80}


def test_a_tenant_that_was_away_has_saved_up_nothing() -> None:
    flow = filled([ask(number, "a") for number in range(20)], fairness="weighted", share="requests")
    sent = [flow.take(ClusterView([])).request.id for _ in range(10)]  # type: ignore[union-attr]
    assert sent == list(range(10))
    for number in range(20, 30):
        flow.put(50, ask(number, "b"), Priority())
    assert [number >= 20 for number in drain(flow)[:10]].count(True) == 5


def test_a_tie_between_tenants_is_not_decided_by_a_request_that_has_gone() -> None:
    requests = [ask(number, tenant) for number, tenant in enumerate("bbaab")]
    flow = filled(requests, fairness="weighted", share="requests")
    flow.remove(1)
    assert drain(flow) == [0, 2, 3, 4]


@draws(30)
@given(st.data())
def test_whatever_is_put_in_comes_out_once_or_is_taken_out_and_turns_are_fair(data) -> None:
    flow = bands(
        saturation="never",
        by=data.draw(st.sampled_from(["class", "score"])),
        order=data.draw(st.sampled_from(["fifo", "priority", "deadline"])),
        fairness=(fairness := data.draw(st.sampled_from(["strict", "round-robin", "weighted"]))),
        weights={"a": 2.5, "b": 0.3},
    )
    inside: dict[int, Request] = {}
    for number in range(data.draw(st.integers(0, 60))):
        action = data.draw(st.sampled_from(["put", "put", "put", "take", "remove"]))
        if action == "put":
            asked = inside[number] = ask(
                number, data.draw(st.sampled_from("abc")), slo_class=data.draw(st.sampled_from(CLASSES))
            )
            flow.put(number, asked, Priority(data.draw(st.sampled_from([-1.0, 0.0, 2.0]))))
        elif action == "take":
            entry = flow.take(ClusterView([]))
            assert (entry is None) == (not inside)
            if entry is not None:
                del inside[entry.request.id]
        else:
            row = data.draw(st.integers(0, 60))
            assert (flow.remove(row) is None) == (inside.pop(row, None) is None)
    assert set(flow.waiting) == set(inside) == {row for band in flow.bands for row in band.members}
    left = drain(flow)
    assert sorted(left) == sorted(inside)
    if fairness == "round-robin":  # of two tenants that both wait, none goes twice in a row
        for band in ("realtime", "batch"):
            own = [inside[row].tenant for row in left if inside[row].slo_class == band]
            for at, (one, other) in enumerate(pairwise(own)):
                assert flow.by == "score" or one != other or set(own[at:]) == {one}


def test_a_queue_that_most_give_up_keeps_no_more_than_twice_what_waits() -> None:
    flow = filled([ask(number) for number in range(1000)], order="priority")
    for number in range(990):
        flow.remove(number)
    (lane,) = flow.bands[1].lanes.values()
    assert len(lane.heap) < 60
    assert drain(flow) == list(range(990, 1000))


# --- saturation --------------------------------------------------------------------------------------------------


def test_saturation_by_utilization_needs_every_instance_and_something_in_flight() -> None:
    views = [InstanceView(index, f"i{index}", kv_blocks=10) for index in range(2)]
    cluster, flow = ClusterView(views), bands()
    views[0].queued, views[0].inflight = 5, 5
    assert not flow.saturated(cluster)
    views[1].kv_used = 8
    assert flow.saturated(cluster)
    views[1].kv_used = 7
    assert not flow.saturated(cluster)
    views[1].queued = 5
    assert flow.saturated(cluster)
    views[0].inflight = 0  # an old report
    assert not flow.saturated(cluster)


def test_saturation_by_concurrency_counts_what_this_router_sent() -> None:
    views = [InstanceView(index, f"i{index}") for index in range(2)]
    cluster, flow = ClusterView(views), bands(saturation="concurrency", max_inflight=3)
    views[0].inflight = 5
    assert not flow.saturated(cluster)
    views[1].inflight = 1
    assert flow.saturated(cluster)
    assert not bands(saturation="never").saturated(cluster)
    by_tokens = bands(saturation="concurrency", max_inflight_tokens=500)
    views[0].inflight_tokens = 999
    assert not by_tokens.saturated(cluster)
    views[1].inflight_tokens = 1
    assert by_tokens.saturated(cluster)


def open_bands(inflight: int, **parameters: Any) -> list[int]:
    """The most important of four bands that may send while this many of ten requests are in flight."""
    view = InstanceView(0, "a", inflight=inflight)
    names = {"by": "score", "thresholds": [3, 2, 1], "saturation": "concurrency", "max_inflight": 10}
    flow = bands(**names | parameters)
    return [place for place in range(4) if flow.is_open(place, ClusterView([view]))]


def test_ceilings_hold_the_lower_bands_back_in_equal_steps() -> None:
    """By hand: the ceilings are 1, 0.75, 0.5 and 0.25."""
    held = [
        open_bands(inflight, ceiling="holdback", min_ceiling=0.25, max_inflight=4) for inflight in (0, 1, 2, 3, 4, 5)
    ]
    assert held == [[0, 1, 2, 3], [0, 1, 2], [0, 1], [0], [], []]
    assert open_bands(9, ceiling="holdback", min_ceiling=1) == [0, 1, 2, 3]


def test_reflective_ceilings_close_a_band_gradually() -> None:
    """By hand: at s = 0.4 the ceilings are 1, 0.87, 0.73 and 0.6. At 0.7 the last two, 0.53 and 0.3, are reached: they
    are open for one dispatch in round(0.7 / 0.3) = 2. At 0.8 they are open for one in 4."""
    assert open_bands(4, ceiling="reflective") == [0, 1, 2, 3]
    assert open_bands(10, ceiling="reflective") == []
    assert open_bands(0, ceiling="reflective") == [0, 1, 2, 3]
    view = InstanceView(0, "a")
    flow = bands(by="score", thresholds=[3, 2, 1], saturation="concurrency", max_inflight=10, ceiling="reflective")
    for inflight, period in ((7, 2), (8, 4), (9, 9)):
        view.inflight, flow.turn = inflight, 0
        assert flow.is_open(0, ClusterView([view]))
        turns = [flow.is_open(3, ClusterView([view])) for _ in range(2 * period)]
        assert turns == 2 * [*[False] * (period - 1), True]


def test_with_ceilings_saturation_is_the_mean_of_queue_or_memory() -> None:
    views = [InstanceView(0, "a", queued=5, kv_blocks=10), InstanceView(1, "b", kv_used=4, kv_blocks=10)]
    assert bands(ceiling="holdback").level(ClusterView(views)) == 0.75  # (5/5 + 0.4/0.8) / 2


def test_only_what_the_saturation_signal_reads_is_declared() -> None:
    assert bands().entry.reported == ("queued", "kv_used")
    assert bands(saturation="concurrency").entry.reported == bands(saturation="never").entry.reported == ()


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"ttl": "0s"}, r"^policies\.flow\.ttl: must be greater than zero, got '0s'\.$"),
        ({"ttl": "soon"}, r"^policies\.flow\.ttl: 'soon' is not a duration"),
        ({"ttl": 10}, r"^policies\.flow\.ttl: 10 is not a duration; write it with its unit"),
        ({"classes": []}, r"^policies\.flow\.classes: expected different names, got \[\]\.$"),
        ({"classes": ["a", "a"]}, r"^policies\.flow\.classes: expected different names"),
        ({"thresholds": [0, 1]}, r"^policies\.flow\.thresholds: expected decreasing numbers, got \[0.*\]\.$"),
        ({"weights": {"a": 0}}, r"^policies\.flow\.weights\.a: must lie between"),
        ({"order": "lifo"}, r"^policies\.flow\.order: expected 'fifo' or 'priority' or 'deadline', got 'lifo'\.$"),
        ({"capacity": 0}, r"^policies\.flow\.capacity: must lie between 1 and"),
        (
            {"queue_treshold": 3},
            r"^policies\.flow\.queue_treshold: 'bands' has no such parameter\. Did you mean 'queue_threshold'\?$",
        ),
    ],
)
def test_a_wrong_parameter_is_told(parameters, sentence) -> None:
    with pytest.raises(HeadwayError, match=sentence):
        bands(**parameters)


def test_flow_control_is_of_the_catalogue() -> None:
    with pytest.raises(
        HeadwayError, match=r"^flow: give a flow policy by name or as a mapping.* Known: none, bands\.$"
    ):
        headway.simulate("shared-prefix-2026-11", flow=bands())
    with pytest.raises(
        HeadwayError, match=r"^policies\.flow: a flow cannot be loaded from a file\. Known: none, bands\.$"
    ):
        headway.simulate("shared-prefix-2026-11", flow="mine.py:Mine")


# --- the control plane -------------------------------------------------------------------------------------------


class One:
    """Routes to the only instance, or turns away what it is told to."""

    def __init__(self, *refused: int) -> None:
        self.refused = refused
        self.priorities: list[float] = []

    def route(self, asked: Request, cluster: ClusterView) -> Route | Reject:
        self.priorities.append(cluster.priority.score)
        return Reject("not here") if asked.id in self.refused else Route("i0", cached_tokens=4)


class Scored:
    def prioritise(self, asked: Request, cluster: ClusterView) -> Priority:
        return Priority(float(asked.id))


class Door:
    def admit(self, asked: Request, cluster: ClusterView) -> Any:
        return Delay(5) if asked.tenant == "late" and cluster.now_ps < 100 else ADMIT


def plane(routing: Any = None, **parameters: Any) -> ControlPlane:
    context = Context([InstanceView(0, "i0")], Random, None, 16)  # type: ignore[arg-type]
    return ControlPlane(context, Door(), Scored(), routing or One(), bands(**parameters))


def pumped(control: ControlPlane, now: int) -> list[tuple[int, Any]]:
    found = []
    while (step := control.pump(now)) is not None:
        found.append((step[0].id, "sent" if isinstance(step[1], Flight) else step[1]))
    return found


def test_requests_wait_until_the_cluster_can_take_them_and_keep_their_score() -> None:
    routing = One(2)
    control = plane(routing, saturation="concurrency", max_inflight=1, order="priority")
    assert [control.arrive(0, ask(number)) for number in range(4)] == [QUEUED] * 4
    totals = control.cluster.totals
    assert (totals.queued, totals.inflight, control.cluster.tenants["a"].active) == (4, 0, 4)
    assert pumped(control, 0) == [(3, "sent")]
    assert (totals.queued, totals.inflight, control.cluster.tenants["a"].active) == (3, 1, 4)
    assert pumped(control, 1) == []
    control.on_finished(2, 3, "completed", 5)
    assert pumped(control, 2) == [(2, Reject("not here")), (1, "sent")]
    assert routing.priorities == [3.0, 2.0, 1.0]
    assert control.flight(1).priority == 1.0
    assert (totals.queued, totals.inflight, control.cluster.tenants["a"].active) == (1, 1, 2)


def test_who_waits_too_long_times_out_and_the_plane_names_the_instant() -> None:
    control = plane(saturation="concurrency", max_inflight=1, ttl="50ps")
    for at in (0, 10, 20):
        control.arrive(at, ask(at))
        pumped(control, at)
    assert control.next_ps == 60
    assert pumped(control, 59) == []
    control.on_finished(60, 0, "completed", 1)
    assert pumped(control, 60) == [(10, TimedOut("waited 50ps in the router's queue")), (20, "sent")]
    assert control.next_ps == NEVER
    assert control.metrics() == {"flow_queued_peak": 2, "flow_timed_out": 1, "flow_turned_away": 0}


def test_beyond_the_capacity_the_newest_are_turned_away() -> None:
    control = plane(saturation="concurrency", max_inflight=1, band_capacity=2, capacity=3)
    for number, name in enumerate(["batch", "batch", "batch", "batch", "realtime", "realtime"]):
        control.arrive(0, ask(number, slo_class=name))
    assert pumped(control, 0) == [
        (4, "sent"),
        (3, Reject("429: the router's queue is full: its limit is 2 in the band batch")),
        (2, Reject("429: the router's queue is full: its limit is 2 in the band batch")),
    ]
    control.arrive(1, ask(6))
    assert pumped(control, 1) == [(6, Reject("429: the router's queue is full: its limit is 3"))]


def test_a_client_that_gives_up_is_found_in_the_queue_and_among_those_put_off() -> None:
    control = plane(saturation="concurrency", max_inflight=1, ttl="50ps")
    for number, tenant in enumerate(["a", "b", "late", "late", "c"]):
        control.arrive(0, ask(number, tenant))
        pumped(control, 0)
    assert control.next_ps == 5
    assert control.give_up(2) and control.next_ps == 5
    assert control.give_up(3) and control.next_ps == 50
    assert not control.give_up(3) and not control.give_up(0) and not control.give_up(99)
    assert control.give_up(1) and control.next_ps == 50
    assert control.wake(5) is None
    control.on_finished(9, 0, "completed", 1)
    assert pumped(control, 9) == [(4, "sent")]
    assert control.next_ps == NEVER and control.cluster.totals.queued == 0


def test_one_that_was_given_up_while_put_off_does_not_hide_another_with_its_instant() -> None:
    control = plane(saturation="never")
    control.arrive(0, ask(0, "late"))
    control.arrive(0, ask(1, "late"))
    control.give_up(0)
    assert control.next_ps == 5
    assert control.wake(5) == (ask(1, "late"), None) and control.wake(5) is None
    assert control.next_ps == 10


# --- the simulator -----------------------------------------------------------------------------------------------

PREFILL, DECODE = 7, 100  # picoseconds a token and a step


class Patient:
    """Puts some requests off, and turns some away."""

    def __init__(self, step: int, every: int) -> None:
        self.step, self.every = step, every
        self.asked: set[int] = set()

    def admit(self, asked: Request, cluster: ClusterView) -> Any:
        if self.every and asked.id % self.every == 1 and asked.id not in self.asked:
            self.asked.add(asked.id)
            return Delay(self.step)
        return ADMIT


class Sometimes:
    """Routes by what it sees; refuses every so many."""

    def __init__(self, refuse: int) -> None:
        self.refuse = refuse

    def route(self, asked: Request, cluster: ClusterView) -> Route | Reject:
        if self.refuse and asked.id % self.refuse == 2:
            return Reject("no")
        seen = [(view.kv_used + view.queued + view.running + view.inflight, view.index) for view in cluster.instances]
        return Route(cluster.instances[min(seen)[1]].id)


def run(
    requests: list[Planned],
    flow: Json,
    leap: bool | str = True,
    *,
    instances: int = 1,
    blocks: int = 64,
    batch: int = 4,
    patience: tuple[int, int] = (0, 0),
    refuse: int = 0,
    horizon: int | None = None,
) -> Recorder:
    views = [
        InstanceView(index, f"i{index}", kv_blocks=blocks, max_batch_size=batch, max_batch_tokens=64)
        for index in range(instances)
    ]
    engines = [EngineSetup(view, Fixed(PREFILL, DECODE)) for view in views]
    setup = ClusterSetup(engines, 4, True, leap, horizon, 0, jitter_seed=3)
    by_class = {"realtime": 2.0, "standard": 1.0, "batch": 0.0}
    priority = registry.build("priority", {"name": "by-class", "scores": by_class}, "")
    made = registry.build("flow", flow, "policies.flow")
    fcfs = registry.build("scheduler", "fcfs", "")
    simulation = Simulation(setup, Patient(*patience), priority, Sometimes(refuse), fcfs, Random, None, made)  # type: ignore[arg-type]
    recorder = simulation.run(OpenLoop(requests))
    assert horizon is not None or not simulation.dispatcher.held
    assert made.waiting.keys() == simulation.dispatcher.held.keys() - simulation.control.waiting.delayed_until.keys()
    return recorder


def planned(row: int, at: int, prompt: int, output: int, wait: int | None = None, **fields: Any) -> Planned:
    shared = min(8, prompt)
    own = Path((key(GROUP, row % 3), key(PROMPT, row)), (shared, prompt))
    path = own if prompt > 8 else Path((key(GROUP, row % 3),), (prompt,))
    deadline = None if wait is None else at + wait
    return Planned(Request(row, at, prompt, path, deadline_ps=deadline, **fields), output, key(OUTPUT, row))


def columns(recorder: Recorder) -> Json:
    gaps: list[int] = []
    for at in range(0, len(recorder.gaps), 4):
        first, increment, steps, weight = recorder.gaps[at : at + 4]
        for step in range(steps):
            gaps.extend([first + step * increment] * weight)
    found: Json = {name: list(getattr(recorder, name)) for name in COLUMNS}
    return {**found, "gaps": sorted(gaps), "reasons": recorder.reasons}


@st.composite
def workloads(draw: st.DrawFn) -> list[Planned]:
    at, made = 0, []
    for row in range(draw(st.integers(1, 16))):
        at += draw(st.sampled_from([0, 0, 7, 50, 100, 107, 300, 1000]))
        wait = draw(st.none() | st.sampled_from([0, 1, 7, 100, 107, 200, 214, 300, 500, 907, 2000]))
        fields = {"tenant": draw(st.sampled_from("abc")), "slo_class": draw(st.sampled_from(CLASSES))}
        made.append(planned(row, at, draw(st.integers(1, 100)), draw(st.integers(1, 30)), wait, **fields))
    return made


@st.composite
def flows(draw: st.DrawFn) -> Json:
    capacity = st.none() | st.integers(1, 6)
    return {
        "name": "bands",
        "by": draw(st.sampled_from(["class", "score"])),
        "thresholds": draw(st.sampled_from([[], [1.0], [1.5, 0.5]])),
        "order": draw(st.sampled_from(["fifo", "priority", "deadline"])),
        "fairness": draw(st.sampled_from(["strict", "round-robin", "weighted"])),
        "weights": draw(st.sampled_from([{}, {"a": 2}, {"a": 0.7, "b": 3}])),
        "share": draw(st.sampled_from(["tokens", "requests"])),
        "ttl": draw(st.none() | st.sampled_from(["1ps", "7ps", "100ps", "107ps", "500ps", "2ns"])),
        "band_capacity": draw(capacity),
        "capacity": draw(capacity),
        "saturation": draw(st.sampled_from(["never", "utilization", "utilization", "concurrency"])),
        "queue_threshold": draw(st.integers(1, 3)),
        "kv_threshold": draw(st.sampled_from([0.1, 0.3, 0.5, 0.8])),
        "max_inflight": draw(st.integers(1, 4)),
        "max_inflight_tokens": draw(st.none() | st.integers(1, 150)),
        "ceiling": draw(st.sampled_from(["none", "none", "holdback", "reflective"])),
        "min_ceiling": draw(st.sampled_from([0.0, 0.3, 1.0])),
    }


@st.composite
def clusters(draw: st.DrawFn) -> Json:
    return {
        "instances": draw(st.integers(1, 3)),
        "blocks": draw(st.sampled_from([20, 33, 40, 80])),  # the smallest cannot take the largest request
        "batch": draw(st.integers(1, 5)),
        "patience": draw(st.tuples(st.sampled_from([1, 100, 107]), st.sampled_from([0, 2, 3]))),
        "refuse": draw(st.sampled_from([0, 0, 3, 5])),
        "horizon": draw(st.none() | st.sampled_from([100, 1000, 3000])),
    }


@draws(30)
@given(workloads(), flows(), clusters())
def test_the_leap_equals_the_walk_under_every_flow_control_and_nobody_is_lost(requests, flow, cluster) -> None:
    found = [columns(run(requests, flow, leap, **cluster)) for leap in LEAPS]
    assert found[0] == found[1] == found[2]
    table = found[0]
    for row in range(len(table["outcome"])):
        outcome, asked = table["outcome"][row], requests[row].request
        assert outcome in (COMPLETED, REJECTED, TIMED_OUT) or (cluster["horizon"] is not None and outcome == IN_FLIGHT)
        times = [table[name][row] for name in ("arrival_ps", "admitted_ps", "routed_ps", "enqueued_ps", "finished_ps")]
        came = [at for at in times if at >= 0]
        assert came == sorted(came)
        admitted, routed, finished = times[1], times[2], times[4]
        until = routed if routed >= 0 else finished
        if admitted >= 0 and until >= 0 and flow["ttl"] is not None:
            ttl = 2000 if flow["ttl"] == "2ns" else int(flow["ttl"].removesuffix("ps"))
            assert until - admitted <= ttl  # nobody waits longer in the queue
            assert routed < 0 or routed - admitted < ttl
        if routed < 0 and outcome == TIMED_OUT:
            assert (row in table["reasons"]) or finished == asked.deadline_ps


@pytest.mark.parametrize("leap", LEAPS)
def test_a_queued_request_that_outlives_its_deadline_is_timed_out(leap) -> None:
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": 1}
    recorder = run([planned(0, 0, 10, 10), planned(1, 5, 10, 10, 300), planned(2, 6, 10, 2)], flow, leap)
    # the first has its first token at 70 and its last at 970
    assert (recorder.outcome[1], recorder.finished_ps[1], recorder.routed_ps[1]) == (TIMED_OUT, 305, -1)
    assert recorder.admitted_ps[1] == 5 and 1 not in recorder.reasons
    assert (recorder.admitted_ps[2], recorder.routed_ps[2], recorder.enqueued_ps[2]) == (6, 970, 970)
    assert recorder.started_ps[2] == 970


@pytest.mark.parametrize("leap", LEAPS)
def test_a_request_that_waits_for_its_time_to_live_is_timed_out_with_a_reason(leap) -> None:
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": 1, "ttl": "965ps"}
    recorder = run([planned(0, 0, 10, 10), planned(1, 5, 10, 10), planned(2, 6, 10, 2)], flow, leap)
    # at 970 the first ends, but the second has waited long enough by then; the third goes
    assert (recorder.outcome[1], recorder.finished_ps[1]) == (TIMED_OUT, 970)
    assert recorder.reasons == {1: "waited 965ps in the router's queue"}
    assert recorder.routed_ps[2] == 970


@pytest.mark.parametrize("leap", LEAPS)
def test_a_place_goes_to_the_highest_band_that_waits_not_to_who_came_first(leap) -> None:
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": 1}
    kinds = ["standard", "batch", "standard", "realtime"]
    requests = [planned(row, row, 10, 2, slo_class=name) for row, name in enumerate(kinds)]
    recorder = run(requests, flow, leap)
    assert sorted(range(4), key=lambda row: recorder.routed_ps[row]) == [0, 3, 2, 1]


@pytest.mark.parametrize("leap", LEAPS)
def test_requests_of_one_instant_are_sent_by_band_before_any_is_turned_away(leap) -> None:
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": 2, "capacity": 1}
    kinds = ["batch", "batch", "realtime", "realtime"]
    recorder = run([planned(row, 0, 10, 2, slo_class=name) for row, name in enumerate(kinds)], flow, leap)
    assert list(recorder.outcome) == [COMPLETED, REJECTED, COMPLETED, COMPLETED]
    assert recorder.routed_ps[0] > 0 and recorder.routed_ps[2] == recorder.routed_ps[3] == 0
    assert recorder.reasons == {1: "429: the router's queue is full: its limit is 1"}


def test_no_flow_control_and_a_queue_that_never_fills_decide_alike() -> None:
    scenario = headway.Scenario.load("shared-prefix-2026-11", ["workload.requests=300"])
    plain = headway.simulate(scenario)
    queued = headway.simulate(scenario, flow={"name": "bands", "saturation": "never"})
    assert plain.requests == queued.requests
    assert "flow" not in plain.scenario["policies"]
    assert queued.scenario["policies"]["flow"]["name"] == "bands"


@pytest.mark.parametrize(
    ("poll", "flow"),
    [
        ("0s", {"saturation": "utilization", "queue_threshold": 1}),
        ("50ms", {"saturation": "utilization", "queue_threshold": 1}),
        ("50ms", {"saturation": "concurrency", "max_inflight": 10}),
    ],
)
def test_a_burst_waits_at_the_router_and_nobody_is_lost_however_old_the_signals_are(poll, flow) -> None:
    gold, bulk = {"rate": "60/s", "priority": "realtime"}, {"rate": "200/s", "priority": "batch"}
    scenario: Json = {
        "workload": {"duration": "3s", "tenants": {"gold": gold, "bulk": bulk}},
        "cluster": {"instances": 2, "max_batch_size": 8},
        "policies": {"flow": {"name": "bands", **flow}, "routing": "least-loaded"},
        "signals": {"poll_interval": poll},
    }
    done = headway.simulate(scenario)
    requests = done.summary()["requests"]
    assert requests["completed"] == requests["arrived"] > 500
    assert done.summary()["policy_metrics"]["flow_queued_peak"] > 100
    if (
        poll == "0s" or flow["saturation"] == "concurrency"
    ):  # old reports of short queues let everything through at once
        waits: dict[str, list[int]] = {"gold": [], "bulk": []}
        table = done.requests
        for tenant, admitted, routed in zip(table["tenant"], table["admitted_ps"], table["routed_ps"], strict=True):
            waits[tenant].append(routed - admitted)
        assert max(waits["bulk"]) > 2 * max(waits["gold"]) > 0
