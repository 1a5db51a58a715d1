"""A run is a pure function of scenario, policy and seeds: the same bytes in any process; each seed moves its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import headway as api
from conftest import SOURCE, Run

Json = dict[str, Any]

SCENARIO: Json = {
    "name": "determinism",
    "seed": 11,
    "workload": {
        "requests": 200,
        "rate": "60/s",
        "arrival": {"process": "gamma", "cv": 2},
        "prompt_tokens": {"dist": "lognormal", "mean": 300, "std": 200, "min": 1, "max": 1500},
        "output_tokens": {"dist": "normal", "mean": 60, "std": 30, "min": 1, "max": 200},
        "prefix": {"groups": 6, "tokens": 128, "popularity": {"dist": "zipf", "s": 1.1}, "share": 0.8},
        "max_tokens": {"dist": "empirical", "values": [50, 100, 200]},
    },
    "cluster": {"instances": 4, "max_batch_tokens": 512, "kv": {"gpu_blocks": 300}},
    "slo": {"ttft": "500ms", "tpot": "50ms"},
    "warmup": 20,
}
EVERYTHING = {
    "name": "weighted",
    "scorers": {
        "prefix-affinity": 3,
        "queue-depth": 2,
        "kv-utilization": 2,
        "load-balance": 1,
        "oracle-prefix": 0.5,
        "no-hit-lru": 1,
        "active-requests": 1,
        "session-affinity": 1,
        "predicted-latency": 1.5,
    },
    "filters": [{"name": "kv-below", "threshold": 0.8}, "load-spread"],
    "picker": "weighted-random",
}
ROUTINGS: dict[str, Any] = {
    "weighted": "weighted",
    "every scorer": EVERYTHING,
    "kv-aware": "kv-aware",
    "kv-aware-spill": "kv-aware-spill",
    "cost-escalation": "cost-escalation",
    "random": "random",
    "power-of-two": "power-of-two",
    "unified": {"name": "unified", "block_tokens": 16},
}
DRAWN = ("arrival_ps", "prompt_tokens")  # what the workload's seed alone decides, whoever serves it


def under(routing: Any, **changes: Any) -> Json:
    return {**SCENARIO, "policies": {"routing": routing}, **changes}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each of two processes with different hash seeds, and in it the run of every scenario."""
    folder = tmp_path_factory.mktemp("saved")
    for name, routing in ROUTINGS.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(under(routing)))
    for hash_seed in ("1", "77777"):
        env = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONHASHSEED": hash_seed}
        subprocess.run([sys.executable, "-c", SAVE_ALL, str(folder), hash_seed], env=env, check=True)
    return folder


SAVE_ALL = """
import sys
from pathlib import Path
import headway
folder, hash_seed = Path(sys.argv[1]), sys.argv[2]
for file in folder.glob("*.yaml"):
    headway.simulate(file, trace="full").save(folder / hash_seed / file.stem)
"""


@pytest.mark.parametrize("name", ROUTINGS)
def test_two_processes_with_different_hash_seeds_write_the_same_bytes(name: str, saved: Path) -> None:
    first, second = (contents(saved / hash_seed / name) for hash_seed in ("1", "77777"))
    assert first == second
    always = {"decisions.jsonl", "events.jsonl", "gauges.jsonl", "manifest.json", "requests.jsonl"}
    assert always <= first.keys()
    assert json.loads(first["summary.json"])["requests"]["completed"] > 150


def test_the_command_line_and_a_call_give_the_same_bytes(headway: Run, tmp_path: Path) -> None:
    file = tmp_path / "determinism.yaml"
    file.write_text(yaml.safe_dump(under("weighted")))
    done = headway("run", str(file), "--json", "-o", str(tmp_path / "command"))
    result = api.simulate(file)
    result.save(tmp_path / "call")
    document = json.loads(done.stdout)
    assert document.pop("run")["name"] == "determinism"
    assert document == json.loads(result.to_json())
    assert contents(tmp_path / "command") == contents(tmp_path / "call")


