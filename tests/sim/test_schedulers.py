"""The instance's schedulers: who enters next, in what chunks, and who yields; exact, within the limits, and fair."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st

import headway
import headway.policies  # (declares the policies)
from headway import HeadwayError
from headway.hashing import GROUP, OUTPUT, PROMPT, key
from headway.latency.base import Chunk, LatencyModel, Run
from headway.latency.step_models.fixed import Fixed
from headway.policies import registry
from headway.policies.queues import Ticket
from headway.results.recorder import COLUMNS, COMPLETED, InstanceStats, Recorder
from headway.sim.setup import ClusterSetup, EngineSetup
from headway.sim.simulation import Simulation
from headway.types import ADMIT, Delay, Path, Priority, Request
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView
from headway.workload.traffic import OpenLoop, Planned
from reference import simulate
from reference_schedulers import OTHER, TARGETS, naive
from searching import search, sized
from strategies import latencies, period
from test_engine_equals_reference import expected, found

LEAPS: tuple[bool | str, ...] = (True, False, "random-cuts")
PREFILL, DECODE = 7, 100  # picoseconds a token and a step
NAMES = ("fcfs", "priority", "sjf", "shortest-prefill", "slo-slack", "fair")
Json = dict[str, Any]


class Given:
    """Gives each request the priority that it was planned with, as a priority stage."""

    def __init__(self, scores: Sequence[float]) -> None:
        self.scores = scores
        self.entry = registry.Entry("priority", "given", Given, (), (), False)

    def prioritise(self, request: Request, cluster: ClusterView) -> Priority:
        return Priority(self.scores[request.id])


class Patient:
    """An admission that puts every request off to the next multiple of `step` once."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.asked: dict[int, bool] = {}

    def admit(self, request: Request, cluster: ClusterView) -> Any:
        if not self.step or request.id in self.asked:
            return ADMIT
        self.asked[request.id] = True
        return Delay(self.step - cluster.now_ps % self.step)


class Watched:
    """A latency model that sees every step it is asked about."""

    def __init__(self, model: LatencyModel) -> None:
        self.model = model
        self.steps: list[tuple[int, list[Chunk]]] = []

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        self.steps.append((decodes, list(chunks)))
        return self.model.run(decodes, context, chunks)


def planned(row: int, at: int, prompt: int, output: int, *, group: int = 0, **said: Any) -> Planned:
    shared = min(8, prompt)
    keys = (key(GROUP, group), key(PROMPT, row)) if prompt > shared else (key(GROUP, group),)
    path = Path(keys, (shared, prompt) if prompt > shared else (prompt,))
    return Planned(Request(row, at, prompt, path, **said), output, key(OUTPUT, row))


def run(
    requests: list[Planned],
    scheduler: Any,
    leap: bool | str = True,
    *,
    scores: Sequence[float] | None = None,
    blocks: int = 1000,
    block_tokens: int = 4,
    batch: int = 1,
    tokens: int = 64,
    instances: int = 1,
    caching: bool = True,
    latency: LatencyModel | None = None,
    put_off: int = 0,
) -> tuple[Recorder, list[InstanceStats]]:
    views = [
        InstanceView(index, f"instance-{index}", kv_blocks=blocks, max_batch_size=batch, max_batch_tokens=tokens)
        for index in range(instances)
    ]
    model = Fixed(PREFILL, DECODE) if latency is None else latency
    engines = [EngineSetup(view, model) for view in views]
    setup = ClusterSetup(engines, block_tokens, caching, leap, None, 0, jitter_seed=3)
    priority = Given(scores if scores is not None else [0.0] * len(requests))
    made = registry.build("scheduler", scheduler, "") if isinstance(scheduler, (str, dict)) else scheduler
    routing = registry.build("routing", "round-robin", "")
    simulation = Simulation(setup, Patient(put_off), priority, routing, made, Random, None)  # type: ignore[arg-type]
    return simulation.run(OpenLoop(requests)), simulation.cluster.stats


