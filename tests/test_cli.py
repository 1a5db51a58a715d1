"""The command line: one thing on stdout, sentences on stderr, exit codes that mean something."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, Run
from headway import cli, registry
from headway.types import OUTCOMES, InvariantError

SCENARIO = """
seed: 3
workload:
  requests: 60
  rate: 20/s
  prompt_tokens: {dist: normal, mean: 200, std: 50, min: 16, max: 400}
  output_tokens: 20
  prefix: {groups: 3, tokens: 96}
cluster:
  instances: 3
  kv: {gpu_blocks: 400}
  latency: {model: fixed, prefill_tokens_per_s: 10000, decode_tokens_per_s: 100}
slo: {ttft: 500ms, tpot: 50ms}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    file = tmp_path / "small.yaml"
    file.write_text(SCENARIO)
    return str(file)


def document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def paths(value: Any, prefix: str = "") -> set[str]:
    if isinstance(value, dict):
        return {path for key, inner in value.items() for path in paths(inner, f"{prefix}.{key}" if prefix else key)}
    return {prefix}


def test_run_prints_a_table_and_nothing_on_stderr(headway: Run, scenario: str) -> None:
    done = headway("run", scenario)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    for word in ("TTFT", "TPOT", "ITL", "E2E", "queue wait", "p99", "throughput", "cache hits", "headway compare"):
        assert word in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_run_json_has_the_documented_shape(headway: Run, scenario: str) -> None:
    found = document(headway("run", scenario, "--json"))
    wanted = {f"requests.{outcome}" for outcome in ("arrived", *OUTCOMES)}
    for latency in ("ttft", "tpot", "itl", "e2e", "queue_wait"):
        wanted |= {f"latency.{latency}.{name}" for name in ["mean", "p50", "p75", "p90", "p95", "p99", "min", "max"]}
    wanted |= {f"throughput.{name}" for name in ("requests_per_s", "input_tokens_per_s", "output_tokens_per_s")}
    wanted |= {f"cache.{name}" for name in ("token_hit_ratio", "block_hit_ratio", "request_hit_ratio")}
    wanted |= {"balance.cv", "balance.jain", "instances"}
    wanted |= {f"slo.{name}" for name in ("ttft_attainment", "tpot_attainment", "goodput_requests_per_s")}
    wanted |= {f"cost.{name}" for name in ("gpu_seconds_per_request", "gpu_held_seconds", "usd_per_1k_tokens")}
    assert not wanted - paths(found)
    assert "policy_metrics" in found
    assert found["requests"]["arrived"] == 60


def test_the_same_run_gives_the_same_bytes_whatever_the_hash_seed(headway: Run, scenario: str) -> None:
    first = headway("run", scenario, "--json", PYTHONHASHSEED="1")
    second = headway("run", scenario, "--json", PYTHONHASHSEED="2")
    assert document(first)
    assert first.stdout == second.stdout


def test_set_and_the_routing_options_reach_the_run(headway: Run, scenario: str) -> None:
    assert document(headway("run", scenario, "--json", "--set", "workload.requests=7"))["requests"]["arrived"] == 7
    busiest = document(headway("run", scenario, "--json", "--routing-policy", "always_busiest"))
    assert [instance["requests"] for instance in busiest["instances"]] == [60, 0, 0]
    both = headway("run", scenario, "--json", "--routing-scorers", "load-balance:1", "--set", "workload.requests=9")
    assert document(both)["requests"]["arrived"] == 9


def test_a_users_own_file_is_a_policy(headway: Run, scenario: str, tmp_path: Path) -> None:
    policy = tmp_path / "my_policy.py"
    policy.write_text(
        "from headway import Route\n"
        "class MyPolicy:\n"
        "    def route(self, request, cluster):\n"
        "        return Route(cluster.instances[-1].id)\n"
        "    def metrics(self):\n"
        "        return {'mine': 1.0}\n"
    )
    found = document(headway("run", scenario, "--json", "--routing-policy", f"{policy}:MyPolicy"))
    assert [instance["requests"] for instance in found["instances"]] == [0, 0, 60]
    assert found["policy_metrics"] == {"mine": 1.0}
    compared = document(headway("compare", scenario, "--json", "--policies", f"round-robin,{policy}:MyPolicy"))
    assert {entry["name"] for entry in compared["policies"]} == {"round-robin", "my_policy.py:MyPolicy"}


def test_run_writes_its_files(headway: Run, scenario: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = headway("run", scenario, "-o", str(folder))
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "summary.json").read_text())["requests"]["arrived"] == 60


def test_compare_ranks_every_routing_policy(headway: Run, scenario: str) -> None:
    done = headway("compare", scenario)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    for name in registry.names("routing"):
        assert name in done.stdout
    assert "▸" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_compare_json_names_the_best_first(headway: Run, scenario: str) -> None:
    found = document(headway("compare", scenario, "--json", "--policies", "always-busiest,least_loaded,round-robin"))
    assert found["best"] == found["policies"][0]["name"]
    assert {entry["name"] for entry in found["policies"]} == {"always-busiest", "least-loaded", "round-robin"}
    assert found["policies"][0]["summary"]["requests"]["completed"] == 60


