"""Several routers: what each knows of the cluster and of the others, in what order, and that the leap stays exact."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.hashing import GROUP, OUTPUT, PROMPT, key, stable
from headway.latency.step_models.fixed import Fixed
from headway.policies import registry
from headway.policies.prefix_index import PrefixIndex
from headway.policies.registry import REPORTED, Entry
from headway.results.recorder import COLUMNS, TIMED_OUT
from headway.scenario.scenario import RouterSpec, SignalSpec
from headway.sim.setup import ClusterSetup, EngineSetup
from headway.sim.simulation import Simulation
from headway.types import ADMIT, Delay, Path, Request, Route
from headway.views.cluster import ClusterView
from headway.views.events import Finished, FirstToken, Routed
from headway.views.instance import SHARED, InstanceView
from headway.workload.traffic import OpenLoop, Planned
from searching import search, sized

LEAPS: tuple[bool | str, ...] = (True, False, "random-cuts")
EXACT = ("inflight", "inflight_tokens", "pending_prefill_tokens", "decode_tokens")
INDEX = (4, 12)  # block tokens and capacity, tight enough to forget
Counts = tuple[int, ...]


class Case(NamedTuple):
    requests: list[Planned]
    routers: RouterSpec
    seed: int = 0  # of the routers
    instances: int = 2
    polling: SignalSpec | None = None
    kv_event_delay: int | None = None
    flow: dict[str, Any] | None = None
    put_off: int = 0  # every so many requests come up again 130 ps later; 0 for none
    blocks: int = 64
    follows: bool = True  # routes by what it sees


class Look(NamedTuple):
    """What one router saw when it was asked or told."""

    at: int
    router: int
    what: str
    request: int
    exact: list[Counts]
    reported: list[tuple[Any, ...]]
    believed: list[int]


class Logger:
    """One router's routing policy: writes down all that it sees into the log of all."""

    def __init__(self, router: int, case: Case, log: list[Look], events: list[tuple[int, Any]]) -> None:
        self.entry = Entry("routing", "logger", Logger, (), REPORTED, oracle=False)
        self.router, self.case, self.log, self.events = router, case, log, events
        self.put_off: set[int] = set()

    def bind(self, context: Any) -> None:
        self.views = context.instances
        self.index: PrefixIndex = context.prefix_index(*INDEX)
        self.draw = context.rng("routing").random

    def note(self, at: int, what: str, request: Request) -> None:
        exact = [tuple(getattr(view, name) for name in EXACT) for view in self.views]
        names = ("observed_at", "routed_since_report", *REPORTED, "finished_since_report")
        reported = [tuple(getattr(view, name) for name in names) for view in self.views]
        believed = self.index.matches(request.path)
        self.log.append(Look(at, self.router, what, request.id, exact, reported, believed))

    def route(self, request: Request, cluster: ClusterView) -> Route:
        self.note(cluster.now_ps, "route", request)
        view = cluster.instances[request.id * 7 % 5 % len(self.views)]
        if self.case.follows:
            view = min(self.views, key=lambda view: (view.inflight, view.effective_load, view.kv_used, self.draw()))
        cached = min(request.prompt_tokens, self.index.matches(request.path)[view.index] * INDEX[0])
        return Route(view.id, cached_tokens=cached)

    def observe(self, event: Any) -> None:
        self.events.append((self.router, event))
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


class Run(NamedTuple):
    log: list[Look]
    events: list[tuple[int, Any]]
    simulation: Simulation


def run(case: Case, leap: bool | str = True) -> Run:
    log: list[Look] = []
    events: list[tuple[int, Any]] = []
    views = [
        InstanceView(index, f"i{index}", kv_blocks=case.blocks, max_batch_size=4, max_batch_tokens=32)
        for index in range(case.instances)
    ]
    engines = [EngineSetup(view, Fixed(7, 100), 100.0, 400.0) for view in views]
    signals = replace(case.polling or SignalSpec(), kv_event_delay_ps=case.kv_event_delay)
    setup = ClusterSetup(engines, 4, True, leap, None, 0, 3, signals, case.routers, case.seed)
    stages: list[list[Any]] = []
    for router in range(case.routers.count):
        logger = Logger(router, case, log, events)
        flow = registry.build("flow", case.flow or "none", "policies.flow")
        stages.append([Gate(logger), registry.build("priority", "none", ""), logger, flow])
    admission, priority, routing, flow = stages[0]
    fcfs = registry.build("scheduler", "fcfs", "")
    simulation = Simulation(
        setup,
        admission,
        priority,
        routing,
        fcfs,
        Random,
        None,  # type: ignore[arg-type]
        flow,
        further=stages[1:],
    )
    simulation.run(OpenLoop(case.requests))
    return Run(log, events, simulation)


