"""Reported evictions and stored blocks: the same in every leap mode, and equal to what the caches have lost and gained
from step to step."""

from __future__ import annotations

from itertools import takewhile
from random import Random
from typing import Any, NamedTuple, get_args

import pytest
from hypothesis import strategies as st

import headway
from headway.errors import HeadwayError
from headway.hashing import GROUP, OUTPUT, PROMPT, key
from headway.latency.base import LatencyModel
from headway.latency.step_models.fixed import Fixed
from headway.policies import registry
from headway.policies.registry import Entry
from headway.results.recorder import COLUMNS
from headway.scenario.scenario import Scenario, SignalSpec
from headway.sim import simulated_cluster as cluster_module
from headway.sim.instance import Instance
from headway.sim.kv_cache import LATER, STEP_END, Stored
from headway.sim.setup import ClusterSetup, EngineSetup
from headway.sim.simulation import Simulation
from headway.types import Belief, Path, Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView
from headway.workload.traffic import OpenLoop, Planned
from searching import search, sized
from strategies import Affine

LEAPS: tuple[bool | str, ...] = (True, False, "random-cuts")
SIZE = 4  # tokens of an engine's block
PLENTY = 1_000_000
BELIEFS = st.sampled_from(get_args(Belief))


class Case(NamedTuple):
    requests: list[Planned]
    latency: LatencyModel
    instances: int
    blocks: int
    batch: int
    tokens: int  # of a step
    delay: int
    size: int  # tokens of an index's block
    capacity: int
    follows: bool


class Believer:
    """Writes down what the index says of every prompt."""

    def __init__(self, case: Case) -> None:
        self.entry = Entry("routing", "believer", Believer, (), (), oracle=False)
        self.case = case
        self.log: list[tuple[int, int, list[int]]] = []

    def bind(self, context: Any) -> None:
        self.index = context.prefix_index(self.case.size, self.case.capacity)

    def route(self, request: Request, cluster: ClusterView) -> Route:
        found = self.index.matches(request.path)
        self.log.append((cluster.now_ps, request.id, found))
        if not self.case.follows:
            return Route(cluster.instances[request.id * 7 % 5 % len(cluster.instances)].id)
        return Route(max(cluster.instances, key=lambda view: (found[view.index], -view.inflight)).id)