def entries(*arguments: Any, **options: Any) -> list[int]:
    """The requests in order of entry into the batch."""
    started = list(run(*arguments, **options)[0].started_ps)
    assert min(started) >= 0
    return sorted(range(len(started)), key=started.__getitem__)


def columns(recorder: Recorder) -> Json:
    return {name: list(getattr(recorder, name)) for name in COLUMNS}


# --- the order of entry, by hand ---------------------------------------------------------------------------------
# One request at a time; the first occupies the instance while the others come.


def test_realtime_requests_are_scheduled_before_batch() -> None:
    """Scenario: Realtime requests scheduled before batch.

    Given the wait queue has a batch request (arrival=100) and a realtime request (arrival=101), when the batch is made
    with a priority-aware scheduler, then the realtime request is scheduled first.
    """
    requests = [
        planned(0, 0, 10, 10, slo_class="standard"),
        planned(1, 100, 10, 1, slo_class="batch"),
        planned(2, 101, 10, 1, slo_class="realtime"),
    ]
    by_class = {"realtime": 2.0, "standard": 1.0, "batch": 0.0}
    scores = [by_class[one.request.slo_class] for one in requests]
    for leap in LEAPS:
        assert entries(requests, "priority", leap, scores=scores) == [0, 2, 1]
        assert entries(requests, "slo-slack", leap) == [0, 2, 1]
        assert entries(requests, "fcfs", leap, scores=scores) == [0, 1, 2]


def test_realtime_requests_are_scheduled_before_batch_in_a_scenario() -> None:
    workload = {
        "requests": 40,
        "rate": "1000/s",
        "tenants": {"batch": {"priority": "batch"}, "realtime": {"priority": "realtime"}},
        "prompt_tokens": 100,
        "output_tokens": 50,
    }
    waits = {}
    for scheduler in ("fcfs", "priority", "slo-slack"):
        scenario = {
            "seed": 1,
            "workload": workload,
            "cluster": {"instances": 1, "max_batch_size": 1, "latency": {"model": "fixed"}},
            "policies": {"priority": "by-class", "scheduler": scheduler},
        }
        found = headway.simulate(scenario).requests
        rows = list(zip(found["tenant"], found["started_ps"], strict=True))[1:]  # the first found it empty
        waits[scheduler] = [tenant for tenant, _ in sorted(rows, key=lambda row: row[1])]
    assert waits["priority"] == waits["slo-slack"] == sorted(waits["fcfs"], reverse=True)
    assert waits["fcfs"] != waits["priority"]


@pytest.mark.parametrize("leap", LEAPS)
def test_priority_serves_the_highest_first_and_ties_by_arrival(leap: bool | str) -> None:
    requests = [planned(row, row, 10, 5) for row in range(6)]
    assert entries(requests, "priority", leap, scores=[0, 1, 3, 1, 3, 2]) == [0, 2, 4, 5, 1, 3]


@pytest.mark.parametrize("leap", LEAPS)
def test_sjf_goes_by_what_clients_allow_and_by_what_tenants_have_shown(leap: bool | str) -> None:
    requests = [
        planned(0, 0, 10, 9, tenant="long"),
        planned(1, 1, 10, 2, tenant="brief"),
        planned(2, 2, 10, 2, tenant="x", max_tokens=300),
        planned(3, 3, 10, 2, tenant="x", max_tokens=5),
        planned(4, 4, 10, 2, tenant="x"),  # nothing is known of it: 256
        # By now, long is known to say 9 and brief 2.
        planned(5, 2000, 10, 1, tenant="long"),
        planned(6, 2000, 10, 9, tenant="brief"),
        planned(7, 2001, 10, 9, tenant="brief", kind="chat"),
    ]
    # 0 ends at 870; then 3 (5), of 1 and 4 (256) the earlier, 4, 2; each takes 170
    assert entries(requests[:5], "sjf", leap) == [0, 3, 1, 4, 2]
    held = planned(0, 0, 10, 9, tenant="long"), planned(1, 1, 10, 2, tenant="brief"), planned(2, 2, 10, 30)
    later = [planned(row - 2, 1500, 10, 1, tenant=requests[row].request.tenant) for row in (5, 6)]
    chat = planned(5, 1501, 10, 1, tenant="brief", kind="chat")
    # 2 runs from 1040 on; of those that come meanwhile, brief has shown 2, long 9, brief's chats nothing
    assert entries([*held, *later, chat], "sjf", leap) == [0, 1, 2, 4, 3, 5]


