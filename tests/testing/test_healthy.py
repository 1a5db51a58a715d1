"""Healthy runs have no finding above a note."""

import pytest

from headway import simulate
from headway.testing.healthy import HEALTHY, SEEDS, alarms


@pytest.mark.parametrize("name", ["chat", "disaggregated", "tenants and classes"])
def test_a_healthy_run_has_no_finding_above_a_note(name: str) -> None:
    assert alarms(name, 0) == []


def test_the_same_workload_at_twice_the_rate_has_one() -> None:
    workload = {**HEALTHY["chat"]["workload"], "rate": "144/s"}
    findings = simulate({**HEALTHY["chat"], "workload": workload}).findings()
    assert findings[0].level == "severe"


@pytest.mark.full
@pytest.mark.parametrize("name", HEALTHY)
def test_no_healthy_workload_has_a_finding_above_a_note(name: str) -> None:
    assert [finding.title for seed in range(2) for finding in alarms(name, seed)] == []


@pytest.mark.long
def test_of_a_hundred_healthy_runs_at_most_two_have_a_finding_above_a_note() -> None:
    assert sum(bool(alarms(name, seed)) for name in HEALTHY for seed in range(SEEDS)) <= 2
