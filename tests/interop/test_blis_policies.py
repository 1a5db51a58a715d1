"""Import of BLIS's policy bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import Run
from headway.errors import HeadwayError
from headway.interop.blis_policies import import_policies
from headway.policies.bundle import Bundle

WORKLOAD = {
    "version": "2",
    "aggregate_rate": 20,
    "num_requests": 30,
    "clients": [
        {
            "id": "a",
            "rate_fraction": 1,
            "slo_class": "batch",
            "arrival": {"process": "poisson"},
            "input_distribution": {"type": "constant", "params": {"value": 200}},
            "output_distribution": {"type": "constant", "params": {"value": 10}},
        }
    ],
}
WEIGHTED = {
    "admission": {"policy": "always-admit"},
    "routing": {
        "policy": "weighted",
        "scorers": [
            {"name": "precise-prefix-cache", "weight": 2.0},
            {"name": "queue-depth", "weight": 1.0},
            {"name": "kv-utilization", "weight": 1.5},
        ],
    },
    "priority": {"policy": "constant"},
    "scheduler": "fcfs",
}
AUTOSCALED: dict[str, Any] = {
    "node_pools": [
        {
            "name": "cards",
            "gpu_type": "H100",
            "gpus_per_node": 2,
            "gpu_memory_gib": 80.0,
            "initial_nodes": 1,
            "max_nodes": 3,
            "provisioning_delay": {"mean": 20.0},
        }
    ],
    "instance_lifecycle": {"loading_delay": {"mean": 60.0, "stddev": 5.0}, "warm_start_initial_instances": True},
    "autoscaler": {
        "interval_us": 15_000_000,
        "scale_down_stabilization_window_us": 120_000_000,
        "analyzer": {"kv_cache_threshold": 0.7, "avg_input_tokens": 512.0},
    },
}


def policies(**bundle: Any) -> Any:
    return import_policies(bundle, "x").document["policies"]


def notes(**bundle: Any) -> str:
    return " ".join(import_policies(bundle, "x").notes)


def test_an_empty_bundle_has_the_defaults_of_blis() -> None:
    assert policies() == {"admission": "always", "routing": "round-robin", "scheduler": "fcfs"}


def test_a_weighted_profile_keeps_its_weights_and_names_what_differs() -> None:
    result = import_policies(WEIGHTED, "x")
    scorers = {"prefix-affinity": {"weight": 2, "lru_blocks": "auto"}, "queue-depth": 1, "kv-utilization": 1.5}
    assert result.document["policies"]["routing"] == {"name": "weighted", "scorers": scorers}
    for word in ("precise-prefix-cache becomes prefix-affinity", "counts only waiting ones", "chooses at random"):
        assert word in " ".join(result.notes)


def test_a_weighted_policy_without_scorers_has_those_of_blis() -> None:
    scorers = policies(routing={"policy": "weighted"})["routing"]["scorers"]
    assert scorers == {"prefix-affinity": {"weight": 2, "lru_blocks": "auto"}, "queue-depth": 1, "kv-utilization": 1}


def test_the_routers_own_index_keeps_the_size_that_blis_gives_it() -> None:
    own = [{"name": "prefix-affinity", "weight": 1}]
    scorers = policies(routing={"policy": "weighted", "scorers": own})["routing"]["scorers"]
    assert scorers == {"prefix-affinity": {"weight": 1, "lru_blocks": 10_000}}


@pytest.mark.parametrize("name", ["round-robin", "least-loaded", "always-busiest", "prefix-affinity"])
def test_other_routing_policies_keep_their_names(name: str) -> None:
    assert policies(routing={"policy": name})["routing"] == name
    scorers = [{"name": "queue-depth", "weight": 1}]
    assert "routing.scorers is ignored" in notes(routing={"policy": name, "scorers": scorers})


@pytest.mark.parametrize(
    ("admission", "wanted"),
    [
        ({"policy": "reject-all"}, "never"),
        ({"policy": "token-bucket"}, {"name": "token-bucket", "by": "tokens", "rate": 1000, "burst": 10_000}),
        (
            {"policy": "token-bucket", "token_bucket_capacity": 500, "token_bucket_refill_rate": 2.5},
            {"name": "token-bucket", "by": "tokens", "rate": 2.5, "burst": 500},
        ),
        (
            {"policy": "tier-shed", "tier_shed_threshold": 40, "tier_shed_min_priority": -1},
            {
                "name": "tier-shed",
                "classes": ["critical", "standard", "batch", "sheddable", "background"],
                "keep": "batch",
                "max_load": 40,
            },
        ),
    ],
)
def test_admission_policies_have_their_parameters(admission: dict[str, Any], wanted: Any) -> None:
    assert policies(admission=admission)["admission"] == wanted


def test_negative_priorities_are_sheddable() -> None:
    admission = {"policy": "gaie-legacy", "gaie_qd_threshold": 3, "slo_priorities": {"batch": 1, "free": -9}}
    result = policies(admission=admission)["admission"]
    assert result["sheddable"] == ["sheddable", "background", "free"]
    assert (result["queue_threshold"], result["kv_threshold"], result["k"]) == (3, 0.8, 1e6)


@pytest.mark.parametrize(("scheduler", "sign"), [("priority-fcfs", 1), ("reverse-priority", -1)])
def test_schedulers_by_priority_use_the_classes(scheduler: str, sign: int) -> None:
    result = policies(scheduler=scheduler, preemption={"policy": "priority"})
    assert result["scheduler"] == {"name": "priority", "aging": 0}
    assert result["priority"]["scores"]["critical"] == 4 * sign
    assert result["priority"]["other"] == 3 * sign


def test_sjf_is_the_shortest_prompt_first() -> None:
    assert policies(scheduler="sjf")["scheduler"] == {"name": "shortest-prefill", "aging": 0}
    assert "preemption.policy: fcfs is ignored" in notes(scheduler="sjf")


def test_what_changes_no_decision_is_noted() -> None:
    text = notes(priority={"policy": "slo-based"}, admission={"slo_targets": {"critical": 5}, "gaie_kv_threshold": 0.5})
    for word in ("slo-based is ignored", "slo_targets is ignored", "gaie_kv_threshold is ignored: always-admit"):
        assert word in text
    assert not notes(priority={"policy": "constant"}, scheduler="fcfs", preemption={"policy": "fcfs"})


@pytest.mark.parametrize(
    ("bundle", "word"),
    [
        ({"admission": {"policy": "coin"}}, "admission.policy: 'coin' is unknown"),
        ({"admission": {"policy": "tier-shed", "tier_shed_min_priority": 9}}, "above the priority of every class"),
        ({"routing": {"policy": "random"}}, "routing.policy: 'random' is unknown"),
        ({"routing": {"policy": "weighted", "scorers": [{"name": "vllm-dp", "weight": 1}]}}, "no equivalent of"),
        ({"routing": {"policy": "weighted", "scorers": [{"name": "queue-depth"}]}}, "'weight' is missing"),
        (
            {"routing": {"policy": "weighted", "scorers": [{"name": "queue-depth", "weight": 1}] * 2}},
            r"scorers\[1\].name: 'queue-depth' is listed twice",
        ),
        (
            {
                "routing": {
                    "policy": "weighted",
                    "scorers": [
                        {"name": "prefix-affinity", "weight": 1},
                        {"name": "precise-prefix-cache", "weight": 1},
                    ],
                }
            },
            "are one scorer in Headway",
        ),
        ({"scheduler": "lottery"}, "scheduler: 'lottery' is unknown"),
        ({"preemption": {"policy": "odd"}}, "expected fcfs or priority"),
        ({"tenant_budgets": {"a": 0.5}}, "tenant_budgets: is not supported"),
        ({"routing": {"cache_weight": 1}}, "there is no such key"),
        ({"node_pools": [{}, {}]}, "only a single pool"),
    ],
)
def test_what_headway_cannot_decide_is_refused_at_its_place(bundle: dict[str, Any], word: str) -> None:
    with pytest.raises(HeadwayError, match=word) as refused:
        import_policies(bundle, "x")
    assert str(refused.value).startswith("x.")


def test_an_autoscaler_becomes_bounds_delays_and_a_policy() -> None:
    result = import_policies(AUTOSCALED, "x")
    document = result.document
    assert document["cluster"] == {"instances": 1, "gpu": "h100", "min_replicas": 1, "max_replicas": 6}
    assert document["scaling"] == {
        "provisioning": "20s",
        "model_load": {"dist": "normal", "mean": "60s", "std": "5s"},
        "interval": "15s",
    }
    scaling = document["policies"]["scaling"]
    assert (scaling["kv_threshold"], scaling["scale_up"], scaling["scale_down_delay_s"]) == (0.7, 0.8, 120)
    for word in ("avg_input_tokens is ignored", "cluster.instances is 1", "initial_nodes is ignored"):
        assert word in " ".join(result.notes)


def test_the_earlier_names_of_an_autoscaler_are_read() -> None:
    pool = AUTOSCALED["node_pools"][0] | {"gpu_type": "A100-80"}
    keys = {
        "interval_us": 5e6,
        "scale_up_cooldown_us": 5e6,
        "scale_down_cooldown_us": 6e7,
        "actuation_delay": {"mean": 2},
    }
    result = import_policies({"node_pools": [pool], "autoscaler": keys}, "x")
    assert result.document["cluster"]["gpu"] == "a100-80gb"
    assert result.document["policies"]["scaling"]["scale_down_delay_s"] == 60
    assert {note.split()[0] for note in result.notes} >= {"scale_up_cooldown_us", "actuation_delay"}


def test_an_autoscaler_without_node_pools_asks_for_bounds() -> None:
    assert "set cluster.max_replicas" in notes(autoscaler=AUTOSCALED["autoscaler"])
    assert "autoscaler is ignored" in notes(autoscaler={"interval_us": 0})


def test_a_bundle_becomes_a_bundle_that_runs(headway: Run, tmp_path: Path, root: Path) -> None:
    file, out = tmp_path / "theirs.yaml", tmp_path / "ours.yaml"
    file.write_text(yaml.safe_dump(WEIGHTED))
    done = headway("import", "blis", str(file), "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert Bundle.read(out).name == "theirs"
    scenario = str(root / "examples/01_first_run.yaml")
    ran = headway("run", scenario, "--policy", str(out), "--set", "workload.requests=20", "--json")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("bundle", [WEIGHTED, AUTOSCALED])
def test_a_workload_and_a_bundle_become_one_scenario(headway: Run, tmp_path: Path, bundle: dict[str, Any]) -> None:
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(WORKLOAD))
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(bundle))
    done = headway("import", "blis", "w.yaml", "--policy-config", "p.yaml", "-o", "s.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert headway("run", "s.yaml", "--json", cwd=tmp_path).returncode == 0


def test_a_bundle_that_describes_a_cluster_needs_a_workload(headway: Run, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(AUTOSCALED))
    done = headway("import", "blis", "p.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "headway import blis WORKLOAD --policy-config p.yaml" in done.stderr
    assert headway("import", "blis", "p.yaml", "--policy-config", "p.yaml", cwd=tmp_path).returncode == 2