class Knower(Believer):
    """Also writes down what the caches truly have."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.entry = Entry("routing", "knower", Knower, (), (), oracle=True)
        self.truth: list[list[int]] = []

    def bind(self, context: Any) -> None:
        super().bind(context)
        self.context = context

    def route(self, request: Request, cluster: ClusterView) -> Route:
        answer = super().route(request, cluster)
        self.truth.append(self.context.truth(request))
        return answer


def run(
    case: Case, leap: bool | str, delay: int | None, belief: Belief = "routed", kind: type[Believer] = Believer
) -> tuple[Any, Simulation]:
    believer = kind(case)
    limits = {"kv_blocks": case.blocks, "max_batch_size": case.batch, "max_batch_tokens": case.tokens}
    views = [InstanceView(index, f"i{index}", **limits) for index in range(case.instances)]
    engines = [EngineSetup(view, case.latency) for view in views]
    setup = ClusterSetup(engines, SIZE, True, leap, None, 0, 3, SignalSpec(kv_event_delay_ps=delay, belief=belief))
    always, none = registry.build("admission", "always", ""), registry.build("priority", "none", "")
    fcfs = registry.build("scheduler", "fcfs", "")
    simulation = Simulation(setup, always, none, believer, fcfs, Random, None)  # type: ignore[arg-type]
    simulation.run(OpenLoop(case.requests))
    return believer, simulation


@st.composite
def cases(draw: st.DrawFn, follows: bool) -> Case:
    at, requests, paths = 0, [], [Path((key(GROUP, 0),), (60,))]
    for row in range(draw(st.integers(2, 16))):
        at += draw(st.sampled_from([0, 7, 50, 100, 300, 1000]))
        stem = draw(st.sampled_from(paths))
        depth = draw(st.integers(0, len(stem.keys)))
        last = stem.ends[depth - 1] if depth else 0
        own = draw(st.integers(0 if depth else 1, max(1, 90 - last)))
        path = Path((*stem.keys[:depth], key(PROMPT, row)), (*stem.ends[:depth], last + own)) if own else stem
        wait = draw(st.none() | st.none() | st.sampled_from([100, 500, 2000]))
        request = Request(row, at, path.tokens, path, deadline_ps=None if wait is None else at + wait)
        output = draw(st.integers(1, 30))
        requests.append(Planned(request, output, key(OUTPUT, row)))
        said = path.tokens + draw(st.integers(0, output))
        paths.extend(
            [path, Path((*path.keys, key(OUTPUT, row)), (*path.ends, said))] if path.tokens < said < 100 else [path]
        )
    affine = st.builds(Affine, step=st.sampled_from([10, 50, 100]), a=st.integers(0, 2), d=st.integers(0, 1))
    return Case(
        requests,
        draw(st.just(Fixed(7, 100)) | st.just(Fixed(1, 10)) | affine),
        instances=draw(st.integers(1, 3)),
        blocks=draw(st.integers(40, 60)),
        batch=draw(st.integers(1, 5)),
        tokens=draw(st.sampled_from([8, 16, 64])),
        delay=draw(st.sampled_from([0, 1, 50, 100, 350, 2000])),
        size=draw(st.sampled_from([SIZE, 2, 8])) if follows else SIZE,
        capacity=draw(st.sampled_from([PLENTY, 20])) if follows else PLENTY,
        follows=follows,
    )


@sized(quick=40, full=300)
def test_the_index_hears_the_same_however_steps_are_counted(examples: int) -> None:
    def check(case: Case, belief: Belief) -> None:
        found = []
        for leap in LEAPS:
            believer, simulation = run(case, leap, case.delay, belief)
            found.append((believer.log, {name: list(getattr(simulation.recorder, name)) for name in COLUMNS}))
        assert found[0] == found[1] == found[2]

    search(examples, check, cases(follows=True), BELIEFS)


@sized(quick=40, full=300)
def test_a_router_that_hears_what_is_stored_without_delay_knows_the_truth_at_every_decision(examples: int) -> None:
    def check(case: Case, leap: bool | str) -> None:
        case = case._replace(size=SIZE)
        knower, _ = run(case, leap, 0, "stored", Knower)
        prompts = {planned.request.id: planned.request.prompt_tokens for planned in case.requests}
        for (_, row, believed), truth in zip(knower.log, knower.truth, strict=True):
            most = (prompts[row] - 1) // SIZE  # an engine computes at least the last token
            assert [min(blocks, most) * SIZE for blocks in believed] == truth

    search(examples, check, cases(follows=True), st.sampled_from(LEAPS))


Block = tuple[int, int]
EVICTED: dict[int, list[tuple[int, Block]]] = {}
SEEN: dict[int, list[tuple[int, set[Block]]]] = {}


def content(instance: Instance) -> set[Block]:
    return {
        (piece.key, block)
        for name in instance.cache.pieces
        for piece in instance.cache._chain(name)
        for block in range(piece.start, piece.end)
    }


class Photographed(Instance):
    """An engine that writes down what is cached whenever that may have changed."""

    def begin(self, now: int) -> int:
        end = super().begin(now)
        SEEN.setdefault(self.view.index, []).append((now, content(self)))
        return end

    def finish_run(self, now: int) -> None:
        super().finish_run(now)
        SEEN.setdefault(self.view.index, []).append((now, content(self)))

    def expire(self, job: Any, now: int) -> bool:
        ends = super().expire(job, now)
        SEEN.setdefault(self.view.index, []).append((now, content(self)))
        return ends


@sized(quick=30, full=300)
def test_a_router_that_hears_what_is_stored_knows_what_was_cached_before_the_delay(examples: int) -> None:
    def check(case: Case, leaps: bool) -> None:
        SEEN.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster_module, "Instance", Photographed)
            _, walked = run(case, False, None)
        believer, simulation = run(case, leaps, case.delay or 1, "stored")
        paths = {planned.request.id: planned.request.path for planned in case.requests}
        for now, row, found in believer.log:
            for index in range(case.instances):
                past = [blocks for at, blocks in SEEN.get(index, []) if at <= now - (case.delay or 1)]
                blocks = past[-1] if past else set()
                leading = list(takewhile(blocks.__contains__, names(paths[row])))
                assert found[index] == len(leading)
        assert list(walked.recorder.finished_ps) == list(simulation.recorder.finished_ps)

    search(examples, check, cases(follows=False), st.booleans())


class Watched(Instance):
    """An engine that compares what is cached before and after each step's beginning."""

    def cached(self) -> set[Block]:
        return content(self)

    def begin(self, now: int) -> bool:
        before = self.cached()
        begun = super().begin(now)
        gone = sorted(before - self.cached())
        EVICTED.setdefault(self.view.index, []).extend((now, block) for block in gone)
        return begun


