"""How long clients wait: the key `timeout`, at the top, of a tenant, with a trace, in sessions and in closed loops."""

from __future__ import annotations

from typing import Any

import pytest

import headway
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND
from headway.workload.traffic import Planned

PLAIN = {"requests": 20, "rate": "10/s", "prompt_tokens": 50, "output_tokens": 5}


def plan_all(workload: dict[str, Any]) -> list[Planned]:
    scenario = headway.Scenario.load({"workload": workload, "cluster": {"instances": 1}})
    return list(scenario.workload.plan(3))


def patience(workload: dict[str, Any]) -> set[int | None]:
    """How long the clients of a workload wait, in milliseconds."""
    return {
        None if item.request.deadline_ps is None else (item.request.deadline_ps - item.request.arrival_ps) // 10**9
        for item in plan_all(workload)
    }


def test_clients_wait_for_ever_unless_it_is_said():
    assert patience(PLAIN) == {None}
    assert patience({**PLAIN, "timeout": "1500ms"}) == {1500}
    assert patience({**PLAIN, "timeout": "2s", "tenants": {"a": {}, "b": {"timeout": "1s"}}}) == {2000, 1000}
    assert patience({**PLAIN, "kind": "chat", "timeout": "3s"}) == {3000}
    closed = {"requests": 20, "closed_loop": {"concurrency": 2}, "timeout": "4s"}
    assert patience(closed) == {4000}


def test_nothing_else_of_a_workload_changes_with_it():
    for workload in (PLAIN, {**PLAIN, "kind": "chat"}):
        without, timed = plan_all(workload), plan_all({**workload, "timeout": "1s"})
        for item, other in zip(without, timed, strict=True):
            assert (item.output_tokens, item.output_key) == (other.output_tokens, other.output_key)
            first, second = item.request, other.request
            same = (
                "id",
                "arrival_ps",
                "path",
                "tenant",
                "slo_class",
                "session",
                "turn",
                "shared_prefix_tokens",
                "kind",
            )
            assert [getattr(first, name) for name in same] == [getattr(second, name) for name in same]


@pytest.mark.parametrize("more", [{}, {"retry": {"max": 1}}, {"trace": {"replay": "think"}}])
def test_it_goes_with_a_trace(tmp_path, more):
    file = tmp_path / "trace.jsonl"
    lines = [
        f'{{"timestamp": {row * 100}, "input_length": 32, "output_length": 4, "hash_ids": [{row % 2}]}}'
        for row in range(6)
    ]
    file.write_text("\n".join(lines) + "\n")
    trace = {"path": str(file), "block_tokens": 32, **more.get("trace", {})}
    rest = {key: value for key, value in more.items() if key != "trace"}
    assert patience({"trace": trace, **rest}) == {None}
    assert patience({"trace": trace, "timeout": "700ms", **rest}) == {700}


def test_it_is_written_out_and_read_again():
    workload = {**PLAIN, "timeout": "1500ms", "tenants": {"a": {}, "b": {"timeout": "1m"}}}
    resolved = headway.Scenario.load({"workload": workload}).resolved()
    tenants = resolved["workload"]["tenants"]
    assert (tenants["a"]["timeout"], tenants["b"]["timeout"]) == ("1500ms", "60s")
    assert headway.Scenario.load(resolved).resolved() == resolved
    assert "timeout" not in headway.Scenario.load({"workload": PLAIN}).resolved()["workload"]


@pytest.mark.parametrize(
    ("workload", "problem"),
    [
        ({**PLAIN, "timeout": "0s"}, r"^workload\.timeout: must be greater than zero, got '0s'\."),
        ({**PLAIN, "timeout": 30}, r"^workload\.timeout: 30 is not a duration; write it with its unit"),
        ({**PLAIN, "tenants": {"a": {"timeout": "x"}}}, r"^workload\.tenants\.a\.timeout: 'x' is not a duration"),
        ({"trace": {"path": "x.csv"}, "timeout": "-1s"}, r"^workload\.timeout: '-1s' is not a duration"),
    ],
)
def test_mistakes_are_told_at_their_place(workload, problem):
    with pytest.raises(HeadwayError, match=problem):
        headway.Scenario.load({"workload": workload})


@pytest.mark.parametrize("leap", [True, False, "random-cuts"])
def test_who_has_waited_so_long_is_timed_out_and_tries_again(leap):
    scenario = {
        "workload": {**PLAIN, "rate": "1000/s", "timeout": "50ms", "retry": {"max": 1, "backoff": "10ms"}},
        "cluster": {"instances": 1, "max_batch_size": 2, "latency": {"model": "fixed"}},
        "leap": leap,
    }
    result = headway.simulate(scenario)
    counts, columns = result.summary()["requests"], result.requests
    assert counts["timed_out"] > 0 and counts["retried"] > 0
    assert counts["completed"] + counts["timed_out"] == counts["arrived"] == 20 + counts["retried"]
    for outcome, came, ended in zip(*(columns[name] for name in ("outcome", "arrival_ps", "finished_ps")), strict=True):
        assert outcome == "timed_out" or ended - came <= PS_PER_SECOND // 20
        assert outcome == "completed" or ended - came >= PS_PER_SECOND // 20
