"""The files that a scenario names: found beside it, known by their whole paths, and part of its key by their bytes."""

from __future__ import annotations

import gzip
import json
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.errors import HeadwayError
from headway.experiment.run import simulate
from headway.scenario import overrides
from headway.scenario.references import absolute
from headway.scenario.scenario import Scenario, load_data, validate

POLICIES = """
from headway.types import ADMIT, Route


class Mine:
    path: str = ""

    def admit(self, request, cluster):
        return ADMIT

    def route(self, request, cluster):
        return Route(cluster.instances[0].id)

    def score(self, request, candidates, cluster):
        return [1.0 for _ in candidates]

    def keep(self, request, candidates, cluster):
        return candidates

    def pick(self, candidates, totals, cluster):
        return 0
"""
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
WORKLOAD = {"requests": 3, "rate": "5/s", "prompt_tokens": 100, "output_tokens": 10}
FORMS: dict[str, dict[str, Any]] = {
    "a trace": {"workload": {"trace": {"path": "t.csv"}}},
    "prompt lengths": {"workload": {**WORKLOAD, "prompt_tokens": {"dist": "empirical", "path": "n.txt"}}},
    "declared lengths": {"workload": {**WORKLOAD, "max_tokens": {"dist": "empirical", "path": "n.txt"}}},
    "an admission policy": {"policies": {"admission": "mine.py:Mine"}},
    "a routing policy": {"policies": {"routing": {"name": "mine.py:Mine"}}},
    "a parameter": {"policies": {"routing": {"name": "mine.py:Mine", "path": "n.txt"}}},
    "scorers as a mapping": {"policies": {"routing": {"name": "weighted", "scorers": {"mine.py:Mine": 2}}}},
    "scorers as a list": {
        "policies": {"routing": {"name": "weighted", "scorers": [{"name": "mine.py:Mine", "weight": 2}]}}
    },
    "scorers as text": {"policies": {"routing": {"name": "weighted", "scorers": "mine.py:Mine:2, queue-depth:1"}}},
    "a filter": {"policies": {"routing": {"name": "weighted", "filters": ["mine.py:Mine"]}}},
    "a filter's mapping": {"policies": {"routing": {"name": "weighted", "filters": [{"name": "mine.py:Mine"}]}}},
    "a picker": {"policies": {"routing": {"name": "weighted", "picker": "mine.py:Mine"}}},
}


def fill(folder: Path, form: str) -> Path:
    """A folder with a scenario and all that it may refer to."""
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text(POLICIES)
    (folder / "t.csv").write_text(TRACE)
    (folder / "n.txt").write_text("16\n32\n")
    data = {"workload": WORKLOAD, "cluster": {"instances": 2, "latency": {"model": "fixed"}}, **FORMS[form]}
    (folder / "s.yaml").write_text(yaml.safe_dump(data))
    return folder / "s.yaml"


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder that has nothing to do with the scenario's."""
    folder = tmp_path / "away"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_a_file_is_found_beside_the_scenario_wherever_it_is_named(form: str, tmp_path: Path, away: Path) -> None:
    file = fill(tmp_path / "a, b", form)
    scenario = Scenario.load(file)
    resolved = scenario.resolved()
    assert str(file.parent) in str(resolved)
    assert Scenario.load(resolved).resolved() == resolved
    assert simulate(file).summary()["requests"]["completed"] == len(list(scenario.workload.plan(0)))


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_is_not_beside_the_scenario_is_found_from_the_current_folder(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fill(tmp_path / "a", form)
    (tmp_path / "b").mkdir()
    moved = file.rename(tmp_path / "b" / "s.yaml")
    monkeypatch.chdir(file.parent)
    scenarios = [Scenario.load(moved), Scenario.load(yaml.safe_load(moved.read_text()))]
    monkeypatch.chdir(tmp_path)
    for scenario in scenarios:
        assert str(file.parent) in str(scenario.resolved())
        assert list(scenario.workload.plan(0))


@pytest.mark.parametrize("form", FORMS)
def test_the_key_holds_the_bytes_of_files_and_not_where_they_lie(form: str, tmp_path: Path, away: Path) -> None:
    file = fill(tmp_path / "a", form)
    key = Scenario.load(file).key()
    shutil.copytree(file.parent, tmp_path / "b")
    elsewhere = tmp_path / "b" / "s.yaml"
    assert Scenario.load(elsewhere).key() == key
    assert Scenario.load(Scenario.load(elsewhere).resolved()).key() == key
    for name in ("mine.py", "t.csv", "n.txt"):
        with (tmp_path / "b" / name).open("a") as content:
            content.write("\n")
    assert Scenario.load(elsewhere).key() != key


def test_a_packed_trace_counts_by_the_bytes_of_its_file(tmp_path: Path) -> None:
    keys = []
    for level in (1, 1, 9):
        (tmp_path / "t.csv.gz").write_bytes(gzip.compress(TRACE.encode() * 100, level, mtime=0))
        keys.append(Scenario.load({"workload": {"trace": {"path": str(tmp_path / "t.csv.gz")}}}).key())
    assert keys[0] == keys[1] != keys[2]


def test_a_policy_given_in_passing_is_kept_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = fill(tmp_path / "a", "a trace")
    monkeypatch.chdir(file.parent)
    result = simulate(file, routing="mine.py:Mine")
    assert result.scenario["policies"]["routing"]["name"] == f"{file.parent}/mine.py:Mine"


def test_files_of_a_policy_file_are_found_beside_it(tmp_path: Path, away: Path) -> None:
    scenario, config = fill(tmp_path / "a", "a trace"), tmp_path / "c" / "policy.yaml"
    for text in (
        "routing-policy: mine.py:Mine",
        "routing-scorers: 'mine.py:Mine:2'",
        "routing-scorers: {mine.py:Mine: 2}",
    ):
        config.parent.mkdir(exist_ok=True)
        shutil.copy(scenario.parent / "mine.py", config.parent)
        config.write_text(text)
        found = validate(overrides.choose_policies(load_data(scenario), config=config))
        assert f"{config.parent}/mine.py:Mine" in str(found.policies.routing)


def test_files_of_a_change_are_found_from_the_current_folder(tmp_path: Path, away: Path) -> None:
    scenario = fill(tmp_path / "a", "a trace")
    shutil.copy(scenario.parent / "t.csv", away / "other.csv")
    shutil.copy(scenario.parent / "mine.py", away)
    changes = ["workload.trace.path=other.csv", "policies.routing.scorers={mine.py:Mine: 1}"]
    for loaded in (Scenario.load(scenario, changes), validate(overrides.apply(load_data(scenario), changes))):
        assert loaded.resolved()["workload"]["trace"]["path"] == f"{away}/other.csv"
        assert loaded.resolved()["policies"]["routing"]["scorers"][0]["name"] == f"{away}/mine.py:Mine"


def test_a_change_that_names_the_policy_it_already_is_keeps_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = fill(tmp_path / "a", "a parameter")
    monkeypatch.chdir(scenario.parent)
    routing = Scenario.load(scenario, "policies.routing.name=mine.py:Mine").policies.routing
    assert routing == {"name": f"{scenario.parent}/mine.py:Mine", "path": f"{scenario.parent}/n.txt"}


def test_a_file_that_is_nowhere_is_told_as_it_was_written(away: Path) -> None:
    for form, sentence in (
        ("a trace", r"workload\.trace\.path: cannot open 't\.csv'"),
        ("prompt lengths", r"workload\.prompt_tokens\.path: 'n\.txt' is not a readable text file"),
        ("a routing policy", r"policies\.routing: there is no file 'mine\.py'"),
        ("scorers as text", r"there is no file 'mine\.py'"),
    ):
        with pytest.raises(HeadwayError, match=sentence):
            list(Scenario.load({"workload": WORKLOAD, **FORMS[form]}).workload.plan(0))


def test_one_scorer_under_two_names_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fill(tmp_path / "a", "a trace").parent)
    with pytest.raises(HeadwayError, match=r"mine\.py:Mine: the mapping has two names for the same file"):
        absolute({"scorers": {"mine.py:Mine": 1, "./mine.py:Mine": 2}})


