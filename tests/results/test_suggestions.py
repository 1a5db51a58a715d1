"""Suggestions: changes that the scenario accepts, that name something new, and that the reader may make."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import headway
from headway.errors import HeadwayError
from headway.policies import registry
from headway.results.findings import DETECTORS, find, first_cause, noisy_neighbour
from headway.results.findings.observed import Observed
from headway.results.findings.run_settings import changes_something
from headway.results.ranking import direction
from headway.results.records import SCOPE, Finding, Suggestion
from headway.results.result import Result
from headway.scenario.scenario import Scenario
from headway.testing.troubles import TROUBLES, named

SLO = {"ttft": "300ms", "tpot": "30ms"}
LOAD = {"requests": 300, "rate": "60/s", "prompt_tokens": 2000, "output_tokens": 100}
SHARED = {**LOAD, "rate": "300/s", "prefix": {"groups": 4, "tokens": 1500}}


def suggestions(result: Result) -> list[Suggestion]:
    return [each for finding in result.findings() for each in finding.suggestions]


def check(scenario: Any, result: Result) -> None:
    """Every suggestion is a change that the scenario accepts, and names a figure that has a better direction."""
    for each in suggestions(result):
        assert each.stage in SCOPE and each.text.endswith(".") and direction(each.figure) is not None, each
        resolved = Scenario.load(scenario, each.overrides()).resolved()
        assert resolved != result.scenario, each
        numbers = {path: value for path, value in each.change.items() if isinstance(value, int)}
        numbers.pop("cluster.speculation.tokens", None)  # 0 resolves to a cluster without speculation
        assert not changes_something(resolved, numbers), each


def test_every_kind_of_finding_has_suggestions() -> None:
    assert [detector.KIND for detector in DETECTORS if not hasattr(detector, "suggest")] == []


@pytest.mark.full
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
def test_the_suggestions_of_planted_troubles_are_changes_that_their_scenarios_accept(trouble: Any) -> None:
    scenario = trouble.build("medium")
    result = headway.simulate(scenario, progress=False)
    assert suggestions(result)
    check(scenario, result)


CLUSTERS: dict[str, Any] = {
    "plain": {"instances": 2},
    "small": {"instances": 1, "max_batch_size": 4, "kv": {"gpu_blocks": 400}},
    "deployments": {"deployments": {"chat": {"instances": 1, "max_batch_size": 8}}},
    "ranks": {"instances": 1, "dp": 2, "max_batch_size": 4},
    "disaggregated": {
        "architecture": "disaggregated",
        "prefill": {"instances": 1},
        "decode": {"instances": 1},
        "transfer": {"bandwidth": "1GB/s", "max_incoming": 8},
    },
    "deployed halves": {
        "deployments": {
            "chat": {"architecture": "disaggregated", "prefill": {"instances": 1}, "decode": {"instances": 1}},
        }
    },
}


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("slo", [SLO, {}])
def test_changes_fit_every_form_of_cluster(name: str, slo: dict[str, str]) -> None:
    scenario = {"workload": LOAD, "cluster": CLUSTERS[name], "slo": slo}
    result = headway.simulate(scenario, progress=False)
    assert suggestions(result)
    check(scenario, result)


def test_the_ranks_of_an_engine_get_suggestions_for_their_pool() -> None:
    scenario = {"workload": LOAD, "cluster": CLUSTERS["ranks"], "slo": SLO}
    first = first_cause(headway.simulate(scenario, progress=False).findings())
    assert first is not None and first.resource == "slots"
    assert first.suggestions[0].change == {"cluster.max_batch_size": 8}


def among_documents(rate: str) -> tuple[Any, Result]:
    """Run chats whose steps also compute the long prompts of another tenant."""
    chats: Any = {"rate": "45/s", "prompt_tokens": {"dist": "lognormal", "mean": 900, "std": 700}}
    chats |= {"output_tokens": {"dist": "lognormal", "mean": 180, "std": 110}}
    tenants = {"chat": chats, "docs": {"rate": rate, "prompt_tokens": 14000, "output_tokens": 20}}
    scenario: Any = {"workload": {"requests": 800, "tenants": tenants}, "cluster": {"instances": 4}}
    scenario |= {"slo": {"ttft": "400ms", "tpot": "25ms"}, "policies": {"routing": "least-loaded"}}
    return scenario, headway.simulate(scenario, progress=False)


def test_a_smaller_budget_is_not_suggested_if_prompts_would_take_much_longer() -> None:
    scenario, result = among_documents("3/s")
    assert "chunk_size" not in [finding.kind for finding in result.findings()]
    first = first_cause(result.findings())
    assert first is not None
    changed = headway.simulate(scenario, overrides=first.suggestions[0].overrides(), progress=False)
    assert changed.summary()["slo"]["goodput_ratio"] > result.summary()["slo"]["goodput_ratio"] + 0.05


def test_a_limit_of_the_noisy_tenant_comes_first_if_steps_take_too_long() -> None:
    run = Observed(among_documents("9/s")[1])
    (finding,) = noisy_neighbour.find(run)
    assert run.loss.by_part["decode"] > 0.25
    stages = [each.stage for each in noisy_neighbour.suggest(run, replace(finding, resource="prefill"))]
    assert stages[:2] == ["admission", "scheduler"]


def test_a_suggestion_never_names_the_policy_in_use() -> None:
    for entry in registry.entries("routing"):
        if entry.name in ("lmetric", "least-loaded", "weighted", "prefix-affinity", "power-of-two"):
            scenario = {"workload": SHARED, "cluster": {"instances": 2}, "slo": SLO}
            for each in suggestions(headway.simulate(scenario, routing=entry.name, progress=False)):
                if each.stage == "routing":
                    assert f"use {entry.name}" not in each.text


def test_a_written_policy_that_reads_the_cache_and_the_load_is_not_told_to_read_them() -> None:
    source = (
        "def score(request, instance, cluster):\n"
        "    return -(request.prompt_tokens - cached_tokens(instance)) * instance.inflight\n"
    )
    scenario = {"workload": SHARED, "cluster": {"instances": 2}, "slo": SLO}
    result = headway.simulate(scenario, routing={"name": "code", "source": source}, progress=False)
    assert {each.stage for each in suggestions(result)} and not [
        each for each in suggestions(result) if each.stage == "routing"
    ]


def test_admission_is_added_to_the_policy_that_admits_already() -> None:
    scenario = {"workload": LOAD, "cluster": {"instances": 2}, "slo": SLO}
    result = headway.simulate(scenario, admission={"name": "max-concurrency", "max_queue": 400}, progress=False)
    changes = [each.change["policies.admission"] for each in suggestions(result) if each.stage == "admission"]
    assert changes and all(
        change["name"] == "all-of" and change["policies"][0] == {"name": "max-concurrency", "max_queue": 400}
        for change in changes
    )


def test_findings_keep_only_the_suggestions_of_stages_that_the_reader_may_change() -> None:
    result = headway.simulate({"workload": LOAD, "cluster": {"instances": 2}, "slo": SLO}, progress=False)
    stages = {each.stage for each in suggestions(result)}
    assert {"cluster", "admission"} <= stages
    kept = result.findings(may="admission, routing")
    assert [finding.kind for finding in kept] == [finding.kind for finding in result.findings()]
    assert {each.stage for finding in kept for each in finding.suggestions} == {"admission", "routing"}
    with pytest.raises(HeadwayError, match="no stage 'replicas'"):
        result.findings(may=["routing", "replicas"])


def test_suggestions_are_stored_with_the_findings(tmp_path: Any) -> None:
    result = headway.simulate({"workload": LOAD, "cluster": {"instances": 2}, "slo": SLO}, progress=False)
    result.save(tmp_path / "run")
    assert (
        suggestions(Result.load(tmp_path / "run"))
        == suggestions(result)
        == [each for finding in find(result) for each in finding.suggestions]
    )


def test_live_traffic_gets_no_suggestions_for_engines_and_cluster() -> None:
    result = headway.simulate({"workload": LOAD, "cluster": {"instances": 2}, "slo": SLO}, progress=False)
    live = Result({**result.scenario, "live": True}, result.requests, result.summary())
    assert {each.stage for each in suggestions(live)} <= {"admission", "priority", "flow", "routing", "scheduler"}


def test_overrides_are_strings_that_set_the_change() -> None:
    each = Suggestion("engine", {"cluster.max_batch_size": 8, "policies.routing": {"name": "lmetric"}}, "f", "t.")
    scenario = Scenario.load({"workload": LOAD}, each.overrides())
    assert (scenario.cluster.max_batch_size, scenario.resolved()["policies"]["routing"]["name"]) == (8, "lmetric")


def test_a_finding_without_suggestions_is_written_without_them() -> None:
    assert Finding("herding", 0, 1, 0.5, 1, "x").suggestions == []


@pytest.mark.parametrize("name", ["kv-bound", "herd"])
def test_following_the_first_suggestion_improves_its_figure(name: str) -> None:
    from headway.testing.follow import effects, follow

    case = follow(named(name), "severe")
    assert case.suggestion is not None and case.improved
    text = effects([case])
    assert case.suggestion.text in text and text.endswith("Improved: 1 of 1 figures (100%).")


def test_a_cluster_without_a_prefix_cache_is_told_to_cache_before_it_is_told_to_route_by_prefix() -> None:
    scenario = named("runaway-session").build("medium")
    scenario["cluster"]["kv"]["prefix_caching"] = False
    suggestions = [each for finding in headway.simulate(scenario).findings() for each in finding.suggestions]
    assert "lmetric" not in str([each.change for each in suggestions])
    assert any(each.change == {"cluster.kv.prefix_caching": True} for each in suggestions)