@pytest.mark.parametrize("leap", LEAPS)
def test_shortest_prefill_goes_by_the_prompt(leap: bool | str) -> None:
    requests = [planned(row, row, prompt, 5) for row, prompt in enumerate((10, 40, 20, 30, 20))]
    assert entries(requests, "shortest-prefill", leap) == [0, 2, 4, 3, 1]


@pytest.mark.parametrize("leap", LEAPS)
def test_slo_slack_goes_by_when_the_first_token_is_due(leap: bool | str) -> None:
    targets = {"realtime": "100ps", "batch": "1000ps"}
    scheduler = {"name": "slo-slack", "targets": targets, "other": "300ps"}
    classes = ["batch", "batch", "standard", "realtime", "realtime", "whatever"]
    arrivals = [0, 10, 50, 200, 240, 60]
    order = sorted(range(6), key=arrivals.__getitem__)
    requests = [planned(row, arrivals[old], 10, 5, slo_class=classes[old]) for row, old in enumerate(order)]
    # due: 1000, 1010, 350, 360, 300, 340; the first is at it from 0 to 470
    assert [order[row] for row in entries(requests, scheduler, leap)] == [0, 3, 4, 2, 5, 1]


@pytest.mark.parametrize("leap", LEAPS)
def test_fair_serves_tenants_by_turns_in_tokens(leap: bool | str) -> None:
    said = [("a", 10), ("a", 10), ("a", 10), ("a", 10), ("b", 20), ("b", 20), ("c", 5), ("c", 5), ("c", 5)]
    requests = [planned(row, row, prompt, 1, tenant=tenant) for row, (tenant, prompt) in enumerate(said)]
    # While row 0 is at it, a, b and c line up, and a has its turn: a quantum of 21 pays two of 10 and row 0's output.
    # Then b's pays one of 20, c's all three of 5; a has its last, b its last.
    assert entries(requests, {"name": "fair", "quantum": 21}, leap) == [0, 1, 2, 4, 6, 7, 8, 3, 5]


@pytest.mark.parametrize("leap", LEAPS)
def test_fair_charges_what_was_generated(leap: bool | str) -> None:
    requests = [planned(0, 0, 10, 50, tenant="wordy"), planned(1, 1, 10, 1, tenant="terse")]
    requests += [planned(2 + row, 2, 10, 1, tenant=("wordy", "terse")[row % 2]) for row in range(8)]
    order = entries(requests, {"name": "fair", "quantum": 10}, leap)
    # terse had its turn before wordy came again; wordy is 50 tokens in debt, five turns
    assert order == [0, 1, 3, 5, 7, 9, 2, 4, 6, 8]


def test_of_one_tenant_fair_is_fcfs_and_so_is_priority_without_priorities() -> None:
    requests = [planned(row, 40 * row, 10 + 7 * row % 50, 1 + row % 9, group=row % 3) for row in range(40)]
    options: Json = {"blocks": 40, "batch": 5, "tokens": 32}
    plain = columns(run(requests, "fcfs", **options)[0])
    assert sum(plain["preemptions"]) > 0
    assert columns(run(requests, {"name": "fair", "quantum": 16}, **options)[0]) == plain
    assert columns(run(requests, "priority", **options)[0]) == plain


