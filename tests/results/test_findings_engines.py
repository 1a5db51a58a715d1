"""Findings about engines: failed instances, chunks of the wrong size, adapters that are loaded again and again."""

from typing import Any

import pytest

import headway
from headway.results.records import Finding
from headway.testing.troubles import DROP, NONE, SEVERITIES, changed, named


def findings(scenario: dict[str, Any], kind: str) -> list[Finding]:
    return [each for each in headway.simulate(scenario, progress=False).findings() if each.kind == kind]


def test_a_failed_instance_is_blamed_for_the_overload_of_the_others() -> None:
    (found,) = findings(named("crash").build("mild"), "instance_failure")
    assert [each.name for each in found.blames] == ["instance-1"]
    assert found.at_ps == 40 * 10**12 and found.explains > 0.9


def test_a_failure_that_makes_no_request_late_is_no_finding() -> None:
    scenario = changed(named("crash").build("mild"), {"workload": {"rate": "5/s", "duration": "30s"}})
    scenario["faults"][0]["at"] = "10s"
    assert findings(scenario, "instance_failure") == []


def test_misses_that_are_as_frequent_without_the_failure_are_not_blamed_on_it() -> None:
    scenario = {
        "workload": {"requests": 900, "rate": "30/s", "prompt_tokens": 100, "output_tokens": 20},
        "cluster": {"instances": 4, "latency": {"model": "linear"}},
        "slo": {"ttft": "11ms"},
        "faults": [{"at": "15s", "instance": "instance-1", "kind": "unreachable", "duration": "1s"}],
    }
    result = headway.simulate(scenario, progress=False)
    assert result.summary()["slo"]["goodput_ratio"] < 0.9
    assert not [each for each in result.findings() if each.kind == "instance_failure"]


def test_a_drained_replica_has_not_failed() -> None:
    scenario = {
        "workload": {"requests": 400, "rate": "8/s", "prompt_tokens": 400, "output_tokens": 100},
        "cluster": {"instances": 4, "min_replicas": 1, "max_replicas": 4, "latency": {"model": "linear"}},
        "policies": {"scaling": {"name": "hpa", "metric": "concurrency", "target": 50, "down_window_s": 0}},
        "scaling": {"interval": "10s"},
        "slo": {"ttft": "20ms"},
    }
    result = headway.simulate(scenario, progress=False)
    assert any(each.after < each.before for each in result.scaling_events)
    assert not [each for each in result.findings() if each.kind == "instance_failure"]


def test_slow_instances_that_get_as_many_requests_as_fast_ones_are_named_together() -> None:
    (found,) = findings(named("unequal-instances").build("severe"), "uneven_load")
    assert {each.name for each in found.blames} == {"old-0", "old-1", "old-2"}
    assert found.suggestions[0].change == {"policies.routing": "least-loaded"}


def test_an_overload_of_all_instances_alike_is_not_uneven() -> None:
    scenario = changed(named("unequal-instances").build(NONE), {"workload": {"rate": "90/s", "requests": 600}})
    result = headway.simulate(scenario, progress=False)
    assert result.summary()["slo"]["goodput_ratio"] < 0.5
    assert not [each for each in result.findings() if each.kind == "uneven_load"]


@pytest.mark.parametrize(("trouble", "chunks"), [("small-chunks", "small"), ("large-chunks", "large")])
def test_chunks_of_the_wrong_size_are_named_with_a_better_size(trouble: str, chunks: str) -> None:
    (found,) = findings(named(trouble).build("medium"), "chunk_size")
    budget, better = found.evidence["max_batch_tokens"], found.evidence["better"]
    assert found.evidence["chunks"] == chunks and (better > budget) == (chunks == "small")
    scenario = changed(named(trouble).build("medium"), {"cluster": {"max_batch_tokens": better}})
    assert headway.simulate(scenario, progress=False).summary()["slo"]["goodput_ratio"] > 0.97


def test_an_overload_with_chunks_of_a_good_size_is_not_blamed_on_them() -> None:
    scenario = changed(named("small-chunks").build(NONE), {"workload": {"rate": "60/s", "requests": 600}})
    result = headway.simulate(scenario, progress=False)
    assert result.summary()["slo"]["goodput_ratio"] < 0.5
    assert not [each for each in result.findings() if each.kind == "chunk_size"]


@pytest.mark.parametrize("severity", SEVERITIES)
def test_drafts_that_cost_more_than_they_save_are_named_first(severity: str) -> None:
    scenario = named("costly-speculation").build(severity)
    result = headway.simulate(scenario, progress=False)
    found = result.findings()[0]
    assert found.kind == "costly_speculation" and found.evidence["slowdown"] > 1.05
    assert found.suggestions[0].change == {"cluster.speculation.tokens": 0}
    better = headway.simulate(scenario, progress=False, overrides=found.suggestions[0].overrides()).summary()
    assert better["slo"]["goodput_ratio"] > 0.97 > result.summary()["slo"]["goodput_ratio"]


def test_an_overload_with_drafts_that_save_time_is_not_blamed_on_them() -> None:
    scenario = changed(named("costly-speculation").build(NONE), {"workload": {"rate": "200/s", "requests": 600}})
    result = headway.simulate(scenario, progress=False)
    assert result.summary()["slo"]["goodput_ratio"] < 0.5
    assert not [each for each in result.findings() if each.kind == "costly_speculation"]


def test_drafts_of_decode_instances_are_blamed_if_the_pools_are_apart() -> None:
    scenario = changed(
        named("costly-speculation").build("severe"),
        {
            "cluster": {
                "instances": DROP,
                "speculation": DROP,
                "architecture": "disaggregated",
                "prefill": {"instances": 2},
                "decode": {"instances": 2, "speculation": {"tokens": 10, "acceptance": 0.1, "draft": "1ms"}},
            }
        },
    )
    (found,) = findings(scenario, "costly_speculation")
    assert found.suggestions[0].change == {"cluster.decode.speculation.tokens": 0}


@pytest.mark.parametrize("trouble", ["adapter-thrash", "few-adapter-slots"])
def test_adapters_that_are_loaded_again_and_again_are_named(trouble: str) -> None:
    (found,) = findings(named(trouble).build("mild"), "adapter_thrashing")
    assert found.evidence["adapters"] == 11 and found.evidence["loads"] > 300
    assert found.explains > 0.6


def test_an_overload_with_all_adapters_loaded_is_not_thrashing() -> None:
    scenario = changed(named("adapter-thrash").build(NONE), {"workload": {"rate": "90/s", "requests": 600}})
    result = headway.simulate(scenario, progress=False)
    assert result.summary()["slo"]["goodput_ratio"] < 0.8
    assert not [each for each in result.findings() if each.kind == "adapter_thrashing"]
