"""Comparing policies of every stage, with the figures of each tenant and class."""

from __future__ import annotations

import json
from typing import Any

import pytest

import headway
from headway import HeadwayError
from headway.cli import status
from headway.experiment.verdict import saving
from headway.policies import registry
from headway.scenario.scenario import STAGES

SCENARIO: dict[str, Any] = {
    "seed": 5,
    "workload": {
        "requests": 120,
        "rate": "60/s",
        "prompt_tokens": 400,
        "output_tokens": 20,
        "tenants": {"shop": {"priority": "realtime"}, "crawler": {"weight": 2, "priority": "batch"}},
    },
    "cluster": {"instances": 2, "max_batch_size": 4, "latency": {"model": "fixed"}},
    "policies": {"routing": "least-loaded"},
    "slo": {"ttft": "500ms"},
}


class Nobody:
    def admit(self, request: headway.Request, cluster: headway.ClusterView) -> headway.Reject:
        return headway.Reject("closed")


def test_admission_policies_are_compared_under_labels_of_their_own() -> None:
    result = headway.compare(SCENARIO, "always, never, {name: token-bucket, rate: 5}", stage="admission", workers=1)
    assert result.stage == result.summary()["stage"] == "admission"
    assert [name for name, _ in result.ranked] == [result.best, *(name for name, _ in result.ranked[1:])]
    assert {name for name, _ in result.ranked} == {"always", "never", "token-bucket(rate=5)"}
    assert result["never"]["requests"]["rejected"] == 120
    assert result["token-bucket"]["requests"]["rejected"] > 0
    assert result.ranked[-1][0] == "never"
    shares = [summary["slo"]["goodput_ratio"] for _, summary in result.ranked]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("stage", STAGES)
def test_all_policies_of_a_stage_run_where_all_are_asked_for(stage: str) -> None:
    result = headway.compare(SCENARIO, "all", stage=stage, workers=1, overrides="workload.requests=20")
    known = [name for name in registry.names(stage) if not name.endswith("pair")]  # pairs need a split cluster
    assert [name.partition("(")[0] for name, _ in sorted(result.ranked)] == sorted(known)
    for _, summary in result.ranked:
        assert summary["requests"]["arrived"] == 20


@pytest.mark.parametrize(
    ("stage", "workers"),
    [
        *((stage, 1) for stage in STAGES),
        *(pytest.param(stage, 2, marks=() if stage == "scaling" else pytest.mark.full) for stage in STAGES),
    ],
)
def test_a_comparison_gives_what_running_alone_gives(stage: str, workers: int) -> None:
    name = registry.names(stage)[-1]
    result = headway.compare(SCENARIO, [registry.names(stage)[0], name], stage=stage, workers=workers)
    assert result[name] == headway.simulate(SCENARIO, **{stage: name}).summary()


def test_the_scenarios_parameters_hold_for_a_policy_that_is_named_alone() -> None:
    settings = {**SCENARIO, "policies": {"admission": {"name": "token-bucket", "rate": 7.0}, "routing": "random"}}
    result = headway.compare(settings, "always,token-bucket", stage="admission", workers=1)
    assert {name for name, _ in result.ranked} == {"always", "token-bucket(rate=7.0)"}
    assert result["token-bucket"] == headway.simulate(settings).summary()


def test_classes_and_objects_of_the_callers_own_are_compared() -> None:
    result = headway.compare(SCENARIO, ["always", Nobody, Nobody()], stage="admission")
    assert [name for name, _ in result.ranked] == ["always", "Nobody", "Nobody#2"]


def test_the_plainest_policy_of_the_stage_is_the_one_to_measure_against() -> None:
    few = "{name: token-bucket, rate: 0.1, burst: 1}"
    result = headway.compare(
        SCENARIO, f"{few}, {{name: token-bucket, rate: 15}}, always", stage="admission", by="latency.ttft.mean"
    )
    assert "(always: latency.ttft.mean " in result.verdict


