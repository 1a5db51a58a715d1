"""Findings about limits at the router that are too tight, and about cold caches of new instances."""

from typing import Any

import pytest

import headway
from headway.results.records import Finding
from headway.testing.troubles import NONE, named

SLOW = {"model": "linear", "prefill_token": "80us"}


def findings(scenario: dict[str, Any], kind: str) -> list[Finding]:
    return [each for each in headway.simulate(scenario, progress=False).findings() if each.kind == kind]


@pytest.mark.parametrize(
    ("trouble", "stage", "policy"),
    [("small-queue", "admission", "max-concurrency"), ("tight-flow", "flow", "bands")],
)
def test_a_limit_at_the_router_is_named_if_the_instances_have_room(trouble: str, stage: str, policy: str) -> None:
    (found,) = findings(named(trouble).build("mild"), "tight_limit")
    assert (found.evidence["stage"], found.evidence["policy"]) == (stage, policy)
    assert found.explains > 0.9 and found.resource == "router"


def test_a_limit_is_not_tight_if_the_instances_are_busy() -> None:
    scenario = {
        "workload": {"requests": 600, "rate": "60/s", "prompt_tokens": 500, "output_tokens": 20},
        "cluster": {"instances": 1, "latency": SLOW},
        "policies": {"admission": {"name": "max-concurrency", "max_queue": 12}},
        "slo": {"ttft": "1s"},
    }
    result = headway.simulate(scenario, progress=False)
    assert result.summary()["requests"]["rejected"] > 200
    assert not [each for each in result.findings() if each.kind == "tight_limit"]


def test_a_limit_that_protects_the_time_between_tokens_is_not_tight() -> None:
    scenario = {
        "workload": {"requests": 400, "rate": "20/s", "prompt_tokens": 50, "output_tokens": 200},
        "cluster": {"instances": 1, "latency": {"model": "linear", "sequence": "1ms"}},
        "policies": {"admission": {"name": "max-concurrency", "max_queue": 12}},
        "slo": {"tpot": "20ms"},
    }
    result = headway.simulate(scenario, progress=False)
    assert result.summary()["requests"]["rejected"] > 100
    assert not [each for each in result.findings() if each.kind == "tight_limit"]


def test_started_replicas_with_cold_caches_are_named() -> None:
    (found,) = findings(named("cold-replicas").build("mild"), "cold_cache")
    assert {each.name for each in found.blames} <= {f"instance-{index}" for index in range(2, 8)}
    assert found.evidence["hits"] < found.evidence["usual_hits"] and found.at_ps > 100e12


def test_a_restarted_instance_with_a_cold_cache_is_named() -> None:
    (found,) = findings(named("cold-restart").build("mild"), "cold_cache")
    assert [each.name for each in found.blames] == ["instance-0"]


def test_caches_are_not_cold_without_new_instances_or_without_shared_prompts() -> None:
    scenario = named("cold-replicas").build("mild")
    assert findings(named("cold-replicas").build(NONE), "cold_cache") == []
    del scenario["workload"]["prefix"]
    assert findings(scenario, "cold_cache") == []