def test_a_scenarios_name_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fill(tmp_path / "a", "a trace").parent)
    assert Scenario.load({"name": "mine.py:Mine", "workload": WORKLOAD}).resolved()["name"] == "mine.py:Mine"


def test_a_trace_may_be_a_folder_and_its_files_are_in_the_key(tmp_path: Path, away: Path) -> None:
    session = {
        "id": "s",
        "block_size": 64,
        "hash_id_scope": "local",
        "tool_tokens": 0,
        "system_tokens": 0,
        "models": [],
    }
    request = {"t": 0, "type": "n", "model": "m", "in": 64, "out": 5, "hash_ids": [1], "think_time": 0}
    folder = tmp_path / "a" / "sessions"
    folder.mkdir(parents=True)
    (folder / "one.json").write_text(json.dumps(session | {"requests": [request]}))
    scenario = {"workload": {"trace": {"path": "sessions", "format": "weka", "starts": {"users": 1}}}}
    (tmp_path / "a" / "s.yaml").write_text(yaml.safe_dump(scenario))
    loaded = Scenario.load(tmp_path / "a" / "s.yaml")
    assert len(list(loaded.workload.plan(0))) == 1
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert Scenario.load(tmp_path / "b" / "s.yaml").key() == loaded.key()
    (folder / "two.json").write_text(json.dumps(session | {"id": "t", "requests": [request]}))
    assert Scenario.load(tmp_path / "a" / "s.yaml").key() != Scenario.load(tmp_path / "b" / "s.yaml").key()


def test_measured_files_of_a_cluster_are_found_beside_it_and_only_their_bytes_count(tmp_path: Path) -> None:
    """A profile, a table of steps and a model's shape: what is run changes with what is in them, not with where."""
    profile = Path(str(resources.files("headway") / "presets" / "profiles" / "h200.yaml")).read_text(encoding="utf-8")
    shape = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 900}
    steps = "batch,decode_kv_tokens,n_prefill,new_tokens,past_context,median_ms\n1,9,0,0,,5\n2,9,0,0,,5\n2,99,0,0,,5\n"
    steps += "0,0,1,8,0,9\n0,0,1,16,0,9\n0,0,1,16,99,9\n"
    clusters = {
        "mine.yaml": (profile, {"gpu": "h200", "latency": {"model": "hardware", "profile": "mine.yaml"}}),
        "steps.csv": (steps, {"latency": {"model": "table", "file": "steps.csv"}}),
        "config.json": (json.dumps({**shape, "intermediate_size": 900}), {"model": "config.json"}),
    }
    for name, (text, cluster) in clusters.items():
        keys = []
        for folder in ("one", "other"):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / name).write_text(text, encoding="utf-8")
            file = tmp_path / folder / "scenario.yaml"
            document = {"workload": {"requests": 1, "rate": "1/s"}, "cluster": {**cluster, "kv": {"gpu_blocks": 99}}}
            file.write_text(yaml.safe_dump(document), encoding="utf-8")
            keys.append(Scenario.load(file).key())
        (tmp_path / "other" / name).write_text(text.replace("9", "8"), encoding="utf-8")
        assert keys[0] == keys[1] != Scenario.load(tmp_path / "other" / "scenario.yaml").key(), name
