"""Forks of one run have the same outcomes as runs from the start."""

from __future__ import annotations

import os
from typing import Any

import pytest

import headway
from headway.errors import HeadwayError
from headway.experiment import branches
from headway.experiment.branches import Choice, forced_run, forced_runs
from headway.experiment.counterfactual import others

BY = "latency.e2e.mean"
PREFIXES = {
    "rate": "10/s",
    "requests": 120,
    "prompt_tokens": 1300,
    "output_tokens": 20,
    "prefix": {"groups": 12, "tokens": 1200},
}
CHAT = {"kind": "chat", "rate": "2/s", "requests": 60, "prompt_tokens": 300, "output_tokens": 30}
APART = {"architecture": "disaggregated", "prefill": {"instances": 2}, "decode": {"instances": 2}}
CRASH = [{"at": "3s", "instance": "instance-1", "kind": "crash", "duration": "2s"}]
RUNS: dict[str, dict[str, Any]] = {
    "prefixes": {"workload": PREFIXES, "cluster": {"instances": 3}, "policies": {"routing": "lmetric"}},
    "random": {"workload": PREFIXES, "cluster": {"instances": 3}, "policies": {"routing": "random"}},
    "sessions": {"workload": CHAT, "cluster": {"instances": 3}, "policies": {"routing": "sticky"}},
    "routers": {
        "workload": PREFIXES,
        "cluster": {"instances": 3},
        "routers": {"count": 2},
        "faults": CRASH,
        "retries": 2,
    },
    "disaggregated": {"workload": PREFIXES, "cluster": APART, "policies": {"routing": "least-loaded"}},
}


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let this process fork although the test runner has threads, and list the children."""
    children: list[int] = []
    fork = os.fork

    def counted() -> int:
        child = fork()
        children.append(child)
        return child

    monkeypatch.setattr(branches, "can_fork", lambda: hasattr(os, "fork"))
    monkeypatch.setattr(os, "fork", counted)
    return children


@pytest.mark.parametrize("scenario", RUNS.values(), ids=RUNS)
def test_forks_have_the_outcomes_of_runs_from_the_start(scenario: dict[str, Any], forks: list[int]) -> None:
    result = headway.simulate(scenario, trace="decisions")
    assert result.decisions is not None
    names = result.instance_ids()
    choices: list[Choice] = []
    for request in (3, 29, 58):
        first = result.decisions.of(request)[0]
        pairs = others(first, result.instances())[:2]
        choices += [(request, (names[pair.target], names.get(pair.prefill))) for pair in pairs]
    assert forced_runs(result.scenario, choices, BY) == [forced_run(result.scenario, *choice, BY) for choice in choices]
    assert len(forks) == len(choices)


def test_a_branch_that_fails_is_an_error_in_its_place(forks: list[int]) -> None:
    scenario = {"workload": PREFIXES, "cluster": {"instances": 3}, "faults": CRASH, "retries": 2}
    arrivals = headway.simulate(scenario).requests["arrival_ps"]
    there = next(row for row, at_ps in enumerate(arrivals) if at_ps > 4 * 10**12)  # when instance-1 is away
    choices: list[Choice] = [(3, ("instance-1", None)), (there, ("instance-1", None)), (there, ("instance-2", None))]
    good, bad, last = forced_runs(scenario, choices, BY)
    assert isinstance(bad, str) and f"with request {there} sent to instance-1" in bad
    assert [good, last] == [forced_run(scenario, *choices[place], BY) for place in (0, 2)]
    assert len(forks) == 3
    with pytest.raises(HeadwayError, match=f"with request {there} sent to instance-1"):
        forced_run(scenario, *choices[1], BY)


def test_a_process_with_threads_runs_from_the_start(forks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "can_fork", lambda: False)
    choices: list[Choice] = [(3, ("instance-1", None)), (9, ("instance-2", None))]
    assert forced_runs(RUNS["prefixes"], choices, BY) == [forced_run(RUNS["prefixes"], *each, BY) for each in choices]
    assert not forks