@pytest.mark.parametrize(
    ("stage", "policies", "message"),
    [
        ("admision", None, "stage: there is no stage 'admision'. Did you mean 'admission'?"),
        ("admission", "allways", "policies: no admission policy is called 'allways'. Did you mean 'always'?"),
        ("admission", "round-robin", "no admission policy is called 'round-robin'"),
        ("scheduler", [], "policies: name at least one scheduler policy. Known: fcfs"),
        ("flow", [object()], "policies: give a flow policy by name"),
        ("priority", [Nobody], "or a class or object with the method 'prioritise'"),
        ("admission", "{name: token-bucket, rat: 5}", "policies.rat: 'token-bucket' has no such parameter."),
    ],
)
def test_what_cannot_be_compared_is_told_before_anything_runs(stage: str, policies: Any, message: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        headway.compare(SCENARIO, policies, stage=stage)
    assert message in str(caught.value)


# --- per tenant, per class --------------------------------------------------------------------------------------------


def test_there_is_a_row_for_each_policy_and_tenant_or_class() -> None:
    result = headway.compare(SCENARIO, "always,never", stage="admission", workers=1)
    rows = result.per("tenant")
    assert [(row["policy"], row["id"]) for row in rows] == [
        ("always", "crawler"), ("always", "shop"), ("never", "crawler"), ("never", "shop"),
    ]  # fmt: skip
    assert rows[2]["requests"]["rejected"] == rows[0]["requests"]["completed"]
    assert [(row["policy"], row["id"]) for row in result.per("class")][:2] == [
        ("always", "batch"),
        ("always", "realtime"),
    ]
    assert result.summary("class")["per_class"] == result.per("class")
    assert "per_class" not in result.summary()
    with pytest.raises(HeadwayError, match=r"^per: there are no figures per 'tenants'\. Did you mean 'tenant'\?"):
        result.per("tenants")


@pytest.fixture
def scenario(tmp_path: Any) -> str:
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(SCENARIO))  # JSON is YAML too
    return str(file)