def names(path: Path) -> list[Block]:
    runs, found, at = path.blocks(SIZE), [], 0
    for name, end in runs:
        found.extend((name, block) for block in range(at, end))
        at = end
    return found


@sized(quick=40, full=300)
def test_the_index_forgets_what_was_evicted_when_the_word_comes(examples: int) -> None:
    search(examples, check_forgotten, cases(follows=False), st.booleans())


def check_forgotten(case: Case, leaps: bool) -> None:
    EVICTED.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_module, "Instance", Watched)
        _, truth = run(case, False, None)
    believer, simulation = run(case, leaps, case.delay)
    held: list[set[Block]] = [set() for _ in range(case.instances)]
    paths = {planned.request.id: planned.request.path for planned in case.requests}
    for now, row, found in believer.log:
        for index, blocks in enumerate(held):
            events = EVICTED.get(index, [])
            due = [block for at, block in events if at + case.delay <= now and at < now]
            EVICTED[index] = events[len(due) :]
            for name, first in due:
                blocks.difference_update(
                    [(other, block) for other, block in blocks if other == name and block >= first]
                )
            expected = 0
            for block in names(paths[row]):
                if block not in blocks:
                    break
                expected += 1
            assert found[index] == expected
        held[simulation.recorder.instance[row]].update(names(paths[row]))
    assert list(truth.recorder.finished_ps) == list(simulation.recorder.finished_ps)


def test_a_router_that_hears_of_evictions_believes_less_than_one_that_does_not() -> None:
    """Caches far smaller than the index: without word of it, most of what is believed cached is long gone."""
    prefix = {"groups": 60, "tokens": 512}
    scenario = {
        "defaults": "2026-11",
        "workload": {"requests": 1200, "rate": "40/s", "prompt_tokens": 600, "output_tokens": 40, "prefix": prefix},
        "cluster": {"instances": 4, "kv": {"gpu_blocks": 600}},
        "policies": {"routing": "prefix-affinity"},
    }
    believed, true = {}, set()
    for delay in (None, "5s", "50ms", "0s"):
        done = headway.simulate({**scenario, "signals": {"kv_event_delay": delay}}).requests
        believed[delay] = sum(done["predicted_tokens"])
        true.add(sum(done["cached_tokens"]))
    (cached,) = true  # it sends each prefix to one instance, whatever it hears
    assert believed[None] > 3 * cached
    assert believed[None] > believed["5s"] > believed["50ms"] > believed["0s"]
    assert abs(believed["0s"] - cached) < 0.01 * cached