def planned(row: int, at: int, prompt: int = 10, output: int = 3, group: int = 0, wait: int | None = None) -> Planned:
    keys, ends = (
        ((key(GROUP, group), key(PROMPT, row)), (8, prompt)) if prompt > 8 else ((key(GROUP, group),), (prompt,))
    )
    deadline = None if wait is None else at + wait
    return Planned(Request(row, at, prompt, Path(keys, ends), deadline_ps=deadline), output, key(OUTPUT, row))


@st.composite
def cases(draw: st.DrawFn, plain: bool = False) -> Case:
    """Of any kind; a plain one has nothing that hides from the log what a router has counted or believes."""
    at = draw(st.sampled_from([0, 0, 1, 100, 250]))
    requests = []
    for row in range(draw(st.integers(1, 14))):
        at += draw(st.sampled_from([0, 0, 7, 50, 100, 107, 300, 1000]))
        wait = draw(st.none() | st.none() | st.sampled_from([0, 7, 100, 107, 214, 500, 907, 2000]))
        lengths = draw(st.integers(1, 100)), draw(st.integers(1, 15))
        requests.append(planned(row, at, *lengths, draw(st.integers(0, 2)), wait))
    interval, delay = st.sampled_from([7, 100, 130, 1000]), st.sampled_from([0, 1, 30, 350])
    polling = st.builds(SignalSpec, interval, delay, effective_load=st.sampled_from(["snapshot", "outstanding"]))
    sync = draw(st.none() | st.sampled_from([1, 7, 50, 100, 300, 1000]))
    flow = {
        "name": "bands",
        "saturation": draw(st.sampled_from(["utilization", "concurrency"])),
        "queue_threshold": draw(st.integers(1, 2)),
        "max_inflight": draw(st.integers(1, 3)),
        "ttl": draw(st.sampled_from([None, "300ps"])),
    }
    return Case(
        requests,
        RouterSpec(draw(st.integers(2, 4)), sync),
        seed=draw(st.integers(0, 50)),
        instances=draw(st.integers(1, 3)),
        polling=draw(st.none() | polling),
        kv_event_delay=None if plain else draw(st.none() | st.sampled_from([0, 1, 30, 500])),
        flow=None if plain else draw(st.none() | st.just(flow)),
        put_off=draw(st.sampled_from([0, 2, 3])),
        blocks=draw(st.integers(33, 60)),
        follows=draw(st.booleans()),
    )


# --- what the others know ----------------------------------------------------------------------------------------


@sized(quick=30, full=300)
def test_every_field_of_every_router_is_the_same_however_steps_are_counted(examples: int) -> None:
    search(examples, check_modes, cases())


def check_modes(case: Case) -> None:
    found = []
    for leap in LEAPS:
        done = run(case, leap)
        columns = {name: list(getattr(done.simulation.recorder, name)) for name in COLUMNS}
        found.append((done.log, columns, done.simulation.policy_metrics))
        nothing_is_left(done.simulation)
    assert found[0] == found[1] == found[2]


def nothing_is_left(simulation: Simulation) -> None:
    """Every router has counted down what it had counted up."""
    routers = simulation.routers
    assert routers is not None
    for router, (plane, views) in enumerate(zip(routers.planes, routers.views, strict=True)):
        assert not plane.flights.by_id and not plane.waiting.delayed_until and not plane.waiting.queued
        for name in SHARED:
            assert [getattr(view, name) for view in views] == routers.foreign[name][router]


class Counted:
    """The exact fields of the views of one router, from the events that it knows of."""

    def __init__(self, instances: int) -> None:
        self.counts = [[0, 0, 0, 0] for _ in range(instances)]
        self.pending: dict[int, int] = {}

    def add(self, event: Any, cached: int) -> None:
        counts, request = self.counts[event.instance.index], event.request
        if isinstance(event, Routed):
            self.pending[request.id] = request.prompt_tokens - cached
            change = (1, request.prompt_tokens, self.pending[request.id], 0)
        elif isinstance(event, FirstToken):
            change = (0, 0, -self.pending.pop(request.id), request.prompt_tokens)
        else:
            assert isinstance(event, Finished)
            decoded = 0 if request.id in self.pending else -request.prompt_tokens
            change = (-1, -request.prompt_tokens, -self.pending.pop(request.id, 0), decoded)
        self.counts[event.instance.index] = [old + new for old, new in zip(counts, change, strict=True)]


@sized(quick=30, full=300)
def test_a_router_knows_its_own_as_it_is_and_the_others_as_of_the_last_exchange(examples: int) -> None:
    """Told from the log of all events: nothing that another did at or after the last multiple of the interval is known,
    everything before it is, and prompts are learnt in the order in which they were sent."""
    search(examples, check_known, cases(plain=True))