def test_slo_slack_is_priority_by_slo_deadline() -> None:
    rng = Random(2)
    classes = [rng.choice(["realtime", "standard"]) for _ in range(60)]
    requests = [
        planned(row, 400 * row, rng.randint(1, 60), rng.randint(1, 20), slo_class=slo_class, group=row % 3)
        for row, slo_class in enumerate(classes)
    ]
    due = [-float(400 * row + TARGETS[slo_class]) for row, slo_class in enumerate(classes)]
    targets = {name: f"{target}ps" for name, target in TARGETS.items()}
    options: Json = {"blocks": 40, "batch": 5, "tokens": 32, "scores": due}
    slack = columns(run(requests, {"name": "slo-slack", "targets": targets}, **options)[0])
    assert slack == columns(run(requests, {"name": "priority", "aging": 0}, **options)[0])
    assert slack != columns(run(requests, "fcfs", **options)[0])


# --- chunks and victims ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leap", LEAPS)
def test_a_limit_on_chunks_leaves_room_for_no_other_prompt(leap: bool | str) -> None:
    watched = Watched(Fixed(PREFILL, DECODE))
    scheduler = {"name": "shortest-prefill", "chunk_tokens": 16}
    requests = [planned(0, 0, 40, 2, group=1), planned(1, 0, 60, 2, group=2)]
    recorder, _ = run(requests, scheduler, leap, batch=4, latency=watched)
    assert max(size for _, chunks in watched.steps for size, _ in chunks) == 16
    assert all(len(chunks) == 1 for _, chunks in watched.steps if chunks[0:1] and chunks[0][0] == 16)
    # 16, 16, then the last 8 beside the other's first 16, ...
    assert list(recorder.started_ps) == [0, 32 * PREFILL]
    assert recorder.first_token_ps[0] == (32 + 24) * PREFILL


@pytest.mark.parametrize("leap", LEAPS)
def test_the_victim_is_the_last_in_the_scheduler_s_order(leap: bool | str) -> None:
    """Both fit with their prompts, not with their outputs; the first to come has the lower priority."""
    requests = [planned(0, 0, 16, 20, group=1), planned(1, 0, 16, 20, group=2)]
    options: Json = {"blocks": 10, "batch": 4, "caching": False}
    assert list(run(requests, "fcfs", leap, **options)[0].preemptions) == [0, 1]
    assert list(run(requests, "priority", leap, scores=[0, 1], **options)[0].preemptions) == [1, 0]
    assert list(run(requests, "fair", leap, **options)[0].preemptions) == [0, 1]


@pytest.mark.parametrize("leap", LEAPS)
def test_an_unfinished_prefill_that_matters_more_takes_a_decode_s_blocks(leap: bool | str) -> None:
    requests = [planned(0, 0, 20, 30, group=1), planned(1, 0, 20, 30, group=2), planned(2, 300, 40, 2, group=3)]
    recorder, _ = run(requests, {"name": "priority", "chunk_tokens": 8}, leap, scores=[1, 0, 2], blocks=20, batch=4)
    assert recorder.preemptions[1] > 0 and recorder.preemptions[0] == recorder.preemptions[2] == 0
    assert recorder.finished_ps[2] < recorder.finished_ps[0] < recorder.finished_ps[1]