CHAT = {
    "workload": {
        "requests": 400,
        "rate": "8/s",
        "prompt_tokens": 300,
        "output_tokens": 200,
        "kind": {"kind": "chat", "turns": 4, "turn_tokens": 40, "think_time": "4s"},
    },
    "cluster": {"instances": 4},
    "policies": {"routing": {"name": "weighted", "scorers": "prefix-affinity:3,queue-depth:1"}},
}


def believed(belief: str, **more: Any) -> tuple[int, int]:
    signals = {"kv_event_delay": "0s", "belief": belief}
    requests = headway.simulate({**CHAT, **more, "signals": signals}).requests
    return sum(requests["predicted_tokens"]), sum(requests["cached_tokens"])


def test_only_a_router_that_hears_what_is_stored_knows_of_generated_tokens() -> None:
    for belief, knows in (("routed", False), ("both", True), ("stored", True)):
        predicted, cached = believed(belief)
        assert (predicted > 0.99 * cached) == knows


@pytest.mark.parametrize("size", [4, 64])
def test_an_index_may_have_other_blocks_than_the_engines(size: int) -> None:
    scorers = [
        {"name": "prefix-affinity", "weight": 3, "block_tokens": size},
        {"name": "queue-depth", "weight": 1},
    ]
    predicted, cached = believed("stored", policies={"routing": {"name": "weighted", "scorers": scorers}})
    assert cached - 64 * 400 < predicted < cached + 16 * 400


def test_routers_that_share_nothing_learn_from_the_engines_what_the_others_sent() -> None:
    def predicted(belief: str) -> int:
        return believed(belief, routers=4)[0]

    assert predicted("stored") > 1.5 * predicted("routed")


def test_events_that_no_router_hears_are_not_recorded() -> None:
    case = Case([], Fixed(7, 100), 2, 40, 4, 16, 0, SIZE, PLENTY, True)
    caches = [instance.cache for instance in run(case, True, 0)[1].cluster.instances]
    assert all(cache.stores is None and cache.log is not None for cache in caches)
    caches = [instance.cache for instance in run(case, True, None)[1].cluster.instances]
    assert all(cache.stores is None and cache.log is None for cache in caches)


def test_a_belief_in_what_is_stored_needs_kv_events() -> None:
    for belief in ("both", "stored"):
        with pytest.raises(
            HeadwayError, match=rf"^signals\.belief: {belief} needs KV events; set 'kv_event_delay' too"
        ):
            Scenario.load({**CHAT, "signals": {"belief": belief}})
    signals = {"kv_event_delay": "50ms", "belief": "stored"}
    assert Scenario.load({**CHAT, "signals": signals}).resolved()["signals"]["belief"] == "stored"
    events = {**CHAT, "signals": {"kv_event_delay": "50ms"}}
    assert "belief" not in Scenario.load({**events, "defaults": "2026-11"}).resolved()["signals"]
    assert Scenario.load(events).resolved()["signals"]["belief"] == "both"


def test_events_are_applied_in_order_of_time_however_a_run_reports_them() -> None:
    case = Case([], Fixed(7, 100), 1, 40, 4, 16, 0, SIZE, PLENTY, True)
    believer, simulation = run(case, True, 0, "stored")
    events, path = simulation.signals.kv_events, Path((1,), (4 * SIZE,))
    assert events is not None
    events.logs[0] += [
        (8, LATER, 1, 3),
        (5, LATER, 1, 0),
        Stored(5, STEP_END, 1, 2, path),
        Stored(7, STEP_END, 1, 4, path),
    ]
    events.tell(4)
    assert believer.index.matches(path) == [0]
    events.tell(6)  # the end of a step comes before the eviction by the next one
    assert believer.index.matches(path) == [0] and not believer.index.size(0)
    events.tell(7)
    assert believer.index.matches(path) == [4]
    events.tell(9)
    assert believer.index.matches(path) == [3] and not events.logs[0]
