"""Events that a policy must name: arrivals, delays, rejections, preemptions, moves, transfers, runs of equal steps."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from headway import (
    ADMIT,
    Arrived,
    BatchRan,
    BlocksMoved,
    Delay,
    Delayed,
    Finished,
    Preempted,
    Reject,
    Route,
    Routed,
    simulate,
)
from headway.errors import HeadwayError
from headway.policies.parts import combine_kinds, observer
from headway.views.events import FURTHER

LEAPS: tuple[bool | str, ...] = (True, False, "random-cuts")
LOAD = {
    "requests": 60,
    "rate": "40/s",
    "prompt_tokens": {"dist": "uniform", "min": 20, "max": 400},
    "output_tokens": {"dist": "uniform", "min": 2, "max": 120},
    "prefix": {"groups": 3, "tokens": 64},
}
TIGHT = {"instances": 2, "kv": {"gpu_blocks": 60}, "max_batch_tokens": 128}
CPU = {"cpu": {"blocks": 400, "bandwidth": "1GB/s", "latency": "1ms"}}
SPLIT = {
    "architecture": "disaggregated",
    "prefill": {"instances": 2},
    "decode": {"instances": 2},
    "transfer": {"latency": "2ms", "bandwidth": "2GB/s"},
    "kv": {"gpu_blocks": 120},
}
SCENARIOS: dict[str, dict[str, Any]] = {
    "tight": {"cluster": TIGHT},
    "stores": {"cluster": {**TIGHT, "kv": {"gpu_blocks": 60, "tiers": CPU}}},
    "swap": {"cluster": {**TIGHT, "kv": {"gpu_blocks": 60, "tiers": CPU, "preemption": "swap"}}},
    "split": {"cluster": SPLIT},
    "polled": {"cluster": TIGHT, "signals": {"poll_interval": "50ms"}, "routers": {"count": 2}},
    "crash": {"cluster": TIGHT, "faults": [{"at": "300ms", "instance": "instance-0", "kind": "crash"}]},
}
SEEN = ("inflight", "queued", "running", "kv_used")


class Listener:
    """Routes to the least loaded instance, and remembers all events with what the views show."""

    observes = FURTHER

    def bind(self, context: Any) -> None:
        self.instances = context.instances

    def admit(self, request: Any, cluster: Any) -> Any:
        if request.id % 9 == 4 and cluster.now_ps == request.arrival_ps:
            return Delay(7_000_000_001)
        return Reject("ninth") if request.id % 9 == 8 else ADMIT

    def route(self, request: Any, cluster: Any) -> Any:
        return Route(min(cluster.instances, key=lambda view: (view.inflight, view.index)).id)

    def observe(self, event: Any) -> None:
        values = {name: getattr(event, name) for name in event.__struct_fields__}
        for name, value in values.items():
            if name in ("instance", "prefill"):
                values[name] = None if value is None else value.id
            if name == "request":
                values[name] = None if value is None else value.id
        shown = [tuple(getattr(view, name) for name in SEEN) for view in self.instances]
        HEARD.append((type(event).__name__, values, shown))


HEARD: list[tuple[str, dict[str, Any], Any]] = []


def hear(case: str, leap: bool | str = True, **policies: Any) -> list[tuple[str, dict[str, Any], Any]]:
    HEARD.clear()
    policies = policies or {"admission": Listener, "routing": "round-robin"}
    result = simulate({"workload": LOAD, "leap": leap, **SCENARIOS[case]}, **policies, progress=False)
    assert result.summary()["requests"]["arrived"] == 60
    return [*HEARD]


@pytest.mark.parametrize("case", SCENARIOS)
def test_what_is_heard_does_not_depend_on_how_runs_are_cut(case: str) -> None:
    leaps, walks, cuts = (hear(case, leap) for leap in LEAPS)
    assert leaps == walks == cuts
    times = [values["at_ps"] for _, values, _ in leaps]
    if case != "polled":  # each of two routers hears its own events
        assert times == sorted(times)


def kinds(case: str) -> Counter[str]:
    return Counter(name for name, _, _ in hear(case))


def test_arrivals_delays_and_rejections_are_heard_once() -> None:
    heard = hear("tight")
    arrived = [values["request"] for name, values, _ in heard if name == "Arrived"]
    assert arrived == [*range(60)]
    delayed = [values for name, values, _ in heard if name == "Delayed"]
    assert [values["request"] for values in delayed] == [number for number in range(60) if number % 9 == 4]
    assert {values["until_ps"] - values["at_ps"] for values in delayed} == {7_000_000_001}
    rejected = [
        (values["request"], values["reason"], values["outcome"]) for name, values, _ in heard if name == "Rejected"
    ]
    assert rejected == [(number, "ninth", "rejected") for number in range(60) if number % 9 == 8]


def test_preemptions_moves_and_transfers_are_heard() -> None:
    for case, names in {
        "tight": ["Preempted"],
        "stores": ["BlocksMoved"],
        "swap": ["BlocksMoved", "Preempted"],
        "split": ["TransferBegan", "TransferEnded"],
    }.items():
        counts = kinds(case)
        assert all(counts[name] for name in names), (case, counts)
    moves = {values["kind"] for name, values, _ in hear("swap") if name == "BlocksMoved"}
    assert {"swap_out", "swap_in"} <= moves
    counts = kinds("split")
    assert counts["TransferBegan"] == counts["TransferEnded"]


def test_the_number_of_preemptions_and_transfers_is_that_of_the_results() -> None:
    HEARD.clear()
    result = simulate({"workload": LOAD, **SCENARIOS["tight"]}, admission=Listener, progress=False)
    assert sum(result.requests["preemptions"]) == sum(name == "Preempted" for name, _, _ in HEARD) > 0
    HEARD.clear()
    result = simulate({"workload": LOAD, **SCENARIOS["split"]}, admission=Listener, progress=False)
    began = {values["request"]: values["at_ps"] for name, values, _ in HEARD if name == "TransferBegan"}
    ended = {values["request"]: values["at_ps"] for name, values, _ in HEARD if name == "TransferEnded"}
    rows = {row: at for row, at in enumerate(result.requests["transfer_ps"]) if at >= 0}
    assert began == rows and all(result.requests["transferred_ps"][row] == at for row, at in ended.items())


def test_runs_of_equal_steps_are_as_long_as_possible_and_leave_no_step_out() -> None:
    heard = hear("tight")
    for index in range(2):
        runs = [values for name, values, _ in heard if name == "BatchRan" and values["instance"] == f"instance-{index}"]
        assert runs and any(run["steps"] > 1 for run in runs)
        assert [run["first_step"] for run in runs] == [
            sum(run["steps"] for run in runs[:place]) for place in range(len(runs))
        ]
        for before, after in pairwise(runs):
            assert before["at_ps"] <= after["start_ps"] < after["at_ps"]
        assert all(run["decodes"] or run["prefill_tokens"] for run in runs)


def test_one_request_alone_makes_a_run_of_its_prefill_and_a_run_of_its_decodes() -> None:
    alone = {
        "workload": {"requests": 1, "rate": "1/s", "prompt_tokens": 100, "output_tokens": 9},
        "cluster": {"instances": 1},
    }
    HEARD.clear()
    simulate(alone, admission=Listener, progress=False)
    runs = [values for name, values, _ in HEARD if name == "BatchRan"]
    assert [(run["first_step"], run["steps"], run["decodes"], run["prefill_tokens"]) for run in runs] == [
        (0, 1, 0, 100),
        (1, 8, 1, 0),
    ]
    assert runs[0]["at_ps"] == runs[1]["start_ps"]


def test_events_that_no_policy_names_are_not_created() -> None:
    class Plain(Listener):
        observes = ()

    HEARD.clear()
    simulate({"workload": LOAD, **SCENARIOS["swap"]}, admission=Plain, progress=False)
    assert {name for name, _, _ in HEARD} == {"Routed", "FirstToken", "Finished"}

    class Some(Listener):
        observes = (Arrived, BatchRan)

    HEARD.clear()
    simulate({"workload": LOAD, **SCENARIOS["swap"]}, admission=Some, progress=False)
    assert {name for name, _, _ in HEARD} == {"Routed", "FirstToken", "Finished", "Arrived", "BatchRan"}


def test_parts_of_a_policy_hear_what_they_name() -> None:
    class Hears:
        def __init__(self, *kinds: type) -> None:
            self.observes, self.heard = kinds, []

        def observe(self, event: Any) -> None:
            self.heard.append(type(event))

        def score(self, request: Any, candidates: Any, cluster: Any) -> list[float]:
            return [0.5 for _ in candidates]

        def bind(self, context: Any) -> None:
            pass

    first, second = Hears(Arrived, Preempted), Hears(Delayed, BlocksMoved)
    assert combine_kinds([first, second]) == (Arrived, Preempted, Delayed, BlocksMoved)
    observe = observer([first, second])
    assert observe is not None
    request = object()
    for event in (Arrived(0, request), Delayed(0, request, 1), Finished(0, request, None, "completed", 1)):  # type: ignore[arg-type]
        observe(event)  # type: ignore[arg-type]
    assert first.heard == [Arrived, Finished] and second.heard == [Delayed, Finished]


def test_a_wrong_name_is_an_error() -> None:
    class Wrong(Listener):
        observes = (Routed,)

    with pytest.raises(HeadwayError, match=r"Wrong\.observes must be a tuple of these classes: Arrived, "):
        simulate({"workload": LOAD, **SCENARIOS["tight"]}, admission=Wrong, progress=False)