def check_known(case: Case) -> None:
    done = run(case)
    predicted, interval = done.simulation.recorder.predicted_tokens, case.routers.sync_interval_ps
    known = 0  # events before this look, and the event that it was told with
    for look in done.log:
        if look.what in ("Routed", "FirstToken", "Finished"):
            known += 1
        tick = 0 if interval is None else look.at // interval * interval
        counted = Counted(case.instances)
        touches: list[tuple[int, int, int, int, Path]] = []
        for number, (router, event) in enumerate(done.events[:known]):
            own = router == look.router
            if not own and event.at_ps >= tick:
                continue
            counted.add(event, predicted[event.request.id])
            if isinstance(event, Routed):
                at = event.at_ps if own or interval is None else (event.at_ps // interval + 1) * interval
                touches.append((at, own, number, event.instance.index, event.request.path))
        assert look.exact == [tuple(counts) for counts in counted.counts]
        index = PrefixIndex(case.instances, INDEX[1], INDEX[0])
        for _, _, _, instance, path in sorted(touches, key=lambda touch: touch[:3]):
            index.touch(instance, path)
        assert look.believed == index.matches(case.requests[look.request].request.path)


def alternating(count: int) -> tuple[RouterSpec, int]:
    """Two routers to which so many requests come in turns, the first to the first, and their seed."""
    for seed in range(100_000):
        homes = [stable(seed, row) % 2 for row in range(count)]
        if homes == [row % 2 for row in range(count)]:
            return RouterSpec(2, 300), seed
    raise AssertionError


@pytest.mark.parametrize("leap", LEAPS)
def test_what_happens_at_the_instant_of_an_exchange_is_told_at_the_next(leap: bool | str) -> None:
    """One instance, prompts of 10 tokens at 7 ps each, 100 ps for the decodes of a step: request 0 has its first token
    at 70; 1, 2 and 3, which enter at the boundary at 370, have theirs at 680. The first router's are the even ones."""
    routers, seed = alternating(8)
    times = (0, 299, 300, 300, 600, 600, 600, 899)
    requests = [planned(row, at, 10, 30, group=row) for row, at in enumerate(times)]
    done = run(Case(requests, routers, seed, instances=1, follows=False), leap)
    assert done.simulation.routers is not None
    assert done.simulation.routers.home == [0, 1] * 4
    asked = {look.request: look.exact[0][:3] for look in done.log if look.what == "route"}
    assert asked[0] == (0, 0, 0)
    assert asked[1] == (0, 0, 0)  # at 299 the second router has heard of nothing
    assert asked[2] == (2, 20, 10)  # at 300 the first hears of request 1, which has no first token
    assert asked[3] == (2, 20, 10)  # and the second of request 0, not of 2, which came at this instant
    assert asked[4] == (4, 40, 30)
    assert asked[5] == (4, 40, 30)  # of request 4, of this instant, the second router has not heard
    assert asked[6] == (5, 50, 40)  # to the first it is its own
    # At 899 it knows that 1 and 3 have their first token and 5 has none, and of the others what was so before 600: 0
    # had its first token, 2 had none.
    assert asked[7] == (5, 50, 20)


@pytest.mark.parametrize("leap", LEAPS)
def test_a_queue_opens_when_its_router_hears_that_the_others_have_done(leap: bool | str) -> None:
    """Request 0 runs from 0 to 470. The second router hears of it at 300, so its own waits from 310 on, and must not
    wait for good although nothing else happens: at 600 it hears that there is none."""
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": 1}
    requests = [planned(0, 0, 10, 5, group=0), planned(1, 310, 10, 2, group=1)]
    done = run(Case(requests, *alternating(2), instances=1, flow=flow), leap)
    recorder = done.simulation.recorder
    assert list(recorder.finished_ps) == [470, 770]
    assert list(recorder.routed_ps) == [0, 600]
    assert done.simulation.ended_ps == 770


@pytest.mark.parametrize(("heard", "now", "believed"), [(250, 350, 2), (320, 350, 0), (700, 950, 0)])
def test_evictions_and_exchanges_count_in_the_order_of_their_instants(heard: int, now: int, believed: int) -> None:
    """A prompt of two blocks goes to the instance at 100; the second router learns of it at 300, and of its eviction
    before that, when it has nothing to forget, or after. That nothing happens until `now` makes no difference."""
    routers = run(Case([], *alternating(1), instances=1)).simulation.routers
    assert routers is not None

    class Evicted:
        at: int | None = heard

        def tell(self, now: int) -> None:
            if self.at is not None and now >= self.at:
                self.at = None
                for index in routers.indexes:
                    index.remove(0, key(GROUP, 0), 0)

    request = planned(0, 100, 8).request
    routers.signals.kv_events = events = Evicted()  # type: ignore[assignment]
    routers.arrive(100, request)
    routers.sync(now)
    events.tell(now)
    assert routers.planes[1].indexes[0].matches(request.path) == [believed]


def test_an_exchange_makes_no_difference_to_the_first_router_of_nobody_else() -> None:
    """Where all requests come to one router, it is as if it were alone, however often it tells the idle ones."""
    seed = next(seed for seed in range(1000) if not any(stable(seed, row) % 2 for row in range(6)))
    requests = [planned(row, 100 * row, 30, 9, group=row % 2) for row in range(6)]
    logs = [run(Case(requests, RouterSpec(2, sync), seed)).log for sync in (None, 1, 100)]
    assert logs[0] == logs[1] == logs[2]
    assert {look.router for look in logs[0]} == {0}


def test_what_was_put_off_by_several_routers_comes_up_by_request() -> None:
    """All at 130 ps, whoever put it off."""
    case = Case([planned(row, 0) for row in range(12)], RouterSpec(3), put_off=1)
    done = run(case)
    again = [look for look in done.log if look.what == "route"]
    assert [(look.at, look.request) for look in again] == [(130, row) for row in range(12)]
    assert len({look.router for look in again}) == 3


def test_queues_are_looked_through_router_by_router() -> None:
    """A single sequence fills the only instance; what came meanwhile waits, each at its router."""
    flow = {"name": "bands", "queue_threshold": 1}
    case = Case([planned(row, row, 10, 1) for row in range(30)], RouterSpec(3), instances=1, flow=flow)
    done = run(case)
    assert done.simulation.routers is not None
    home = done.simulation.routers.home
    sent: dict[int, list[int]] = {}
    for look in done.log:
        if look.what == "route":
            sent.setdefault(look.at, []).append(look.request)
    orders = [rows for rows in sent.values() if len(rows) > 1]
    assert any(len({home[row] for row in rows}) > 1 for rows in orders)
    for rows in orders:
        assert rows == sorted(rows, key=lambda row: (home[row], row))


def test_a_client_that_gives_up_is_taken_from_the_queue_of_its_router() -> None:
    flow = {"name": "bands", "queue_threshold": 1}
    requests = [planned(row, row, 10, 30, wait=None if row < 8 else 50) for row in range(16)]
    done = run(Case(requests, RouterSpec(3), instances=1, flow=flow))
    assert list(done.simulation.recorder.outcome[8:]).count(TIMED_OUT) == 8
    nothing_is_left(done.simulation)


@pytest.mark.parametrize("polling", [None, SignalSpec(100, 15)])
def test_all_routers_are_told_what_one_would_be(polling: SignalSpec | None) -> None:
    """Whenever they are asked, and whenever they hear of something."""
    requests = [planned(row, 45 * row, 10 + row, 5 + row % 7, group=row % 3) for row in range(40)]
    told = []
    for count in (1, 3):
        log = run(Case(requests, RouterSpec(count), polling=polling, follows=False)).log
        told.append(
            [(look.at, look.what, look.request, [one[:1] + one[2:-1] for one in look.reported]) for look in log]
        )
    assert told[0] == told[1]
    assert len({str(reported) for *_, reported in told[0]}) > 10


@pytest.mark.parametrize("polled", [False, True])
def test_each_router_counts_for_itself_what_it_has_sent_and_what_has_ended_since_the_report(polled: bool) -> None:
    requests = [planned(row, 45 * row, 10, 5, group=row) for row in range(40)]
    polling = SignalSpec(100, 15) if polled else None
    done = run(Case(requests, RouterSpec(3, 100), polling=polling, follows=False))
    came: Counter[tuple[int, int, int]] = Counter()
    ended: Counter[tuple[int, int, int]] = Counter()
    seen = gone = 0
    for look in done.log:
        if look.what == "route":
            for index, (observed_at, since, *_, finished) in enumerate(look.reported):
                assert observed_at == (max(0, (look.at - 15) // 100 * 100) if polled else None)
                expected = sum(
                    count
                    for (router, to, at), count in came.items()
                    if polled and (router, to) == (look.router, index) and at >= observed_at
                )
                assert since == expected
                seen += since
                # All end with a step, which a tick at that instant sees.
                assert finished == sum(
                    count
                    for (router, at_index, at), count in ended.items()
                    if polled and (router, at_index) == (look.router, index) and at > observed_at
                )
                gone += finished
            instance = done.simulation.recorder.instance[look.request]
            came[look.router, instance, look.at] += 1
        elif look.what == "Finished":
            ended[look.router, done.simulation.recorder.instance[look.request], look.at] += 1
    assert (seen > 0) is (gone > 0) is polled
