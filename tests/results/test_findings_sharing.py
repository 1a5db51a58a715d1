"""Findings about who occupies the instances: noisy neighbours and runaway sessions."""

from typing import Any

import pytest

import headway
from headway.results.occupancy import Weights
from headway.results.records import Finding
from headway.testing.troubles import NONE, named

SLOW = {"model": "linear", "prefill_token": "80us"}


def findings(scenario: dict[str, Any], kind: str) -> list[Finding]:
    return [each for each in headway.simulate(scenario, progress=False).findings() if each.kind == kind]


def test_the_share_of_a_group_is_the_mean_of_its_part_of_the_weight() -> None:
    weights = Weights([(0, 10, 1.0, 1), (0, 20, 3.0, 2), (30, 40, 1.0, 1)], [1, 2])
    assert weights.share(1, 0, 10) == pytest.approx(0.25)
    assert weights.share(2, 0, 20) == pytest.approx((10 * 0.75 + 10) / 20)
    assert weights.share(1, 20, 40) == pytest.approx(0.5)  # half of the time, no request has weight
    assert weights.busy(0, 40) == pytest.approx(0.75)
    assert weights.share(3, 0, 10) == weights.share(1, 5, 5) == 0.0


def test_a_tenant_with_a_steady_heavy_load_is_blamed_for_the_misses_of_others() -> None:
    found = findings(named("noisy-outputs").build("medium"), "noisy_neighbour")
    assert [(each.blames[0].name, each.resource) for each in found] == [("writer", "slots")]
    assert found[0].explains > 0.5 and found[0].evidence["share_of_requests"] < 0.2


def test_no_tenant_is_noisy_if_all_send_the_same() -> None:
    tenants = {name: {"rate": "9/s", "prompt_tokens": 600, "output_tokens": 20} for name in "abc"}
    scenario = {
        "workload": {"duration": "20s", "tenants": tenants},
        "cluster": {"instances": 1, "latency": SLOW},
        "slo": {"ttft": "500ms"},
    }
    result = headway.simulate(scenario, progress=False)
    assert result.summary()["slo"]["goodput_ratio"] < 0.5
    assert not [each for each in result.findings() if each.kind == "noisy_neighbour"]


def test_a_tenant_that_floods_the_cluster_is_blamed_for_its_own_misses_too() -> None:
    tenants = {name: {"rate": "3/s", "prompt_tokens": 600, "output_tokens": 20} for name in "abc"}
    tenants["flood"] = {"rate": "20/s", "prompt_tokens": 600, "output_tokens": 20}
    scenario = {
        "workload": {"duration": "20s", "tenants": tenants},
        "cluster": {"instances": 1, "latency": SLOW},
        "slo": {"ttft": "500ms"},
    }
    first = headway.simulate(scenario, progress=False).findings()[0]
    assert (first.kind, first.blames[0].name) == ("noisy_neighbour", "flood")


def test_a_session_whose_context_keeps_growing_is_named() -> None:
    found = findings(named("runaway-session").build("mild"), "runaway_session")
    assert len(found) == 1 and found[0].blames[0].kind == "session"
    assert found[0].evidence["tenant"] == "coder"
    assert found[0].evidence["largest_prompt_tokens"] > 20 * found[0].evidence["first_prompt_tokens"]


def test_sessions_that_all_grow_alike_are_not_runaway() -> None:
    scenario = {
        "workload": {"requests": 600, "rate": "4/s", "kind": {"kind": "chat", "turns": 12, "turn_tokens": 900}},
        "cluster": {"instances": 1, "latency": SLOW},
        "slo": {"ttft": "500ms"},
    }
    assert findings(scenario, "runaway_session") == []


def test_blocking_by_a_noisy_tenant_explains_only_the_rest() -> None:
    all_ = headway.simulate(named("noisy-prompts").build("severe"), progress=False).findings()
    by_kind = {each.kind: each for each in all_}
    assert all_[0].kind == "noisy_neighbour"
    assert by_kind["head_of_line_blocking"].explains < 0.2


@pytest.mark.parametrize("name", ["noisy-prompts", "runaway-session"])
def test_the_same_traffic_without_the_heavy_part_has_neither(name: str) -> None:
    kinds = {each.kind for each in headway.simulate(named(name).build(NONE), progress=False).findings()}
    assert not kinds & {"noisy_neighbour", "runaway_session"}
