"""Adapters in the slots of an instance: loads that make a step longer, and a queue whose first waits for a slot."""

from __future__ import annotations

from typing import Any

import pytest

import headway
from headway import hashing
from headway.errors import HeadwayError, InvariantError
from headway.experiment.run import prepare, run_facts
from headway.sim.adapters import Adapters
from headway.types import Path, Request
from headway.workload.traffic import OpenLoop, Planned

Json = dict[str, Any]
MS = 10**9
# A step takes 1 ms, whatever is in it.
STEP = {"model": "linear", "step": "1ms"} | dict.fromkeys(
    ("prefill_token", "prefill_pair", "sequence", "context_token"), "0s"
)
BY_CLASS = {"priority": "by-class", "scheduler": "priority"}
Row = tuple[float, str | None, int]  # when it comes in ms, its adapter, its output tokens


def planned(number: int, row: Row, timeout: float | None, slo_class: str) -> Planned:
    at, adapter, tokens = row
    arrival = int(at * MS)
    deadline = None if timeout is None else arrival + int(timeout * MS)
    path = Path((hashing.key(hashing.PROMPT, number),), (4,))
    request = Request(number, arrival, 4, path, slo_class=slo_class, deadline_ps=deadline, adapter=adapter)
    return Planned(request, tokens, hashing.key(hashing.OUTPUT, number))


def run(
    *rows: Row,
    slots: int | None = 1,
    timeouts: dict[int, float] | None = None,
    classes: dict[int, str] | None = None,
    policies: Json | None = None,
) -> headway.Result:
    """One instance with 5 ms a load; timeouts and classes by request. The result must be the same however it is
    computed."""
    cluster: Json = {"instances": 1, "kv": {"gpu_blocks": 1000, "block_tokens": 4}, "latency": STEP}
    if slots is not None:
        cluster["adapters"] = {"slots": slots, "load_time": "5ms"}
    given = {"workload": {"requests": 1, "rate": "1/s"}, "cluster": cluster, "policies": policies or {}}
    found = []
    for leap in (True, False, "random-cuts"):
        prepared = prepare(headway.Scenario.load({**given, "leap": leap}))
        simulation = prepared.simulation()
        recorder = simulation.run(
            OpenLoop(
                planned(number, row, (timeouts or {}).get(number), (classes or {}).get(number, "standard"))
                for number, row in enumerate(rows)
            )
        )
        facts = run_facts(prepared.scenario, simulation)
        found.append(headway.Result.of(prepared.resolved, recorder, simulation.cluster.stats, facts))
    assert found[0].summary() == found[1].summary() == found[2].summary()
    assert dict(found[0].requests) == dict(found[1].requests) == dict(found[2].requests)
    return found[0]


def times(result: headway.Result, *names: str) -> list[tuple[float | None, ...]]:
    """In ms, None where it never came."""
    columns = [[None if at < 0 else at / MS for at in result.requests[f"{name}_ps"]] for name in names]
    return list(zip(*columns, strict=True))


def test_a_load_makes_one_step_longer_and_the_first_in_the_queue_waits_for_a_slot() -> None:
    """The first enters at 0 with its load: its tokens come at 6, 7, 8 and 9. The second, without an adapter, enters at
    6. The third wants another adapter and waits until 9, though there is room; the fourth could use the one that is
    loaded, but nobody passes the third. At 9 the third loads, for all who run: its token comes at 15. Then the fourth
    loads anew, and the second has had its tokens at 7, 8, 9, 15, 21 and 22."""
    result = run((0, "a", 4), (5, None, 6), (6, "b", 1), (7, "a", 1))
    assert times(result, "started", "first_token", "finished") == [(0, 6, 9), (6, 7, 22), (9, 15, 15), (15, 21, 21)]
    summary = result.summary()
    assert summary["adapters"] == {"loads": 3, "load_s": 0.015, "requests": 3}
    assert summary["instances"][0]["adapter_loads"] == 3
    assert result.requests["adapter"] == ["a", "", "b", "a"]


def test_of_idle_adapters_the_one_goes_whose_last_request_entered_longest_ago() -> None:
    rows = [(20.0 * number, name, 1) for number, name in enumerate(("a", "b", "a", "c", "a", "b"))]
    result = run(*rows, slots=2)
    # a and b load, a is there, c takes the slot of b, a is there, b takes that of c
    assert times(result, "first_token") == [(6,), (26,), (41,), (66,), (81,), (106,)]


def test_adapters_of_requests_that_enter_together_are_loaded_one_after_the_other() -> None:
    result = run((0, "a", 2), (0, "b", 2), (0, "a", 2), slots=2)
    assert times(result, "started", "first_token", "finished") == [(0, 11, 12)] * 3
    assert result.summary()["adapters"]["loads"] == 2