def test_compare_tells_two_profiles_of_one_policy_apart(headway: Run, scenario: str) -> None:
    chosen = "{name: weighted, scorers: {load-balance: 1}}, {name: weighted, scorers: {prefix-affinity: 1}}"
    found = document(headway("compare", scenario, "--json", "--policies", chosen))
    names = {entry["name"] for entry in found["policies"]}
    assert names == {"weighted(load-balance:1)", "weighted(prefix-affinity:1)"}


def test_comparing_gives_what_running_alone_gives(headway: Run, scenario: str) -> None:
    compared = document(headway("compare", scenario, "--json", "--policies", "random,power-of-two"))
    for entry in compared["policies"]:
        assert entry["summary"] == document(headway("run", scenario, "--json", "--routing-policy", entry["name"]))


def test_policies_lists_the_catalogue(headway: Run) -> None:
    found = document(headway("policies", "--json"))["policies"]
    entries = {(entry["stage"], entry["name"]): entry for entry in found}
    assert ("routing", "weighted") in entries
    assert entries["routing", "least-loaded"]["signals"]["exact"]
    assert entries["scorer", "queue-depth"]["signals"]["reported"]
    assert all(entry["summary"] for entry in found)
    table = headway("policies")
    assert table.returncode == 0
    assert "least-loaded" in table.stdout


def test_policies_shows_one_with_its_parameters(headway: Run) -> None:
    done = headway("policies", "unified")
    assert done.returncode == 0
    for word in ("overload_factor", "2.0", "min_hit_ratio", "reads as exact"):
        assert word in done.stdout


def test_trace_inspect_prints_shape_and_reuse(headway: Run, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 100 * n, "input_length": 1024, "output_length": 8, "hash_ids": [0, n + 1]} for n in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = headway("trace", "inspect", str(file))
    assert table.returncode == 0, table.stderr
    assert "unlimited" in table.stdout
    found = document(headway("trace", "inspect", str(file), "--capacity", "3,inf", "--instances", "1,4", "--json"))
    reuse = {(row["instances"], row["capacity"]): row["block_hit_ratio"] for row in found["reuse"]}
    assert reuse[1, None] == 19 / 40
    assert reuse[4, None] == 16 / 40
    assert set(reuse) == {(1, 3), (1, None), (4, 3), (4, None)}


def test_the_version_and_the_help_are_told(headway: Run) -> None:
    assert headway("--version").stdout.strip() == "0.1.0"
    for arguments in ((), ("--help",)):
        done = headway(*arguments)
        assert done.returncode == 0
        assert "compare" in done.stdout


WRONG: list[tuple[tuple[str, ...], str]] = [
    (("run", "nowhere.yaml"), "nowhere.yaml: there is no such scenario file"),
    (("run", "SCENARIO", "--set", "workload.rat=3"), "workload.rat: there is no such key. Did you mean 'rate'?"),
    (("run", "SCENARIO", "--set", "workload.rate=3 parsecs"), "workload.rate: '3 parsecs' is not a rate"),
    (("run", "SCENARIO", "--routing-policy", "leest-loaded"), "Did you mean 'least-loaded'?"),
    (("run", "SCENARIO", "--routing-policy", "random", "--routing-scorers", "queue-depth:1"), "takes no scorers"),
    (("run", "SCENARIO", "--routing-scorers", "queue-depth:0"), "queue-depth"),
    (("run", "SCENARIO", "--routing-scorers", "queue-depth:-2"), "queue-depth"),
    (("run", "SCENARIO", "--policy-config", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
    (("run", "SCENARIO", "--set", "cluster={instances: 1, model: llama-3.1-70b}"), "needs"),
    (("run", "SCENARIO", "--frobnicate"), "--frobnicate"),
    (("compare", "SCENARIO", "--policies", "rnadom"), "Did you mean 'random'?"),
    (("compare", "SCENARIO", "--policies", ""), "name at least one"),
    (("policies", "wieghted"), "Did you mean 'weighted'?"),
    (("trace", "inspect", "nowhere.jsonl"), "nowhere.jsonl"),
    (("trace", "inspect", "README.md", "--capacity", "lots"), "--capacity: 'lots' is not a whole number"),
    (("frobnicate",), "frobnicate"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_wrong_input_is_one_sentence_and_status_2(
    arguments: tuple[str, ...], message: str, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.status([scenario if word == "SCENARIO" else word for word in arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("headway: ")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_broken_invariant_is_status_3(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise InvariantError("blocks were lost")

    monkeypatch.setattr("headway.experiment.run.simulate", broken)
    assert cli.status(["run", scenario]) == 3


def test_ctrl_c_is_quiet(scenario: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headway.experiment.run.simulate", interrupted)
    assert cli.status(["run", scenario]) == 130
    assert capsys.readouterr() == ("", "")


def test_ctrl_c_ends_a_comparison_at_once(scenario: str) -> None:
    command = [sys.executable, "-m", "headway.cli", "compare", scenario, "--set", "workload.requests=500000"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    child = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        time.sleep(3)
        os.killpg(child.pid, signal.SIGINT)  # what a terminal does: the child and its workers, a session of their own
        out, err = child.communicate(timeout=20)
    finally:
        child.kill()
    assert (child.returncode, out, err) == (130, "", "")


def test_a_reader_who_leaves_is_no_error() -> None:
    command = f"PYTHONPATH={ROOT / 'src'} {sys.executable} -m headway.cli policies --json | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert not done.stderr