def test_the_table_shows_what_was_lost_only_where_something_was(scenario: str, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    words = ["compare", scenario, "--stage", "admission", "--policies"]
    assert status([*words, "always,never", "--per", "tenant"]) == 0
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 100
    assert output.count("rejected") == 2 and "timed" not in output  # in the ranking and per tenant
    assert "tenants'" in output and "routing: least-loaded" in output
    lines = [line.split() for line in output.splitlines()]
    never = next(line for line in lines if line[:1] == ["never"] and "crawler" not in line)
    assert "120" in never and "0.0" in never
    assert any(line[:2] == ["never", "crawler"] for line in lines)
    assert status([*words, "always,{name: always}"]) == 0
    assert "rejected" not in capsys.readouterr().out


def test_clients_that_give_up_are_a_column(scenario: str, capsys: Any) -> None:
    words = ["compare", scenario, "--policies", "random,round-robin", "--set", "workload.timeout=300ms", "--json"]
    assert status(words) == 0
    lost = [each["summary"]["requests"]["timed_out"] for each in json.loads(capsys.readouterr().out)["policies"]]
    assert all(lost)
    assert status(words[:-1]) == 0
    output = capsys.readouterr().out
    assert "timed" in output and "rejected" not in output
    assert max(map(len, output.splitlines())) <= 80


def test_one_tenant_alone_is_nothing_to_tell_apart(scenario: str, capsys: Any) -> None:
    words = ["compare", "--set", "workload.requests=30", "--policies", "random,round-robin", "--per", "tenant"]
    assert status(words) == 0
    assert "All requests belong to one tenant, so there is nothing to compare." in capsys.readouterr().out
    assert status([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["per_tenant"] == []


def test_a_routing_policy_beside_a_comparison_of_another_stage_holds_for_all(scenario: str, capsys: Any) -> None:
    words = [
        "compare",
        scenario,
        "--stage",
        "admission",
        "--policies",
        "always",
        "--routing-policy",
        "random",
        "--json",
    ]
    assert status(words) == 0
    assert json.loads(capsys.readouterr().out)["stage"] == "admission"


# --- autoscalers ------------------------------------------------------------------------------------------------------

POOL = {
    "workload": {"requests": 60, "rate": "2/s", "prompt_tokens": 64, "output_tokens": 32},
    "cluster": {"instances": 4, "gpu": "h200", "min_replicas": 1, "max_batch_size": 4},
    "scaling": {"interval": "1s"},
    "slo": {"ttft": "10s"},
}
CRASH = "{at: 1s, instance: instance-0, kind: crash}"
KNATIVE = "{name: concurrency, stable_window_s: 2, panic_window_s: 1}"


def test_a_comparison_of_autoscalers_says_who_serves_as_many_for_less() -> None:
    result = headway.compare(POOL, f"static,{KNATIVE}", stage="scaling", workers=1)
    usd = [result[name]["cost"]["usd"] for name in ("static", "concurrency")]
    assert usd[1] < 0.6 * usd[0] and result["concurrency"]["slo"]["goodput_ratio"] == 1
    less = f"{100 * (1 - usd[1] / usd[0]):.0f} % less than static."
    assert "Of the policies that meet the SLO as often, concurrency(" in result.verdict
    assert result.verdict.endswith(less)
    fixed = headway.compare(POOL, f"static,{KNATIVE}", stage="scaling", overrides="cluster.min_replicas=4", workers=1)
    assert "USD" not in fixed.verdict  # no policy costs less
    assert "USD" not in headway.compare(POOL, f"static,{KNATIVE}", stage="scaling", by="cost.usd", workers=1).verdict


def test_saving_needs_as_many_requests_served() -> None:
    def one(share: float, usd: float) -> dict[str, Any]:
        return {"slo": {"goodput_ratio": share}, "cost": {"usd": usd}}

    slo = {"slo": {"ttft": "1s"}}
    assert saving([("a", one(0.99, 6)), ("b", one(0.98, 1)), ("static", one(0.9, 12))], slo, "static") == (
        " It costs 6.00 USD, 50 % less than static."
    )
    assert saving([("static", one(0.99, 6)), ("b", one(0.98, 1))], slo, "static") == ""
    assert saving([("a", one(0.99, 6)), ("b", one(0.99, 0.5))], slo, "static") == (
        " Of the policies that meet the SLO as often, b costs the least, 0.5000 USD."
    )
    assert saving([("a", one(0.99, 6)), ("b", one(0.98, 1))], slo, "static") == ""


def test_a_name_with_parameters_breaks_before_them(tmp_path: Any, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "pool.yaml"
    file.write_text(json.dumps(POOL))
    policies = f"static,{KNATIVE},{{name: target-utilization, signal: batch, scale_down_delay_s: 1}}"
    assert status(["compare", str(file), "--stage", "scaling", "--policies", policies]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    at = next(number for number, line in enumerate(lines) if line.split()[:1] == ["target-utilization"])
    assert lines[at + 1].split()[0].startswith("(signal=batch")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--set", "policies.scaling=hpa", "--set", "cluster.min_replicas=4"], "No pool may change its size"),
        (["compare", "--stage", "scaling", "--set", "cluster.min_replicas=4"], "No pool may change its size"),
        (["run", "--set", "policies.scaling=hpa", "--set", "scaling.interval=null"], "'scaling.interval' is null"),
        (["compare", "--stage", "scaling", "--set", "cluster.scaling=hpa"], "Every pool that may change its size has"),
        (["run", "--set", "faults=[{at: 9h, instance: instance-0, kind: crash}]"], "The fault had no effect"),
        (["run", "--set", f"faults=[{CRASH}, {{at: 9h, instance: instance-1, kind: crash}}]"], "1 of 2 faults had no"),
        (["compare", "--stage", "scaling"], ""),
        (["run", "--set", "policies.scaling=hpa"], ""),
        (["run", "--set", "cluster.min_replicas=4"], ""),
        (["run", "--set", f"faults=[{CRASH}]"], ""),
    ],
)  # fmt: skip
def test_what_can_have_no_effect_is_said(words: list[str], said: str, tmp_path: Any, capsys: Any) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(json.dumps(POOL))
    names = ["--policies", "static,hpa"] if words[0] == "compare" else []
    assert status([words[0], str(file), *names, *words[1:]]) == 0
    output = capsys.readouterr().err
    assert output.startswith(f"headway: {said}") if said else not output
