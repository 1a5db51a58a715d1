"""Commands that accept files of other projects in place of a scenario or of policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import Run
from headway.interop.foreign import foreign_scenario, with_foreign_policies

FILES = "examples/interop"


def summary(headway: Run, *arguments: str, cwd: Path | None = None) -> tuple[Any, str]:
    done = headway("run", *arguments, "--json", **({} if cwd is None else {"cwd": cwd}))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_a_specification_of_blis_runs_as_it_is(headway: Run) -> None:
    result, notes = summary(headway, f"{FILES}/blis_workload.yaml", "--set", "workload.requests=40")
    assert result["requests"]["completed"] == 40
    assert "the client's id nightly is ignored" in notes


def test_a_specification_runs_with_a_policy_bundle_of_blis(headway: Run) -> None:
    files = (f"{FILES}/blis_workload.yaml", "--policy-config", f"{FILES}/blis_policies.yaml")
    result, notes = summary(headway, *files, "--set", "workload.requests=40")
    assert result["requests"]["arrived"] == 40
    assert "precise-prefix-cache becomes prefix-affinity" in notes
    assert "Headway" in notes


def test_a_configuration_of_routesim_runs_as_it_is(headway: Run, root: Path) -> None:
    result, notes = summary(headway, f"{FILES}/routesim.toml", cwd=root)
    assert result["requests"]["completed"] == 120
    assert "max_batch_tokens limits" in notes


def test_policies_are_compared_on_such_a_file(headway: Run, root: Path) -> None:
    policies = ("--policies", "round-robin,prefix-aware", "--workers", "1")
    done = headway("compare", f"{FILES}/routesim.toml", *policies, "--set", "workload.trace.limit=20", cwd=root)
    assert done.returncode == 0, done.stderr
    assert "prefix-aware" in done.stdout


def test_a_bundle_with_an_autoscaler_changes_the_cluster(tmp_path: Path) -> None:
    pool = {"name": "a", "gpu_type": "H100", "gpus_per_node": 1, "gpu_memory_gib": 80, "max_nodes": 4}
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump({"node_pools": [pool], "autoscaler": {"interval_us": 5e6}}))
    scenario = {"workload": {"rate": "1/s"}, "cluster": {"model": "llama-3.1-8b"}, "policies": {"flow": "bands"}}
    result = with_foreign_policies(scenario, file)
    assert result is not None
    assert result.document["cluster"]["model"] == "llama-3.1-8b"
    assert result.document["cluster"]["max_replicas"] == 4
    assert result.document["policies"]["flow"] == "bands"
    assert result.document["scaling"] == {"interval": "5s"}
    assert scenario["cluster"] == {"model": "llama-3.1-8b"}


@pytest.mark.parametrize("name", ["01_first_run.yaml", "07_tenants.yaml", "11_admission.yaml", "18_evolve.yaml"])
def test_a_file_of_our_own_is_not_foreign(root: Path, name: str) -> None:
    file = root / "examples" / name
    assert foreign_scenario(file) is None
    assert with_foreign_policies({}, file) is None


def test_a_missing_file_is_not_foreign(tmp_path: Path) -> None:
    assert foreign_scenario(tmp_path / "no.toml") is None
    assert foreign_scenario(tmp_path / "no.yaml") is None
