"""Suites: strict reading, and held-out cases that a search cannot see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from small import document, suite

from conftest import ROOT
from headway.config import documents
from headway.errors import HeadwayError
from headway.evolve import Suite, evaluate
from headway.evolve.suite import DEFAULT
from headway.experiment.run import simulate
from headway.scenario.scenario import Scenario


def test_a_case_is_the_shared_scenario_with_a_workload_and_what_its_entry_changes() -> None:
    entry = {"workload": "plain", "name": "wide", "seeds": [5], "cluster": {"instances": 3}}
    entry |= {"scenario": {"workload": {"rate": "99/s"}, "signals": {"poll_interval": "1s"}}}
    (case,) = suite(train=[entry]).cases("train")
    scenario = Scenario.load(case.document())
    assert (case.name, case.seed, scenario.seed.workload, scenario.seed.jitter) == ("wide", 5, 5, 5)
    assert scenario.cluster.resolved()["instances"] == 3
    assert scenario.cluster.resolved()["kv"]["gpu_blocks"] == 400
    assert scenario.workload.resolved()["rate"] == "99/s"
    assert scenario.workload.resolved()["requests"] == 50
    assert scenario.signals.poll_interval_ps == 10**12


def test_seeds_are_a_list_or_a_range() -> None:
    made = suite()
    assert [case.seed for case in made.cases("train")] == [1, 2, 1]
    assert [case.seed for case in made.cases("held_out")] == [*range(101, 111), 101]


def test_what_a_search_is_handed_holds_nothing_of_the_held_out_cases() -> None:
    made = suite(held_out=[{"workload": {"requests": 31, "rate": "7/s"}, "name": "secret", "seeds": [777]}])
    handed = made.for_search()
    assert b"secret" in msgspec.json.encode(made)
    assert b"secret" not in msgspec.json.encode(handed) and b"777" not in msgspec.json.encode(handed)
    assert handed.cases("train") == made.cases("train") and handed.cases("validation") == made.cases("validation")
    for ask in (handed.cases, lambda part: evaluate({}, handed, part)):
        with pytest.raises(HeadwayError, match="the part 'held_out' has no cases"):
            ask("held_out")


def test_a_suite_travels_as_json() -> None:
    made = suite(cascade={"first": 1, "threshold": -0.2})
    assert msgspec.json.decode(msgspec.json.encode(made), type=Suite) == made


def test_files_are_read_with_what_they_refer_to_beside_them(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("10\n20\n")
    workload = {"requests": 5, "rate": "1/s", "prompt_tokens": {"dist": "empirical", "path": "lengths.csv"}}
    file = tmp_path / "own.yaml"
    data = document(train=[{"workload": workload, "name": "file", "seeds": [1]}])
    del data["name"]
    file.write_text(yaml.safe_dump(data))
    made = Suite.load(file)
    assert made.name == "own"
    assert str(tmp_path / "lengths.csv") in json.dumps(made.cases("train")[0].scenario)


def test_keys_of_cases_differ_with_the_scenario_and_not_with_the_seed() -> None:
    first, second, other = suite().cases("train")
    assert first.key == second.key != other.key


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trian": []}, "suite: trian: there is no such key. Did you mean 'train'?"),
        ({"train": []}, "the part 'train' has no cases"),
        ({"train": [{"workload": "plain", "seeds": [2**63]}]}, "whole numbers below 2^63, or a range"),
        ({"train": {}}, "train: expected a list of {workload, seeds}"),
        (
            {"train": [{"workload": "plane", "seeds": [1]}]},
            "train[0].workload: 'plane' is not under 'workloads'. Did you mean",
        ),
        ({"train": [{"workload": "plain"}]}, "train[0]: 'seeds' is missing"),
        (
            {"train": [{"workload": "plain", "seeds": "9..1"}]},
            "train[0].seeds: expected a list of 1 to 1,000 whole numbers",
        ),
        ({"train": [{"workload": "plain", "seeds": [1.5]}]}, "train[0].seeds: expected"),
        ({"train": [{"workload": "plain", "seeds": [1, 1]}]}, "train[0]: plain, seed 1 is listed twice"),
        ({"train": [{"workload": {"requests": 5}, "seeds": [1]}]}, "train[0].name: is missing"),
        ({"train": [{"workload": "plain", "seeds": [1], "cluster": {"instancs": 3}}]}, "train[0]: cluster.instancs"),
        ({"held_out": [{"workload": "plain", "seeds": [1]}]}, "held_out: plain, seed 1 is also a case of 'train'"),
        ({"scenario": {"policies": {}}}, "scenario.policies: only cases and candidates may set this section"),
        (
            {"train": [{"workload": "plain", "seeds": [1], "scenario": {"policies": {}}}]},
            "train[0].scenario.policies: only cases and candidates may set this section",
        ),
        ({"baseline": {"routing": "nobody"}}, "baseline: policies.routing: "),
        ({"baseline": "lmetric"}, "baseline: policies: expected a mapping of stages to policies, got 'lmetric'"),
        ({"baseline": {"rooting": "random"}}, "baseline: policies.rooting: there is no such stage"),
        (
            {"cascade": {"first": 3, "threshold": 0}},
            "cascade.first: must be less than 3, the number of train cases, got 3",
        ),
        ({"cascade": {"first": 1}}, "cascade: 'threshold' is missing"),
        ({"deadline": "0s"}, "deadline: must be greater than zero"),
    ],
)
def test_a_mistake_is_told_with_its_place(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        suite(**changes)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_trace_is_one_case_whatever_the_seed() -> None:
    trace = {"trace": {"format": "mooncake", "path": str(ROOT / "examples" / "05_trace.jsonl")}}
    later = {"trace": {**trace["trace"], "transforms": [{"slice": {"start": "1s"}}]}}
    parts = {"train": [{"workload": "all", "seeds": [1]}], "validation": []}
    with pytest.raises(HeadwayError, match=r"held_out: all, seed 2 is also a case of 'train'\. Use another slice"):
        suite(workloads={"all": trace}, **parts, held_out=[{"workload": "all", "seeds": [2]}])
    suite(workloads={"all": trace, "later": later}, **parts, held_out=[{"workload": "later", "seeds": [1]}])


def test_a_suite_that_is_not_there_is_told_with_what_may_have_been_meant() -> None:
    with pytest.raises(HeadwayError, match=r"no preset has this name. Did you mean 'routing-2026-1[12]'\?"):
        Suite.load("routing-2026-10")


def windows(**changes: int) -> dict[str, Any]:
    trace = {"trace": {"format": "mooncake", "path": str(ROOT / "examples" / "05_trace.jsonl")}}
    keys = {"first": 4, "requests": 20, "windows": 3, "lead_in": 4, "every": 30, **changes}
    return {"workloads": {"all": trace}, "train": [{"workload": "all", "seeds": keys}], "validation": []}


def test_windows_of_a_trace_are_replicates_whose_lead_in_does_not_count() -> None:
    cases = suite(**windows(), held_out=[]).cases("train")
    assert [(case.name, case.seed) for case in cases] == [("all", 0), ("all", 1), ("all", 2)]
    slices = [case.scenario["workload"]["trace"]["transforms"] for case in cases]
    assert slices == [[{"slice": {"requests": [start, start + 24]}}] for start in (0, 30, 60)]
    alone = simulate(cases[1].document(), overrides="warmup=0", progress=False)
    result = simulate(cases[1].document(), progress=False)
    assert list(result.requests["finished_ps"]) == list(alone.requests["finished_ps"])
    assert (result.summary()["requests"]["arrived"], len(result.requests["finished_ps"])) == (24, 24)
    assert result.summary()["latency"] != alone.summary()["latency"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"every": 19}, "train[0].seeds.every: must be at least 20, so that windows do not overlap"),
        ({"lead_in": 5}, "train[0].seeds.first: must be at least 5, so that the lead-in has its requests"),
        ({"windows": 0}, "train[0].seeds.windows"),
    ],
)
def test_windows_that_cannot_be_are_refused(changes: dict[str, int], words: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        suite(**windows(**changes), held_out=[])
    assert words in str(caught.value)
    entry = {"workload": "plain", "seeds": {"requests": 5, "windows": 2}}
    with pytest.raises(HeadwayError, match="only a trace has windows"):
        suite(train=[entry])


def test_the_embedded_suite_has_ten_paired_held_out_seeds_and_workloads_of_its_own() -> None:
    made = Suite.load()
    assert made.name == DEFAULT in documents.presets("suites")
    seen = {case.name for part in ("train", "validation") for case in made.cases(part)}
    held: dict[str, list[int]] = {}
    for case in made.cases("held_out"):
        held.setdefault(case.name, []).append(case.seed)
    assert all(seeds == list(range(101, 111)) for seeds in held.values())
    assert set(held) - seen == {"agents", "documents", "reasoning", "tenants-on-eight"}
    for part in ("train", "validation", "held_out"):
        for case in made.cases(part):
            assert case.scenario["cluster"]["latency"] == {"model": "hardware", "profile": "h200", "host": "500us"}
