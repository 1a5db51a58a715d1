"""Polled signals: the same in every leap mode, and what somebody who looks at every tick would have written down."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

import headway
import headway.policies
from headway import HeadwayError
from headway.hashing import GROUP, OUTPUT, PROMPT, key
from headway.latency.base import LatencyModel
from headway.latency.step_models.fixed import Fixed
from headway.policies import registry
from headway.policies.registry import REPORTED, Entry
from headway.results.recorder import COLUMNS
from headway.scenario.scenario import SignalSpec
from headway.sim import reported_signals as signals_module
from headway.sim import simulated_cluster as cluster_module
from headway.sim.instance import Instance
from headway.sim.setup import ClusterSetup, EngineSetup
from headway.sim.simulation import Simulation
from headway.types import ADMIT, Delay, Path, Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView
from headway.workload.traffic import OpenLoop, Planned
from searching import search, sized
from strategies import Affine

LEAPS: tuple[bool | str, ...] = (True, False, "random-cuts")
IDLE_WATTS, BUSY_WATTS = 100.0, 400.0
BUSY_WINDOW, WATTS_WINDOW = 500, 3000  # in place of 5 s and 30 s, for a test's own seconds
Fields = tuple[Any, ...]


class Case(NamedTuple):
    requests: list[Planned]
    latency: LatencyModel
    instances: int
    blocks: int
    batch: int
    tokens: int  # of a step
    polling: SignalSpec
    put_off: int  # every so many requests come up again 130 ps later; 0 for none
    oracle: bool  # whether the policy asks for the true cache state, which settles runs
    follows: bool  # whether it routes by what it sees


def fields(view: InstanceView) -> Fields:
    exact = (view.inflight, view.inflight_tokens, view.pending_prefill_tokens)
    reported = (view.queued, view.running, view.kv_used, view.busy, view.watts, view.hit_rate)
    return (*exact, view.observed_at, view.routed_since_report, *reported, view.finished_since_report)


class Logger:
    """Writes down every field of every view whenever it is asked or told anything."""

    def __init__(self, case: Case) -> None:
        self.entry = Entry("routing", "logger", Logger, (), REPORTED, oracle=case.oracle)
        self.case = case
        self.log: list[tuple[int, str, int, list[Fields]]] = []
        self.put_off: set[int] = set()

    def bind(self, context: Any) -> None:
        self.context = context

    def note(self, at: int, what: str, request: Request) -> None:
        self.log.append((at, what, request.id, [fields(view) for view in self.context.instances]))

    def route(self, request: Request, cluster: ClusterView) -> Route:
        if self.case.oracle and request.id % 2:
            self.context.truth(request)
        self.note(cluster.now_ps, "route", request)
        if not self.case.follows:
            return Route(cluster.instances[request.id * 7 % 5 % len(cluster.instances)].id)
        return Route(min(cluster.instances, key=lambda view: (view.effective_load, view.kv_used)).id)

    def observe(self, event: Any) -> None:
        self.note(event.at_ps, type(event).__name__, event.request)


class Gate:
    """Lets the logger look before admission as well."""

    def __init__(self, logger: Logger) -> None:
        self.logger = logger

    def admit(self, request: Request, cluster: ClusterView) -> Any:
        logger, every = self.logger, self.logger.case.put_off
        logger.note(cluster.now_ps, "admit", request)
        if every and request.id % every == 0 and request.id not in logger.put_off:
            logger.put_off.add(request.id)
            return Delay(130)
        return ADMIT


def run(case: Case, leap: bool | str, polling: SignalSpec | None) -> tuple[Logger, Simulation]:
    logger = Logger(case)
    limits = {"kv_blocks": case.blocks, "max_batch_size": case.batch, "max_batch_tokens": case.tokens}
    views = [InstanceView(index, f"i{index}", **limits) for index in range(case.instances)]
    engines = [EngineSetup(view, case.latency, IDLE_WATTS, BUSY_WATTS) for view in views]
    setup = ClusterSetup(engines, 4, True, leap, None, 0, 3, polling or SignalSpec())
    none, fcfs = registry.build("priority", "none", ""), registry.build("scheduler", "fcfs", "")
    simulation = Simulation(setup, Gate(logger), none, logger, fcfs, Random, None)  # type: ignore[arg-type]
    simulation.run(OpenLoop(case.requests))
    return logger, simulation


def planned(row: int, at: int, prompt: int, output: int, wait: int | None, group: int) -> Planned:
    keys, ends = (
        ((key(GROUP, group), key(PROMPT, row)), (8, prompt)) if prompt > 8 else ((key(GROUP, group),), (prompt,))
    )
    deadline = None if wait is None else at + wait
    return Planned(Request(row, at, prompt, Path(keys, ends), deadline_ps=deadline), output, key(OUTPUT, row))


@st.composite
def cases(draw: st.DrawFn, follows: bool) -> Case:
    at = draw(st.sampled_from([0, 0, 1, 100, 250]))
    requests = []
    for row in range(draw(st.integers(1, 14))):
        at += draw(st.sampled_from([0, 0, 7, 50, 100, 107, 300, 1000]))
        wait = draw(st.none() | st.none() | st.sampled_from([0, 7, 100, 107, 214, 500, 907, 2000]))
        lengths = draw(st.integers(1, 100)), draw(st.integers(1, 20))
        requests.append(planned(row, at, *lengths, wait, draw(st.integers(0, 2))))
    affine = st.builds(Affine, step=st.sampled_from([10, 50, 100]), a=st.integers(0, 2), d=st.integers(0, 1))
    return Case(
        requests,
        draw(st.just(Fixed(7, 100)) | st.just(Fixed(1, 10)) | affine),
        instances=draw(st.integers(1, 3)),
        blocks=draw(st.integers(33, 80)),
        batch=draw(st.integers(1, 5)),
        tokens=draw(st.sampled_from([8, 16, 64])),
        polling=SignalSpec(
            draw(st.sampled_from([1, 7, 50, 100, 130, 1000])), draw(st.sampled_from([0, 0, 1, 30, 100, 350]))
        ),
        put_off=draw(st.sampled_from([0, 2, 3])),
        oracle=draw(st.booleans()),
        follows=follows,
    )


@pytest.fixture(scope="module", autouse=True)
def short_windows() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signals_module, "BUSY_WINDOW", BUSY_WINDOW)
        patch.setattr(signals_module, "WATTS_WINDOW", WATTS_WINDOW)
        yield


@sized(quick=40, full=300)
def test_every_field_of_every_view_is_the_same_however_steps_are_counted(examples: int) -> None:
    def check(case: Case) -> None:
        found = []
        for leap in LEAPS:
            logger, simulation = run(case, leap, case.polling)
            found.append((logger.log, {name: list(getattr(simulation.recorder, name)) for name in COLUMNS}))
        assert found[0] == found[1] == found[2]

    search(examples, check, cases(follows=True))


# --- the poller that looks at every tick -----------------------------------------------------------------------


class State(NamedTuple):
    at: int
    before: bool  # the ticks of its instant see it: a step has ended
    queued: int
    running: int
    kv_used: int
    busy_from: int
    hit_rate: float


class Watched(Instance):
    """An engine with fresh signals that writes down what it is after whatever happens to it."""

    def note(self, now: int, before: bool) -> None:
        told = (self.view.queued, self.view.running, self.view.kv_used)
        STATES.setdefault(self.view.index, []).append(State(now, before, *told, self.busy_from, self.view.hit_rate))

    def enqueue(self, job: Any, now: int, *how: Any) -> bool:
        begins = super().enqueue(job, now, *how)
        self.note(now, False)
        return begins

    def expire(self, job: Any, now: int) -> bool:
        begins = super().expire(job, now)
        self.note(now, False)
        return begins

    def begin(self, now: int) -> bool:
        begun = super().begin(now)
        self.note(now, False)
        return begun

    def finish_run(self, now: int) -> None:
        super().finish_run(now)
        self.note(now, True)


STATES: dict[int, list[State]] = {}


def seen_at(states: list[State], tick: int) -> State:
    idle = State(0, True, 0, 0, 0, -1, 0.0)
    return [idle, *(state for state in states if state.at < tick or (state.at == tick and state.before))][-1]


def busy_share(states: list[State], origin: int, tick: int, length: int) -> float:
    """From the states alone: an instant is busy if the last state before it is."""
    since = max(origin, tick - length)
    if tick <= since:
        return 0.0
    ends = [min(state.at, tick) for state in states[1:]] + [tick]
    spans = [(state.at, end) for state, end in zip(states, ends, strict=True) if state.busy_from >= 0] if states else []
    busy = sum(max(0, end - max(start, since)) for start, end in spans)
    return busy / (tick - since)


@sized(quick=30, full=200)
def test_a_view_shows_what_a_poller_would_have_written_down(examples: int) -> None:
    search(examples, check_polled, cases(follows=False), st.booleans())


def check_polled(case: Case, leaps: bool) -> None:
    STATES.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_module, "Instance", Watched)
        fresh, truth = run(case, False, None)
    polled, simulation = run(case, leaps, case.polling)
    assert [entry[:3] for entry in polled.log] == [entry[:3] for entry in fresh.log]
    origin, recorder, interval = fresh.log[0][0], truth.recorder, case.polling.poll_interval_ps
    came: Counter[tuple[int, int]] = Counter()
    for (now, what, row, views), (_, _, _, exact) in zip(polled.log, fresh.log, strict=True):
        tick = max(0, (now - case.polling.poll_delay_ps) // interval * interval)
        for index, view in enumerate(views):
            states = STATES.get(index, [])
            state = seen_at(states, tick)
            busy = busy_share(states, origin, tick, BUSY_WINDOW)
            watts = IDLE_WATTS + (BUSY_WATTS - IDLE_WATTS) * busy_share(states, origin, tick, WATTS_WINDOW)
            since = sum(count for (to, at), count in came.items() if to == index and at >= tick)
            assert view[:3] == exact[index][:3]
            assert view[3:-1] == (tick, since, state.queued, state.running, state.kv_used, busy, watts, state.hit_rate)
            outstanding, inflight = state.queued + state.running + since - view[-1], view[0]
            # The tick of this very instant sees ends of steps that the router has yet to hear of. Whoever hears that a
            # request was routed, hears it before the request is at the instance.
            assert outstanding == inflight or (tick == now and outstanding < inflight) or what == "Routed"
        if what == "Routed" and recorder.enqueued_ps[row] >= 0:
            came[recorder.instance[row], now] += 1
    assert list(recorder.finished_ps) == list(simulation.recorder.finished_ps)


# --- by hand -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leap", LEAPS)
def test_a_tick_sees_the_steps_that_end_at_its_instant_and_nothing_else_of_it(leap: bool | str) -> None:
    """Ten tokens of prefill take 70 ps and a decode 100, so the first request, which has three tokens to give, ends at
    270 ps; the second comes at that very instant, as do the poller and, in the end, a third."""
    requests = [planned(0, 0, 10, 3, None, 0), planned(1, 270, 10, 3, None, 1), planned(2, 270, 10, 3, None, 2)]
    requests.append(planned(3, 539, 10, 3, None, 2))
    requests.append(planned(4, 541, 10, 3, None, 2))
    case = Case(requests, Fixed(7, 100), 1, 64, 4, 64, SignalSpec(270), 0, False, False)
    logger, _ = run(case, leap, case.polling)
    told = {row: views[0] for _, what, row, views in logger.log if what == "route"}
    reports = {row: view[3:8] for row, view in told.items()}  # observed at, routed since, queued, running, KV blocks
    assert reports[0] == (0, 0, 0, 0, 0)
    assert reports[1] == (270, 0, 0, 0, 0)  # the first has left, none has come
    assert reports[2] == (270, 1, 0, 0, 0)
    assert reports[3] == (270, 2, 0, 0, 0)
    # From 270 on both are prefilled within 140 ps, then decode; at 540 a step has ended at 510 and one is under way.
    assert reports[4] == (540, 0, 1, 2, 6)


@pytest.mark.parametrize("leap", LEAPS)
def test_what_is_outstanding_counts_once_and_what_has_ended_until_the_next_report(leap: bool | str) -> None:
    requests = [planned(row, at, 10, 3, None, row) for row, at in enumerate((0, 90, 110, 120, 420, 660))]
    case = Case(requests, Fixed(7, 100), 1, 64, 1, 64, SignalSpec(100, 15), 0, False, False)
    logger, _ = run(case, leap, case.polling)
    asked = [(now, views[0]) for now, what, _, views in logger.log if what == "route"]
    # 0 runs until 270 and 1 until 540; 2 and 3 wait.
    load = [
        (now, view[3], view[5] + view[6] + view[4], view[0]) for now, view in asked
    ]  # when, observed, load, in flight
    assert load == [(0, 0, 0, 0), (90, 0, 1, 1), (110, 0, 2, 2), (120, 100, 3, 3), (420, 400, 3, 3), (660, 600, 3, 3)]


def loads(requests: list[Planned], polling: SignalSpec, leap: bool | str) -> list[tuple[int, int, int, int]]:
    """When the router was asked, how many had finished since the report, the load by both rules."""
    case = Case(requests, Fixed(7, 100), 1, 64, 1, 64, polling, 0, False, False)
    seen: list[tuple[int, int, int, int]] = []

    class Reader(Logger):
        def route(self, request: Request, cluster: ClusterView) -> Route:
            (view,) = cluster.instances
            seen.append((cluster.now_ps, view.finished_since_report, view.snapshot_load, view.effective_load))
            return Route(view.id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "Logger", Reader)
        run(case, leap, polling)
    return seen


@pytest.mark.parametrize("leap", LEAPS)
def test_requests_that_have_finished_since_the_report_are_subtracted(leap: bool | str) -> None:
    """Of the four that come in the first 40 ps, one at a time takes 270 ps."""
    requests = [planned(row, at, 10, 3, None, row) for row, at in enumerate((0, 10, 20, 30, 350, 650, 1000))]
    polled = SignalSpec(300, effective_load="outstanding")
    # At 350 the report of 300 has one running and two queued: one had finished before. At 1000, all four have finished,
    # and the report of 900 has the fifth running and the sixth queued.
    assert loads(requests, polled, leap)[4:] == [(350, 0, 3, 3), (650, 0, 3, 3), (1000, 0, 3, 3)]
    polled = SignalSpec(1000, effective_load="outstanding")
    assert loads(requests, polled, leap)[4:] == [(350, 1, 4, 3), (650, 2, 5, 3), (1000, 0, 3, 3)]
    assert loads(requests, SignalSpec(1000), leap)[4:] == [(350, 1, 4, 4), (650, 2, 5, 5), (1000, 0, 3, 3)]


@pytest.mark.parametrize("leap", LEAPS)
def test_the_load_is_never_below_the_requests_in_flight(leap: bool | str) -> None:
    """The first ends at 270 ps, at the tick that no longer has it, before the router hears of that."""
    requests = [planned(0, 0, 10, 3, None, 0), planned(1, 270, 10, 3, None, 1), planned(2, 271, 10, 3, None, 1)]
    polled = SignalSpec(270, effective_load="outstanding")
    assert loads(requests, polled, leap) == [(0, 0, 0, 0), (270, 0, 0, 1), (271, 0, 1, 1)]


@pytest.mark.parametrize("leap", LEAPS)
def test_the_report_of_a_tick_has_the_request_whose_client_gives_up_at_that_tick(leap: bool | str) -> None:
    """The second waits until its deadline at 200 ps. The third is cut off in its second step, at 420 ps, and leaves
    with that step, at 440 ps: reports from then on do not have it."""
    requests = [planned(0, 0, 10, 3, None, 0), planned(1, 10, 10, 3, 190, 1), planned(2, 199, 10, 30, 221, 2)]
    requests += [planned(row, at, 10, 3, None, row) for row, at in ((3, 201), (4, 439), (5, 441), (6, 640))]
    for interval in (200, 440):
        seen = loads(requests, SignalSpec(interval, effective_load="outstanding"), leap)
        truth = [0, 1, 2, 2, 2, 2, 3]  # in flight when each is asked for, of which 440 has the fourth running
        assert [load for _, _, _, load in seen] == truth
    assert loads(requests, SignalSpec(200, effective_load="outstanding"), leap)[3] == (201, 1, 3, 2)


class Led:
    """The default policy, after the first requests have gone where the test wants them."""

    def __init__(self, targets: list[int]) -> None:
        self.policy = registry.build("routing", registry.DEFAULT_POLICIES["routing"], "")
        self.entry, self.bind, self.targets = registry.entry_of(self.policy), self.policy.bind, targets

    def route(self, request: Request, cluster: ClusterView) -> Route:
        if request.id < len(self.targets):
            return Route(cluster.instances[self.targets[request.id]].id)
        return self.policy.route(request, cluster)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("rule", "there"), [("snapshot", 12), ("outstanding", 2)])
def test_the_default_does_not_send_requests_in_a_row_to_the_busiest_of_three(rule: Any, there: int) -> None:
    """Reports of 500 ms show four requests at the first instance and 16 at each of the others. The others' are short
    and have all ended when twelve more come, long before the next report."""
    ms = 10**9
    targets = [0] * 4 + [1] * 16 + [2] * 16
    requests = [planned(row, 490 * ms, 10, 3 if target else 60, None, row) for row, target in enumerate(targets)]
    requests += [planned(len(targets) + row, (900 + row) * ms, 10, 60, None, row) for row in range(12)]
    views = [InstanceView(index, f"i{index}", kv_blocks=1000, max_batch_size=64) for index in range(3)]
    engines = [EngineSetup(view, Fixed(ms // 4, 10 * ms), IDLE_WATTS, BUSY_WATTS) for view in views]
    signals = SignalSpec(500 * ms, effective_load=rule)
    setup = ClusterSetup(engines, 4, True, True, None, 0, 3, signals)
    stages = [
        registry.build(stage, "always" if stage == "admission" else "none", "") for stage in ("admission", "priority")
    ]
    fcfs = registry.build("scheduler", "fcfs", "")
    simulation = Simulation(setup, *stages, Led(targets), fcfs, Random, None)  # type: ignore[arg-type]
    recorder = simulation.run(OpenLoop(requests))
    assert max(recorder.finished_ps[4:36]) < 900 * ms < min(recorder.finished_ps[:4])
    assert list(recorder.instance[36:]).count(0) == there


def scenario(**signals: Any) -> dict[str, Any]:
    small = {"requests": 40, "rate": "40/s", "prompt_tokens": 64, "output_tokens": 32}
    return {"defaults": "2026-11", "workload": small, "cluster": {"instances": 3}, "signals": signals}


def test_a_scenario_says_how_old_the_signals_are() -> None:
    loaded = headway.Scenario.load(scenario(poll_interval="50ms", poll_delay="5ms"))
    assert (loaded.signals.poll_interval_ps, loaded.signals.poll_delay_ps) == (50 * 10**9, 5 * 10**9)
    assert headway.Scenario.load(loaded.resolved()).resolved() == loaded.resolved()
    assert loaded.key() != headway.Scenario.load(scenario()).key()


def test_without_an_interval_all_is_as_if_nothing_had_been_said() -> None:
    plain = headway.Scenario.load({key: value for key, value in scenario().items() if key != "signals"})
    for signals in ({}, {"poll_interval": "0s"}, {"poll_interval": None, "poll_delay": "0ms"}):
        assert headway.Scenario.load(scenario(**signals)).resolved() == plain.resolved()


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        ({"poll_delay": "5ms"}, "signals.poll_delay: needs a poll interval; set 'poll_interval' too, as in 50ms."),
        ({"poll_interval": 50}, "signals.poll_interval: 50 is not a duration; write it with its unit"),
        ({"pol_interval": "50ms"}, "signals.pol_interval: there is no such key. Did you mean 'poll_interval'?"),
    ],
)
def test_a_mistake_is_told(signals: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError) as error:
        headway.Scenario.load(scenario(**signals))
    assert message in str(error.value)


class ShortestQueue:
    def route(self, request: Request, cluster: ClusterView) -> Route:
        return Route(min(cluster.instances, key=lambda view: view.queued + view.running).id)


def test_stale_queues_make_a_router_run_in_herds() -> None:
    """Who goes by reported queues alone sends all that comes between two reports to one instance; who adds what was
    routed since does not, and the router's own counts do not age."""
    changes = ["workload.requests=600", "workload.rate=250/s", "cluster.instances=16"]
    even: dict[str, list[float]] = {"queue": [], "outstanding": [], "loaded": []}
    routers: dict[str, Any] = {"queue": ShortestQueue, "outstanding": "least-outstanding", "loaded": "least-loaded"}
    for interval in ("0s", "50ms", "500ms", "2s"):
        for name, routing in routers.items():
            done = headway.simulate(scenario(poll_interval=interval), overrides=changes, routing=routing)
            even[name].append(done.summary()["balance"]["jain"])
    assert even["queue"] == sorted(even["queue"], reverse=True)
    assert even["queue"][0] > 0.98 and even["queue"][3] < 0.3
    assert min(even["outstanding"]) > 0.98
    assert len(set(even["loaded"])) == 1
