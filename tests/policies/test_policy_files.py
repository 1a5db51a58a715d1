"""Policies in files: one loader for bundles and routing profiles, wherever a scenario is chosen; and their check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import headway
from conftest import ROOT, Run
from headway.errors import HeadwayError
from headway.experiment.contenders import contenders
from headway.policies.bundle import Bundle
from headway.scenario import overrides
from headway.scenario.scenario import Scenario, load_data, validate

RULE = (
    "weight = parameter(1, 0, 2)\n\n\ndef score(request, instance, cluster):\n    return -weight * instance.inflight\n"
)
SCENARIO: dict[str, Any] = {
    "name": "s",
    "workload": {"requests": 30, "rate": "30/s", "prompt_tokens": 100, "output_tokens": 20},
    "cluster": {"instances": 3, "latency": {"model": "fixed"}},
    "policies": {"routing": "random", "scheduler": "sjf", "flow": "bands"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCENARIO))
    (tmp_path / "rule.py").write_text(RULE)
    Bundle.of(routing={"name": "code", "source": RULE}, priority="by-class").write(tmp_path / "best.yaml")
    (tmp_path / "old.yaml").write_text("routing-policy: weighted\nrouting-scorers: {queue-depth: 1}\n")
    return tmp_path


def test_a_bundle_replaces_the_policies_of_its_five_stages(folder: Path) -> None:
    found = overrides.choose_policies(SCENARIO, config=folder / "best.yaml")["policies"]
    assert found == {**Bundle.read(folder / "best.yaml").policies, "flow": "bands"}
    assert found["scheduler"] == "fcfs"


def test_options_win_over_a_bundle(folder: Path) -> None:
    found = overrides.choose_policies(SCENARIO, "lmetric", config=folder / "best.yaml")["policies"]
    assert found["routing"] == {"name": "lmetric"} and found["priority"] == "by-class"
    weights = overrides.choose_policies(SCENARIO, scorers="queue-depth:1", config=folder / "best.yaml")["policies"]
    assert weights["routing"]["name"] == "weighted"


@pytest.mark.parametrize("option", ["--policy", "--policy-config"])
@pytest.mark.parametrize("file", ["best.yaml", "old.yaml"])
def test_both_names_of_the_option_take_both_forms(option: str, file: str, folder: Path, headway: Run) -> None:
    done = headway("run", "s.yaml", option, file, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    routing = json.loads(done.stdout)["run"]["policies"]["routing"]
    assert routing == ("code" if file == "best.yaml" else "weighted")


@pytest.mark.parametrize("verb", ["sweep", "plan", "workload preview"])
def test_every_verb_that_takes_a_scenario_takes_a_bundle(verb: str, folder: Path, headway: Run) -> None:
    more = {
        "sweep": ("--vary", "workload.rate=10,20"),
        "plan": ("--seeds", "1", "--points", "0", "--slo", "ttft_p99<=9s"),
    }
    done = headway(*verb.split(), "s.yaml", "--policy", "best.yaml", *more.get(verb, ()), "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_a_mistake_in_a_bundle_is_told_with_its_file(folder: Path, headway: Run) -> None:
    (folder / "bad.yaml").write_text("format: 1\npolicies: {routing: {type: code, source: 'import os'}}\n")
    done = headway("run", "s.yaml", "--policy", "bad.yaml", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith("headway: bad.yaml: policies.routing: code line 1: import: ")


def test_a_comparison_takes_bundles_beside_names(folder: Path) -> None:
    bundle = Bundle.read(folder / "best.yaml")
    named = headway.compare(SCENARIO, ["round-robin", str(folder / "best.yaml"), bundle], workers=1)
    assert sorted(name for name, _ in named.ranked) == ["bundle", "bundle#2", "round-robin"]
    alone = headway.simulate(SCENARIO, **bundle.policies).summary()
    assert named["bundle"] == named["bundle#2"] == alone
    text = headway.compare(SCENARIO, f"round-robin,{folder / 'best.yaml'}", seeds=2, workers=2)
    assert text.baseline == "round-robin" and text.runs["bundle"][0] == alone
    other = headway.compare(SCENARIO, [bundle, "fcfs"], stage="scheduler", workers=1)
    assert other["bundle"] == alone


def test_a_bundle_has_no_flow_control_to_compare(folder: Path) -> None:
    with pytest.raises(HeadwayError, match="the bundle 'bundle' has no policy of stage flow"):
        headway.compare(SCENARIO, str(folder / "best.yaml"), stage="flow")


def test_code_and_trees_have_short_labels() -> None:
    specs = [
        {"name": "code", "source": RULE},
        {"name": "code", "source": RULE, "parameters": {"weight": 2}},
        {"name": "tree", "tree": {"if": "True", "then": 1, "else": 2}},
    ]
    labels = [one.name for one in contenders(Scenario.load(SCENARIO), specs)]
    assert len(set(labels)) == 3 and all(len(label) < 40 and "\n" not in label for label in labels)
    assert labels[1] == labels[0].replace(")", ", parameters=weight:2)")


def test_the_key_of_a_run_has_the_bytes_of_its_code_and_not_their_place(folder: Path) -> None:
    def key(file: Path, routing: Any) -> str:
        file.write_text(yaml.safe_dump({**SCENARIO, "policies": {"routing": routing}}))
        return validate(load_data(str(file))).key()

    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.py").write_text(RULE)
    first = key(folder / "a.yaml", {"name": "code", "path": "rule.py"})
    assert key(elsewhere / "a.yaml", {"name": "code", "path": "mine.py"}) == first
    (folder / "rule.py").write_text(RULE.replace("-weight", "weight"))
    assert key(folder / "a.yaml", {"name": "code", "path": "rule.py"}) != first


def test_a_source_is_a_text_whatever_it_looks_like() -> None:
    source = f'"""As in rule.py:Class, {"long " * 1000}"""\n{RULE}'
    scenario = Scenario.load({**SCENARIO, "policies": {"routing": {"name": "code", "source": source}}})
    assert scenario.resolved()["policies"]["routing"]["source"] == source
    assert len(scenario.key()) == 16


# --- headway policy check ------------------------------------------------------------------------------------------


def test_a_policy_that_is_right_is_told_what_it_reads(folder: Path, headway: Run) -> None:
    done = headway("policy", "check", "rule.py", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ok"] and found["rejections"] == [] and found["bundle"] is None
    (one,) = found["policies"]
    assert one["stage"] == "routing" and one["source"] == RULE
    assert one["signals"] == {"exact": ["inflight"], "reported": []}
    assert one["parameters"] == [{"name": "weight", "value": 1, "low": 0, "high": 2}]
    assert one["complexity"] > 5
    text = headway("policy", "check", "rule.py", cwd=folder).stdout
    assert "weight 1 (0 to 2)" in text and f"{one['complexity']} nodes of syntax" in text


def test_each_rejection_is_a_line_with_its_place(folder: Path, headway: Run) -> None:
    (folder / "bad.py").write_text("def score(request, instance, cluster):\n    import os\n    return open('x')\n")
    done = headway("policy", "check", "bad.py", cwd=folder)
    assert done.returncode == 2
    assert done.stdout.splitlines() == ["bad.py line 2: import: imports are not allowed; library functions need none"]
    told = json.loads(headway("policy", "check", "bad.py", "--json", cwd=folder).stdout)
    assert not told["ok"]
    assert {key: told["rejections"][0][key] for key in ("line", "construct")} == {"line": 2, "construct": "import"}


def test_a_bundle_is_checked_stage_by_stage(folder: Path, headway: Run) -> None:
    document = {
        "format": 1,
        "policies": {
            "routing": {"type": "tree", "tree": {"if": "True", "then": 1, "else": {"value": "open(1)"}}},
            "scheduler": {"type": "parameters", "template": "fifo"},
            "priority": {"type": "tree", "tree": {"if": "1 +", "then": 1, "else": 2}},
            "admission": {"type": "code", "source": "def admit(request, cluster):\n    return request.id\n"},
        },
    }
    (folder / "bad.yaml").write_text(yaml.safe_dump(document))
    done = headway("policy", "check", "bad.yaml", cwd=folder)
    assert done.returncode == 2
    starts = [
        "bad.yaml policies.admission line 2: .id: ",
        "bad.yaml policies.priority: tree.if: '1 +' is not an expression",
        "bad.yaml policies.routing: tree.else.value: open: ",
        "bad.yaml policies.scheduler: no scheduler is called 'fifo'.",
    ]
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and all(line.startswith(start) for line, start in zip(lines, starts, strict=True))
    good = headway("policy", "check", "best.yaml", cwd=folder)
    assert good.returncode == 0 and Bundle.read(folder / "best.yaml").id in good.stdout


def test_the_stage_is_found_or_asked_for(folder: Path, headway: Run) -> None:
    for stage, name in (("routing", "score"), ("scaling", "scale")):
        arguments = "request, instance, cluster" if stage == "routing" else "pool"
        (folder / "one.py").write_text(f"def {name}({arguments}):\n    return 1\n")
        assert headway_stage(headway, folder, "one.py") == stage
    (folder / "one.py").write_text("x = 1\n")
    done = headway("policy", "check", "one.py", cwd=folder)
    assert done.returncode == 2 and "Name the stage with --stage" in done.stderr
    done = headway("policy", "check", "one.py", "--stage", "scaling", cwd=folder)
    assert done.returncode == 2 and "def scale(pool)" in done.stdout
    (folder / "one.py").write_text("def (:\n")
    done = headway("policy", "check", "one.py", cwd=folder)
    assert done.returncode == 2 and done.stdout.startswith("one.py line 1: syntax: ")


def headway_stage(headway: Run, folder: Path, file: str) -> str:
    done = headway("policy", "check", file, "--json", cwd=folder)
    return str(json.loads(done.stdout)["policies"][0]["stage"])


@pytest.mark.parametrize("folder_name", ["cookbook", "templates/routing"])
def test_what_the_package_ships_passes_the_check(folder_name: str) -> None:
    files = sorted((ROOT / "src" / "headway" / "presets" / folder_name).glob("*.py"))
    assert files and all(headway.check_policy(file)["ok"] for file in files)


def test_a_routing_profile_can_be_checked_too(folder: Path) -> None:
    found = headway.check_policy(folder / "old.yaml")
    assert found["ok"] and found["policies"][0]["name"] == "weighted"