def test_without_the_key_adapters_cost_nothing_and_the_summary_is_silent() -> None:
    result = run((0, "a", 2), (0, "b", 2), slots=None)
    assert times(result, "first_token", "finished") == [(1, 2)] * 2
    assert "adapters" not in result.summary() and "adapter_loads" not in result.summary()["instances"][0]


def test_the_first_in_the_queue_enters_at_the_boundary_at_which_the_client_that_kept_it_waiting_has_gone() -> None:
    result = run((0, "a", 100), (2, "b", 3), (30, None, 1), timeouts={0: 30.4})
    assert result.requests["outcome"] == ["timed_out", "completed", "completed"]
    assert times(result, "started", "finished") == [(0, 31), (31, 39), (31, 37)]


def test_once_the_first_in_the_queue_gives_up_those_behind_it_may_enter() -> None:
    result = run((0, "a", 100), (2, "b", 3), (3, "a", 3), (4, "c", 1), timeouts={1: 18.5})
    assert result.requests["outcome"] == ["completed", "timed_out", "completed", "completed"]
    assert times(result, "started", "finished") == [(0, 105), (None, 20.5), (21, 24), (105, 111)]


def test_one_that_matters_more_passes_the_one_that_waits_for_a_slot() -> None:
    """The third goes before the second and finds its adapter there; the fourth then is first and waits. The second has
    its turn behind the fourth, whose adapter must be idle first."""
    rows = ((0, "a", 20), (2, "b", 1), (8.5, "a", 2), (10, "c", 3))
    classes = {1: "batch", 2: "realtime", 3: "realtime"}
    result = run(*rows, classes=classes, policies=BY_CLASS)
    assert times(result, "started", "finished") == [(0, 25), (33, 39), (9, 11), (25, 33)]


def test_the_affinity_scorer_loads_less_often_than_round_robin() -> None:
    given = {
        "workload": {"requests": 300, "rate": "60/s", "adapters": list("abcdef")},
        "cluster": {"instances": 4, "adapters": {"slots": 2, "load_time": "50ms"}},
    }
    affine = {"name": "weighted", "scorers": {"adapter-affinity": 2, "queue-depth": 1}}
    loads = [
        headway.simulate(given, routing=routing).summary()["adapters"]["loads"] for routing in ("round-robin", affine)
    ]
    assert loads[1] < loads[0] / 10


def test_slots_are_counted() -> None:
    adapters = Adapters(2, 7)
    assert adapters.enter("a") and adapters.enter("b") and not adapters.enter("a")
    assert adapters.names() == ("a", "b") and not adapters.has_room("c") and adapters.take_loading() == 14
    adapters.leave("a")
    assert not adapters.has_room("c")
    adapters.leave("b")
    assert adapters.has_room("c") and adapters.enter("c")
    assert adapters.names() == ("a", "c") and adapters.take_loading() == 7
    adapters.check(["a", "c"])
    with pytest.raises(InvariantError):
        adapters.check(["a"])


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"slots": 0, "load_time": "1s"}, r"^cluster\.adapters\.slots: "),
        ({"slots": 1, "load_time": 50}, r"^cluster\.adapters\.load_time: 50 is not a duration"),
        ({"slots": 1}, r"^cluster\.adapters: 'load_time' is missing"),
        ({"slots": 1, "load_time": "1s", "slot": 1}, r"^cluster\.adapters\.slot: "),
        (4, r"^cluster\.adapters: "),
    ],
)
def test_a_mistake_in_the_section_is_told_at_its_place(section: Any, message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        headway.Scenario.load({"workload": {"requests": 1, "rate": "1/s"}, "cluster": {"adapters": section}})


def test_deployments_have_the_clusters_slots_unless_they_say_otherwise() -> None:
    own, none = {"slots": 1, "load_time": "1ms"}, None
    deployments = {
        "x": {"instances": 1},
        "y": {"instances": 1, "adapters": own},
        "z": {"instances": 1, "adapters": none},
    }
    cluster = {"adapters": {"slots": 2, "load_time": "20ms"}, "deployments": deployments}
    loaded = headway.Scenario.load({"workload": {"requests": 1, "rate": "1/s"}, "cluster": cluster})
    for scenario in (loaded, headway.Scenario.load(loaded.resolved())):
        engines = prepare(scenario).setup.engines
        assert [engine.view.adapter_slots for engine in engines] == [2, 1, None]
        assert [engine.adapter_load_ps for engine in engines] == [20 * MS, MS, 0]
