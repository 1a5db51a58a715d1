"""The five B3 controls in one command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Run
from headway.experiment.controls import CONTROLS, FIGURES, Controls, controls
from headway.experiment.run import simulate
from headway.results.ranking import value

Json = dict[str, Any]
NAMES = ["lmetric", "load-only", "sticky", "unified", "capped"]
CLUSTER = {"instances": 3, "latency": {"model": "fixed", "prefill_tokens_per_s": 20_000, "decode_tokens_per_s": 100}}


def heavy(folder: Path) -> Json:
    """Write a Mooncake trace with session ids: two sessions of 30 turns and twenty of 2. Each turn extends the one
    before and arrives 100 ms after its end."""
    rows: list[Json] = []
    fresh = 0
    for session in range(22):
        ids: list[int] = []
        for turn in range(30 if session < 2 else 2):
            ids = [*ids, fresh, fresh + 1]
            fresh += 2
            row = {"timestamp": 200 * session + 500 * turn, "input_length": len(ids) * 512, "output_length": 20}
            rows.append({**row, "hash_ids": ids, "session_id": f"s{session}", **({"delay": 100} if turn else {})})
    rows.sort(key=lambda row: row["timestamp"])
    file = folder / "heavy.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"name": "heavy", "workload": {"trace": {"path": str(file), "format": "mooncake"}}, "cluster": CLUSTER}


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Json:
    return heavy(tmp_path_factory.mktemp("controls"))


@pytest.fixture(scope="module")
def all_controls(scenario: Json) -> Controls:
    return controls(scenario)


def test_the_controls_are_the_catalogues_whatever_the_scenario_says_of_them(
    scenario: Json, all_controls: Controls
) -> None:
    own = {**scenario, "policies": {"routing": {"name": "sticky", "max_sessions": 1}}}
    assert controls(own).summaries == all_controls.summaries


def test_all_five_run_and_only_capped_has_fewer_requests(all_controls: Controls) -> None:
    assert list(all_controls.summaries) == [control.name for control in CONTROLS] == NAMES
    assert all_controls.missing is None
    arrived = [all_controls.summaries[name]["requests"]["arrived"] for name in NAMES]
    assert arrived == [100, 100, 100, 100, 2 * 8 + 20 * 2]


def test_each_is_the_run_that_its_name_says(all_controls: Controls, scenario: Json) -> None:
    for name in NAMES[:4]:
        assert all_controls.summaries[name] == simulate(scenario, routing=name).summary()
    capped = {
        **scenario,
        "workload": {"trace": {**scenario["workload"]["trace"], "transforms": [{"cap": {"max_turns": 8}}]}},
    }
    assert all_controls.summaries["capped"] == simulate(capped, routing="lmetric").summary()


def test_the_number_of_processes_changes_nothing(all_controls: Controls, scenario: Json) -> None:
    assert controls(scenario, workers=1) == all_controls


def test_capping_comes_after_the_transforms_that_a_trace_has_already(scenario: Json) -> None:
    trace = {**scenario["workload"]["trace"], "transforms": [{"cap": {"max_turns": 3}}]}
    actual = controls({**scenario, "workload": {"trace": trace}})
    assert {name: actual.summaries[name]["requests"]["arrived"] for name in NAMES} == dict.fromkeys(
        NAMES, 2 * 3 + 20 * 2
    )


def test_a_difference_is_the_controls_figure_less_lmetrics(all_controls: Controls) -> None:
    document = all_controls.summary()
    assert [each["control"] for each in document["isolated"]] == NAMES[1:]
    for each in document["isolated"]:
        assert list(each["difference"]) == list(FIGURES)
        for path, difference in each["difference"].items():
            its, base = (value(all_controls.summaries[name], path) for name in (each["control"], "lmetric"))
            assert its is not None and base is not None
            assert difference == its - base
    assert document["isolated"][3]["difference"]["requests.completed"] == 56 - 100


def test_the_decision_matrix_is_that_of_the_policies(all_controls: Controls) -> None:
    rows = {each["name"]: each for each in all_controls.summary()["controls"]}
    assert {name: row["session_affinity"] for name, row in rows.items()} == {
        "lmetric": "no", "load-only": "no", "sticky": "yes, hard", "unified": "yes, gated", "capped": "as lmetric"
    }  # fmt: skip
    assert [name for name, row in rows.items() if row["cache_aware"].startswith("no")] == ["load-only", "sticky"]
    assert rows["sticky"]["load_aware"] == "first turn only"
    assert rows["sticky"]["overload_break"] == "never"
    assert [(name, row["routing"]) for name, row in rows.items() if name != row["routing"]] == [("capped", "lmetric")]
    assert [row["max_turns"] for row in rows.values()] == [None] * 4 + [8]


def test_a_generated_workload_has_no_capped_control_and_says_so() -> None:
    actual = controls({"workload": {"requests": 40, "rate": "20/s"}, "cluster": CLUSTER})
    assert list(actual.summaries) == NAMES[:4]
    assert actual.missing is not None and "workload.trace" in actual.missing
    assert actual.summary()["missing"] == actual.missing


def test_a_trace_without_sessions_and_blocks_has_none_either(tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n")
    actual = controls({"workload": {"trace": {"path": str(file)}}, "cluster": CLUSTER})
    assert list(actual.summaries) == NAMES[:4]
    assert actual.missing is not None and "neither sessions nor blocks" in actual.missing


def test_the_command_prints_matrix_figures_and_signed_differences(
    headway: Run, scenario: Json, tmp_path: Path, all_controls: Controls
) -> None:
    file = tmp_path / "heavy.json"
    file.write_text(json.dumps(scenario))
    output = headway("controls", str(file))
    assert (output.returncode, output.stderr) == (0, "")
    assert all(len(line) <= 80 for line in output.stdout.splitlines())
    for name in NAMES:
        assert sum(line.split()[:1] == [name] for line in output.stdout.splitlines()) >= (2 if name == "lmetric" else 4)
    assert "-44" in output.stdout  # completed requests of capped less lmetric's
    printed = headway("controls", str(file), "--json")
    assert json.loads(printed.stdout) == json.loads(json.dumps(all_controls.summary()))


def test_a_routing_policy_cannot_be_given(headway: Run) -> None:
    process = headway("controls", "--routing-policy", "sticky")
    assert process.returncode == 2
    reason = "the controls have their own routing policies; remove the option."
    assert process.stderr == f"headway: --routing-policy: {reason}\n"


@pytest.mark.full
def test_the_controls_run_on_the_weka_sessions(traces: Path) -> None:
    file = traces / "agentic-coding-weka" / "sessions_compact.jsonl.gz"
    trace = {"path": str(file), "limit": 1500, "starts": {"users": 16, "pause": "1s"}}
    actual = controls({"workload": {"trace": trace}, "cluster": {"instances": 4}})
    assert list(actual.summaries) == NAMES
    for name in NAMES[:4]:
        requests = actual.summaries[name]["requests"]
        assert requests["arrived"] + requests["not_issued"] == 1500
    sessions = actual.summaries["lmetric"]["sessions"]["count"]
    assert actual.summaries["capped"]["sessions"]["count"] == sessions
    assert actual.summaries["capped"]["sessions"]["turns"] <= 8
    hits = {name: summary["cache"]["token_hit_ratio"] for name, summary in actual.summaries.items()}
    assert hits["sticky"] > hits["load-only"]
    assert hits["unified"] > hits["lmetric"]
