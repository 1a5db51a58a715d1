"""The demonstration: the default scenario, the policies that run on it, and a table that fits."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest
from rich.console import Console

import headway as package
from conftest import Run
from headway import HeadwayError
from headway.experiment.compare import Comparison
from headway.experiment.contenders import ALL, ASIDE, contenders
from headway.policies import registry
from headway.report.comparison import FIGURES as PAIRED
from headway.report.comparison import comparison_report
from headway.report.terminal import LONGEST, least_width, words, wrap
from headway.results.ranking import value
from headway.scenario.scenario import DEFAULT, STAGES, Scenario

FEW = "workload.requests=150"
ALIKE = 0.001  # relative difference below which two rows are alike
FIGURES = ("latency.ttft.mean", "latency.ttft.p99", "latency.tpot.p99", "latency.e2e.mean", "cache.token_hit_ratio")


@pytest.fixture(scope="module")
def demo() -> Comparison:
    return package.compare(overrides=FEW, workers=1)


def test_the_default_scenario_has_conversations_behind_shared_prompts() -> None:
    result = package.preview(requests=1200)
    assert result["sessions"]["turns"]["mean"] > 3
    assert result["ideal_reuse"]["token_hit_ratio"] > 0.8
    assert Scenario.load(DEFAULT).resolved()["workload"]["prefix"]["groups"] == 200


def test_ten_policies_run_and_each_gives_a_row_of_its_own(demo: Comparison) -> None:
    assert len(demo.ranked) == 10 and not demo.aside
    assert not set(demo.oracles)
    rows = {name: [value(summary, path) or 0.0 for path in FIGURES] for name, summary in demo.ranked}
    for (name, row), (other, its) in combinations(rows.items(), 2):
        apart = max(abs(mine / other_value - 1) for mine, other_value in zip(row, its, strict=True))
        assert apart > ALIKE, f"{name} and {other} give the same row"


def test_policies_that_know_sessions_and_prefixes_hit_more_than_those_that_do_not(demo: Comparison) -> None:
    hits = {name: summary["cache"]["token_hit_ratio"] for name, summary in demo.ranked}
    blind = max(hits.pop(name) for name in ("round-robin", "least-loaded", "power-of-two"))
    assert min(hits.values()) > blind + 0.05


@pytest.mark.parametrize("stage", STAGES)
def test_what_runs_by_default_is_what_the_policies_declare(stage: str) -> None:
    scenario = Scenario.load({"workload": {"requests": 1, "rate": "1/s"}})
    usual = {each.name for each in contenders(scenario, None, stage)}
    kinds = {entry.name: entry.kind for entry in registry.entries(stage) if not entry.name.endswith("pair")}
    every = contenders(scenario, ALL, stage)
    assert {each.name for each in every} == {name for name in kinds if name in registry.names(stage)}
    assert usual == {each.name for each in every if kinds[each.name] == "policy"}
    assert {each.name: each.aside for each in every if each.aside} == {
        name: kind for name, kind in kinds.items() if kind in ASIDE
    }


def test_the_scenarios_own_policy_always_runs_and_is_never_aside() -> None:
    scenario = Scenario.load({"workload": {"requests": 1, "rate": "1/s"}, "policies": {"routing": "sticky"}})
    assert contenders(scenario)[0].name == "sticky"
    assert {each.name: each.aside for each in contenders(scenario, ALL)}["sticky"] is None


def test_templates_and_controls_come_last_are_marked_and_never_the_best(headway: Run) -> None:
    process = headway("compare", "--all", "--set", "workload.requests=40", "--set", "workload.prefix.tokens=512")
    assert process.returncode == 0, process.stderr
    rows = [line for line in process.stdout.splitlines() if re.match(r" [▸tc ] [a-z-]+ +[\d,.]+ ", line)]
    marks = [row[1] for row in rows]
    assert len(rows) == 24 and marks[0] == "▸" and set(marks[1:19]) == {" "}
    assert marks[19:] == ["t", "t", "c", "c", "c"]
    assert {row.split()[1] for row in rows[21:]} == {"always-busiest", "load-only", "sticky"}
    assert "t template: constants to search; c control: shows one effect, not for production\n" in process.stdout
    assert "--all" not in process.stdout


def test_named_policies_are_ranked_together_whatever_they_are() -> None:
    result = package.compare(policies="always-busiest,load-only,lmetric", overrides=FEW, workers=1)
    assert not result.aside and result.ranked[-1][0] == "always-busiest"
    assert {each["kind"] for each in result.summary()["policies"]} == {"policy"}


def test_a_study_of_all_policies_keeps_what_stands_aside(headway: Run, tmp_path: Path) -> None:
    few = ("--set", "workload.requests=20", "--stage", "admission", "-o", str(tmp_path / "runs"))
    process = headway("compare", "--all", "--json", *few)
    kinds = {each["name"]: each["kind"] for each in json.loads(process.stdout)["policies"]}
    assert list(kinds)[-2:] == ["load-shedding", "never"]
    assert {name for name, kind in kinds.items() if kind != "policy"} == {"load-shedding", "never"}
    assert headway("report", str(tmp_path / "runs")).returncode == 0
    page = (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr><td>(.*?)</td>", page.partition("Headline</h2>")[2].partition("</table>")[0])
    names = [re.sub(r"<.*?>", "", row) for row in rows]
    assert names[-2:] == ["load-shedding (template)", "never (control)"]


def test_the_default_says_how_many_more_there_are(headway: Run) -> None:
    process = headway("compare", "--stage", "priority", "--set", "workload.requests=10")
    assert process.stdout.endswith("1 more with --all: variants, templates and controls.\n")


def test_all_and_named_policies_exclude_each_other(headway: Run) -> None:
    process = headway("compare", "--all", "--policies", "lmetric")
    assert process.returncode == 2 and process.stderr.startswith("headway: --all: cannot be combined with --policies.")


def test_an_unknown_kind_of_policy_is_told() -> None:
    with pytest.raises(HeadwayError, match=r"^Own: 'controls' is not a kind of policy\. Did you mean 'control'\?"):

        @registry.policy("routing", "own", kind="controls")  # type: ignore[arg-type]
        class Own:
            pass


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("stage", STAGES)
def test_no_table_breaks_a_name_of_the_catalogue(stage: str, columns: int, demo: Comparison) -> None:
    summary = demo.ranked[-1][1]
    huge = {**summary, "latency": {**summary["latency"], "e2e": {**summary["latency"]["e2e"], "mean": 1.2e9}}}
    names = registry.names(stage)
    row = {"mean": 1e6, "delta": 1e6, "low": 0.5e6, "high": 1.5e6, "word": "worse"}
    paired = [{"policy": name, "figure": path, **row} for name in names for path, _ in PAIRED]
    result = Comparison(
        demo.scenario,
        [(name, huge) for name in names],
        "",
        (),
        None,
        stage,
        2,
        names[0],
        paired,
        {},
        {names[-1]: "control"},
    )
    console = Console(width=columns, color_system=None)
    with console.capture() as captured:
        console.print(comparison_report(result))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= columns
    ranked, _, differences = captured.get().partition("Differences from")
    assert [name for name in names if not re.search(rf"^ [▸c ] {name} ", ranked, re.M)] == []
    assert [name for name in names[1:] if not re.search(rf"^ {name} ", differences, re.M)] == []


def test_a_narrow_table_keeps_the_figure_that_decides(headway: Run) -> None:
    few = ("compare", "--set", "workload.requests=10", "--policies", "random,weighted-affinity-routing")
    sentence = headway(*few, COLUMNS="40").stdout
    assert "goodput" in sentence and "TTFT ms" not in sentence
    assert re.search(r"^ [▸ ] weighted-affinity-routing +[\d.]+ %$", sentence, re.M)
    assert "Jain" in headway(*few, "--by", "balance.jain", COLUMNS="40").stdout


@pytest.mark.parametrize(
    ("label", "width", "lines"),
    [
        ("weighted(prefix-affinity:9, queue-depth:1)", 28, ["weighted(prefix-affinity:9,", "queue-depth:1)"]),
        ("target-utilization(signal=batch)", 20, ["target-utilization", "(signal=batch)"]),
        ("patient.py:PatientPrefix(patience=2)", 20, ["patient.py:", "PatientPrefix", "(patience=2)"]),
        ("deadline(targets=realtime:1s batch:1s)", 20, ["deadline", "(targets=realtime:1s", "batch:1s)"]),
        ("concurrency(scale_down_delay_s=120)", 20, ["concurrency", "(scale_down_delay_s=", "120)"]),
        ("weighted (oracle)", 12, ["weighted", "(oracle)"]),
        ("lmetric", 3, ["lmetric"]),
    ],
)
def test_a_label_breaks_between_its_words(label: str, width: int, lines: list[str]) -> None:
    assert wrap(label, width).split("\n") == lines
    assert "".join(words(label)) == label


def test_a_column_of_labels_is_as_wide_as_their_longest_name() -> None:
    assert least_width(["weighted-affinity-routing", "lmetric"], 80) == 25
    assert least_width(["patient.py:PatientPrefix(patience=2)"], 80) == len("PatientPrefix")
    assert least_width(["x" * 99], 80) == LONGEST
    assert least_width(["x" * 99], 40) == 25
    assert least_width([], 80) == 1