# --- nobody starves ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "passed_by"),
    [
        ({"name": "priority", "aging": 0.5}, 40),
        ({"name": "sjf", "aging": 100}, 40),
        ({"name": "shortest-prefill", "aging": 16}, 40),
        ({"name": "slo-slack", "targets": {"realtime": "1s", "batch": "3s"}}, 40),
        ({"name": "fair", "quantum": 8}, 0),
        *(({"name": name, "aging": 0}, 398) for name in ("priority", "sjf", "shortest-prefill")),
    ],
)
def test_time_counts_so_that_nobody_is_passed_for_ever(spec: Json, passed_by: int) -> None:
    """Twenty requests a second, of which eight can be served; one of them is always the last by its key, which the
    others' make up for in two seconds. Where time does not count, it starves."""
    second = 10**12
    rare = {"max_tokens": 200, "tenant": "rare", "slo_class": "batch"}
    usual = {"max_tokens": 2, "tenant": "usual", "slo_class": "realtime"}
    requests = [planned(0, 0, 8, 2, **usual), planned(1, 1, 40, 2, **rare)]
    requests += [planned(row, row * second // 20, 8, 2, **usual) for row in range(2, 400)]
    scores = [1.0, 0.0, *[1.0] * 398]
    order = entries(requests, spec, scores=scores, latency=Fixed(second // 100, second // 20))
    assert order.index(1) - 1 == pytest.approx(passed_by, abs=2)


@pytest.mark.parametrize("spec", ["fcfs", {"name": "shortest-prefill", "aging": 0}], ids=["fcfs", "ranked"])
def test_a_queue_that_most_give_up_keeps_no_more_than_twice_what_waits(spec: Any) -> None:
    queue = registry.build("scheduler", spec, "").queue()
    tickets = [Ticket(planned(row, 0, 1 + row % 100, 1).request, 0.0, row, row) for row in range(1000)]
    for ticket in tickets:
        queue.add(ticket)
    left = tickets[50::100] if spec == "fcfs" else sorted(tickets[::100], key=lambda ticket: ticket.rank)
    for ticket in reversed(tickets):
        if ticket not in left:
            queue.remove(ticket)
    assert len(queue if spec == "fcfs" else queue.heap) <= 2 * len(left) + 20
    for ticket in left:
        assert queue.first() is ticket
        queue.take()


PASSED_BY = {  # ten a second come that rank before the first of them, for so long as its rank takes to make up for
    "fcfs": 0,
    "priority": 10 * 1 / 0.01,
    "sjf": 10 * 200 / 10,
    "shortest-prefill": 10 * 1000 / 100,
    "weighted-scheduling": 10 * 1000 / 100,
    "slo-slack": 10 * (60 - 0.5),
    "shortest-expected": 0,  # without an estimator, as here, all are expected alike
    "fair": 1024 // 10,  # what the others' turns cost, 8 tokens in and 2 out
}


@pytest.mark.parametrize("name", registry.names("scheduler"))
def test_at_its_defaults_a_scheduler_serves_the_lowest_under_endless_load_of_higher_rank(name: str) -> None:
    """Ten requests a second, of which eight can be served. All of them rank before the one by every scheduler's key:
    it is of a lower priority and class, may generate more, and has a longer prompt."""
    second = 10**12
    rare = {"max_tokens": 202, "tenant": "rare", "slo_class": "batch"}
    usual = {"max_tokens": 2, "tenant": "usual", "slo_class": "realtime"}
    requests = [planned(0, 0, 8, 2, **usual), planned(1, 1, 1008, 2, **rare)]
    requests += [planned(row, (row - 1) * second // 10, 8, 2, **usual) for row in range(2, 1100)]
    scores = [1.0, 0.0, *[1.0] * 1098]
    order = entries(requests, name, scores=scores, caching=False, latency=Fixed(second // 100, second // 20))
    assert order.index(1) - 1 <= PASSED_BY[name] + 2
    assert name in ("fcfs", "fair", "shortest-expected") or order.index(1) - 1 >= PASSED_BY[name] - 2


@pytest.mark.parametrize("name", registry.names("scheduler"))
def test_at_its_defaults_a_scheduler_lets_the_lowest_end_though_it_yields_its_blocks_to_others(name: str) -> None:
    """The one needs most of the memory, and those that come while it runs take it away from it, while they rank before
    it; from then on it is not the one that yields."""
    second = 10**12
    rare = {"max_tokens": 262, "tenant": "rare", "slo_class": "batch"}
    usual = {"max_tokens": 12, "tenant": "usual", "slo_class": "realtime"}
    requests = [planned(0, 0, 8, 12, group=1, **usual), planned(1, 1, 40, 60, group=2, **rare)]
    requests += [planned(row, row * second // 10, 8, 12, group=row, **usual) for row in range(2, 700)]
    scores = [0.2, 0.0, *[0.2] * 698]
    latency = Fixed(second // 1000, second // 50)
    recorder, _ = run(requests, name, scores=scores, batch=3, blocks=27, latency=latency)
    ranked_s = {"priority": 0.2 / 0.01, "sjf": 250 / 10, "slo-slack": 60 - 0.5}.get(name, 0.0)
    assert recorder.outcome[1] == COMPLETED
    assert ranked_s <= recorder.finished_ps[1] / second < ranked_s + 2
    assert recorder.preemptions[1] >= ranked_s


# --- exact -------------------------------------------------------------------------------------------------------


@st.composite
def specs(draw: st.DrawFn, name: str) -> Json:
    spec: Json = {"name": name}
    if name == "fcfs":
        return spec
    spec["chunk_tokens"] = draw(st.sampled_from([None, None, 1, 3, 8, 16]))
    if name == "fair":
        spec["quantum"] = draw(st.sampled_from([1, 10, 64, 1000]))
    elif name == "slo-slack":
        spec["targets"] = {one: f"{target}ps" for one, target in TARGETS.items()}
        spec["other"] = f"{OTHER}ps"
    else:
        spec["aging"] = draw(st.sampled_from([0, 1e6, 1e3]))  # a picosecond is nothing to speak of
    return spec


@st.composite
def loads(draw: st.DrawFn, grid: int) -> tuple[list[Planned], list[float]]:
    requests, at = [], 0
    waits = draw(st.booleans())
    for row in range(draw(st.integers(1, 16))):
        at += draw(st.sampled_from([0, 0, 0, grid, 2 * grid, 7, 20 * grid]))
        said = {
            "tenant": draw(st.sampled_from(["a", "a", "b", "c"])),
            "slo_class": draw(st.sampled_from(["realtime", "standard", "batch"])),
            "max_tokens": draw(st.sampled_from([None, None, 30, 60])),
            "kind": draw(st.sampled_from(["completion", "chat"])),
        }
        if waits:
            wait = draw(st.none() | st.sampled_from([0, 1, 7, grid, 2 * grid, 5 * grid, 13 * grid + 3, 40 * grid]))
            said["deadline_ps"] = None if wait is None else at + wait
        prompt, output = draw(st.integers(1, 80)), draw(st.integers(1, 20))
        requests.append(planned(row, at, prompt, output, group=draw(st.integers(0, 2)), **said))
    return requests, [float(draw(st.integers(0, 3))) for _ in requests]


@st.composite
def options(draw: st.DrawFn, requests: list[Planned], latency: LatencyModel) -> Json:
    size = draw(st.sampled_from([1, 4, 16]))
    longest = max(-(-(one.request.prompt_tokens + one.output_tokens - 1) // size) for one in requests)
    return {
        "blocks": longest + draw(st.sampled_from([0, 1, longest // 2, 3 * longest])),
        "block_tokens": size,
        "batch": draw(st.sampled_from([1, 2, 3, 5, 8])),
        "tokens": draw(st.one_of(st.integers(1, 64), st.just(64))),
        "instances": draw(st.sampled_from([1, 1, 2])),
        "caching": draw(st.sampled_from([True, True, False])),
        "latency": latency,
    }


@sized(quick=14, full=80)
@pytest.mark.parametrize("name", NAMES)
def test_the_engine_gives_what_the_reference_gives_under_every_scheduler(name: str, examples: int) -> None:
    search(examples, partial(check_against_reference, name), st.data())


def check_against_reference(name: str, data: st.DataObject) -> None:
    latency = data.draw(latencies())
    requests, scores = data.draw(loads(period(latency)))
    requests = [patient(one) for one in requests]  # the naive simulator's clients never give up
    setup = data.draw(options(requests, latency))
    spec = data.draw(specs(name))
    right = expected(
        simulate(
            [],
            setup["instances"],
            setup["blocks"],
            setup["block_tokens"],
            setup["tokens"],
            setup["batch"],
            latency,
            prefix_caching=setup["caching"],
            traffic=OpenLoop(requests),
            scheduler=lambda: naive(spec),
            priority=lambda request: scores[request.id],
        )
    )
    for leap in LEAPS:
        got = found(*run(requests, spec, leap, scores=scores, **setup))
        wrong = {what: (got[what], value) for what, value in right.items() if got[what] != value}
        assert not wrong, f"leap {leap}: (engine, reference) differ in {wrong}"


def patient(one: Planned) -> Planned:
    fields = {name: getattr(one.request, name) for name in Request.__struct_fields__}
    return Planned(Request(**{**fields, "deadline_ps": None}), one.output_tokens, one.output_key)


@sized(quick=14, full=80)
@pytest.mark.parametrize("name", NAMES)
def test_the_leap_equals_the_walk_under_every_scheduler_with_deadlines(name: str, examples: int) -> None:
    """Clients give up, admission puts off, KV is tight, chunks are limited; and no step is ever larger than it may."""
    search(examples, partial(check_modes, name), st.data())


def check_modes(name: str, data: st.DataObject) -> None:
    latency = data.draw(latencies())
    requests, scores = data.draw(loads(period(latency)))
    setup = data.draw(options(requests, latency))
    spec = data.draw(specs(name))
    put_off = data.draw(st.sampled_from([0, 0, 1, period(latency), 250]))
    seen = []
    for leap in LEAPS:
        watched = setup["latency"] = Watched(latency)
        recorder, stats = run(requests, spec, leap, scores=scores, put_off=put_off, **setup)
        seen.append(found(recorder, stats) | columns(recorder))
        for decodes, chunks in watched.steps:
            assert decodes + len(chunks) <= setup["batch"]
            assert decodes + sum(size for size, _ in chunks) <= setup["tokens"]
            assert all(size <= (spec.get("chunk_tokens") or size) for size, _ in chunks)
        assert all(outcome in (COMPLETED, 2) for outcome in recorder.outcome)
    assert seen[0] == seen[1] == seen[2]


# --- one's own ---------------------------------------------------------------------------------------------------


class LongestQueueFirst:
    """Serves the tenant with the most waiting; whose arrival makes that so need not be the one that enters."""

    def queue(self) -> Tenants:
        return Tenants()


class Tenants:
    def __init__(self) -> None:
        self.waiting: dict[str, deque[Ticket]] = {}

    def add(self, ticket: Ticket) -> None:
        self.waiting.setdefault(ticket.request.tenant, deque()).append(ticket)

    def put_back(self, ticket: Ticket) -> None:
        self.waiting[ticket.request.tenant].appendleft(ticket)

    def first(self) -> Ticket:
        longest = max(self.waiting.values(), key=len)
        return longest[0]

    def take(self) -> None:
        max(self.waiting.values(), key=len).popleft()

    def remove(self, ticket: Ticket) -> None:
        self.waiting[ticket.request.tenant].remove(ticket)

    def order(self, running: list[Ticket]) -> list[Ticket]:
        return sorted(running, key=lambda ticket: (ticket.request.tenant, ticket.number))


@sized(quick=14, full=80)
def test_the_leap_equals_the_walk_under_a_scheduler_of_one_s_own(examples: int) -> None:
    def check(data: st.DataObject) -> None:
        latency = data.draw(latencies())
        requests, scores = data.draw(loads(period(latency)))
        setup = data.draw(options(requests, latency))
        seen = [found(*run(requests, LongestQueueFirst(), leap, scores=scores, **setup)) for leap in LEAPS]
        assert seen[0] == seen[1] == seen[2]

    search(examples, check, st.data())


SCENARIO: Json = {
    "seed": 1,
    "workload": {"requests": 30, "rate": "1000/s", "prompt_tokens": 100, "output_tokens": 50},
    "cluster": {
        "instances": 2,
        "max_batch_size": 4,
        "kv": {"gpu_blocks": 16},
        "latency": {"model": "fixed"},
    },
}


def test_a_scheduler_of_one_s_own_is_an_object_or_a_class_or_in_a_file(tmp_path: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from test_schedulers import LongestQueueFirst\n")
    results = [
        headway.simulate(SCENARIO, scheduler=given_).requests
        for given_ in (LongestQueueFirst, LongestQueueFirst(), f"{file}:LongestQueueFirst")
    ]
    assert sum(results[0]["preemptions"]) > 0
    assert results[0]["started_ps"] == results[1]["started_ps"] == results[2]["started_ps"]


class Wrong(Tenants):
    def __init__(self, **answers: Any) -> None:
        super().__init__()
        for method, answer in answers.items():
            setattr(self, method, lambda *_, answer=answer: answer)


def test_what_a_scheduler_must_not_answer_is_told() -> None:
    class Mine:
        def __init__(self, **answers: Any) -> None:
            self.answers = answers

        def queue(self) -> Wrong:
            return Wrong(**self.answers)

    place = r", at request 0 on instance-0\.$"
    for answers, sentence in (
        ({"first": None}, r"^policies.scheduler: Wrong.first must return a ticket that waits .*, got None" + place),
        ({"first": 7}, r"first must return a ticket that waits at the instance, got 7" + place),
        ({"first": []}, r"first must return a ticket that waits at the instance, got \[\]" + place),
        ({"order": []}, r"Wrong.order must return the running requests, each once, got \[\]" + place),
        ({"chunk": 0}, r"Wrong.chunk must return a number of tokens, at least 1, or None, got 0" + place),
        ({"chunk": 2.5}, r"got 2\.5" + place),
    ):
        with pytest.raises(HeadwayError, match=sentence):
            headway.simulate(SCENARIO, scheduler=Mine(**answers))


def test_a_scheduler_that_makes_no_queue_is_told() -> None:
    class Empty:
        def queue(self) -> list[int]:
            return []

    class Asking:
        def queue(self, instance: int) -> list[int]:
            return []

    class Not:
        pass

    with pytest.raises(HeadwayError, match=r"^policies.scheduler: Empty.queue must return an object with the methods "):
        headway.simulate(SCENARIO, scheduler=Empty())
    with pytest.raises(HeadwayError, match=r"^scheduler: Asking.queue must accept 0 arguments after self"):
        headway.simulate(SCENARIO, scheduler=Asking())
    with pytest.raises(HeadwayError, match=r"^scheduler: expected .* with the method 'queue'"):
        headway.simulate(SCENARIO, scheduler=Not())


def test_one_queue_for_two_instances_is_told() -> None:
    class Shared(Tenants):
        def queue(self) -> Shared:
            return self

    with pytest.raises(HeadwayError, match="must return a ticket that waits at the instance"):
        headway.simulate(SCENARIO, scheduler=Shared())


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"name": "slo-slack", "targets": {"realtime": "soon"}}, "targets.realtime: 'soon' is not a duration"),
        ({"name": "slo-slack", "other": "0s"}, "slo-slack.other: must be greater than zero"),
        ({"name": "fair", "quantum": 0}, "quantum: must lie between 1 and"),
        ({"name": "priority", "chunk_tokens": 0}, "chunk_tokens: must lie between 1 and"),
        ({"name": "sjf", "aging": -1}, "aging: must lie between 0 and"),
        ({"name": "fcfs", "chunk_tokens": 5}, "'fcfs' has no such parameter"),
        ("sfj", "no scheduler is called 'sfj'"),
    ],
)
def test_a_mistake_in_a_scheduler_s_parameters_is_told(spec: Any, sentence: str) -> None:
    with pytest.raises(HeadwayError, match=sentence):
        headway.simulate(SCENARIO, scheduler=spec)