def test_what_a_run_wrote_runs_again_to_the_same_bytes(tmp_path: Path) -> None:
    api.simulate(under(EVERYTHING)).save(tmp_path / "first")
    api.simulate(tmp_path / "first" / "scenario.yaml").save(tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


@pytest.mark.full
def test_a_comparison_is_the_same_whatever_the_hash_seed_and_the_number_of_workers(
    headway_process: Run, tmp_path: Path
) -> None:
    file = tmp_path / "determinism.yaml"
    file.write_text(yaml.safe_dump(under("weighted", workload={**SCENARIO["workload"], "requests": 50})))
    chosen = "weighted,random,kv-aware,least-kv"
    done = headway_process("compare", str(file), "--policies", chosen, "--workers", "1", "--json", PYTHONHASHSEED="5")
    document = json.loads(done.stdout)
    for workers in (1, 2):
        assert json.loads(json.dumps(api.compare(file, chosen.split(","), workers=workers).summary())) == document


def test_comparing_equals_simulating_one_by_one() -> None:
    names = ["round-robin", "random", "weighted", "kv-aware", "cost-escalation", "unified", "power-of-two"]
    comparison = api.compare(under("weighted"), names)
    assert sorted(name for name, _ in comparison.ranked) == sorted(names)
    for name in names:
        assert comparison[name] == api.simulate(under(name)).summary(), name


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS.keys())
def test_the_same_seed_gives_the_same_run_and_another_gives_another(routing: Any) -> None:
    first, again = api.simulate(under(routing)), api.simulate(under(routing))
    assert first == again
    assert first.to_json() == again.to_json()
    other = api.simulate(under(routing, seed=12))
    assert other.to_json() != first.to_json()
    assert other.requests["arrival_ps"] != first.requests["arrival_ps"]


def test_one_number_is_all_three_seeds() -> None:
    apart = api.simulate(under("random", seed={"workload": 11, "simulation": 11, "jitter": 11}))
    assert apart == api.simulate(under("random", seed=11))


@pytest.mark.parametrize("routing", ["random", "power-of-two", {**EVERYTHING, "filters": []}], ids=str)
def test_the_simulation_seed_moves_decisions_and_leaves_the_workload_alone(routing: Any) -> None:
    runs = [
        api.simulate(under(routing, seed={"workload": 42, "simulation": simulation, "jitter": 7})).requests
        for simulation in (99, 100)
    ]
    assert runs[0]["instance"] != runs[1]["instance"]
    for name in DRAWN:
        assert runs[0][name] == runs[1][name]
    ended = [all(outcome == "completed" for outcome in run["outcome"]) for run in runs]
    assert ended == [True, True]
    assert runs[0]["output_tokens"] == runs[1]["output_tokens"]


def test_the_simulation_seed_leaves_a_policy_without_chance_alone() -> None:
    runs = [
        api.simulate(under("weighted", seed={"workload": 42, "simulation": simulation, "jitter": 7}))
        for simulation in (99, 100)
    ]
    assert runs[0].requests == runs[1].requests
    assert runs[0].to_json() == runs[1].to_json()


def test_the_workload_seed_leaves_the_decisions_draws_alone() -> None:
    """With as many requests, `random` sends the n-th to the same instance whatever the requests are."""
    runs = [
        api.simulate(under("random", seed={"workload": workload, "simulation": 99, "jitter": 7})).requests
        for workload in (1, 2)
    ]
    assert runs[0]["instance"] == runs[1]["instance"]
    for name in DRAWN:
        assert runs[0][name] != runs[1][name]


def test_the_jitter_seed_touches_nothing_that_has_no_jitter() -> None:
    runs = [
        api.simulate(under("random", seed={"workload": 1, "simulation": 2, "jitter": jitter})).to_json()
        for jitter in (3, 4)
    ]
    assert runs[0] == runs[1]


def test_the_picker_s_own_seed_does_not_follow_the_run_s() -> None:
    """Where all scores are equal the picker's draws alone decide."""
    picker = {"name": "weighted-random", "seed": 5}
    flat = {"name": "weighted", "scorers": {"session-affinity": 1}, "picker": picker}
    runs = [api.simulate(under(flat, seed={"workload": 1, "simulation": seed})).requests for seed in (1, 2)]
    assert runs[0]["instance"] == runs[1]["instance"]
    flat["picker"] = {"name": "weighted-random", "seed": 6}
    assert api.simulate(under(flat, seed={"workload": 1})).requests["instance"] != runs[0]["instance"]


def test_adding_a_part_of_the_workload_shifts_no_other_draw() -> None:
    """Streams go by name: lengths stay as they were when arrivals or prefixes change, and the other way round."""
    base = api.simulate(under("round-robin")).requests
    plain = {key: value for key, value in SCENARIO["workload"].items() if key != "prefix"}
    without = api.simulate(under("round-robin", workload=plain)).requests
    even = api.simulate(under("round-robin", workload={**SCENARIO["workload"], "arrival": "constant"})).requests
    for name in ("arrival_ps", "prompt_tokens", "output_tokens"):
        assert without[name] == base[name]
    assert even["arrival_ps"] != base["arrival_ps"]
    for name in ("prompt_tokens", "output_tokens"):
        assert even[name] == base[name]
