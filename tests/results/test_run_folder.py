from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from recorders import facts, fleet, record
from test_request_table import ROWS

from conftest import ROOT, Run
from headway import __version__
from headway.errors import HeadwayError, InvariantError
from headway.experiment.run import simulate
from headway.results import store
from headway.results.findings import find
from headway.results.result import Result

SCENARIO = {"seed": {"workload": 7, "simulation": 7, "jitter": 7}, "workload": {"rate": "40/s"}, "note": "µ"}
SCENARIO |= {"cluster": {}, "policies": {}, "warmup": 0}


def result() -> Result:
    rows = [{**ROWS[0], "output_tokens": 3}, ROWS[1]]
    return Result.of(SCENARIO, record(rows), fleet(2), facts(policy_metrics={"spills": 2.0}))


def test_a_saved_run_reads_back_equal(tmp_path: Path) -> None:
    built = result()
    built.save(tmp_path / "deep" / "run")
    again = Result.load(tmp_path / "deep" / "run")
    assert again == built
    assert again.to_json() == built.to_json()


def test_a_run_of_a_relative_trace_reads_back_equal_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n")
    (tmp_path / "s.yaml").write_text("workload: {trace: {path: t.csv}}\ncluster: {instances: 1}\n")
    monkeypatch.chdir(tmp_path)
    for scenario in ("s.yaml", {"workload": {"trace": {"path": "t.csv"}}, "cluster": {"instances": 1}}):
        built = simulate(scenario)
        built.save("run")
        assert Result.load("run") == built
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Path("run").rename(elsewhere / "moved")
    monkeypatch.chdir(elsewhere)
    moved = Result.load("moved")
    assert moved == built
    assert simulate(moved.scenario).to_json() == simulate("moved/scenario.yaml").to_json() == built.to_json()


def test_the_folder_is_plain_and_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        result().save(folder)
    files = sorted(path.name for path in folders[0].iterdir())
    assert [name for name in files if name != "findings.jsonl"] == [
        "manifest.json",
        "requests.jsonl",
        "scenario.yaml",
        "summary.json",
    ]
    assert all((folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() for name in files)
    assert yaml.safe_load((folders[0] / "scenario.yaml").read_text("utf-8")) == SCENARIO
    assert json.loads((folders[0] / "summary.json").read_text()) == result().summary()
    lines = (folders[0] / "requests.jsonl").read_text().splitlines()
    unsaid = {"loaded_tokens": 0, "prefill_instance": -1, "handed_ps": -1, "transfer_ps": -1, "transferred_ps": -1}
    unsaid |= {"retries": 0, "redirects": 0, "priority": 0.0, "loaded_from": "", "preempted_ps": 0, "loading_ps": 0}
    unsaid |= {"ready_ps": 0, "interrupted_ps": 0, "joined_ps": -1}
    assert [{**json.loads(line), **unsaid} for line in lines] == list(result().requests.rows())
    manifest = json.loads((folders[0] / "manifest.json").read_text())
    assert (manifest["format"], manifest["seed"]) == (1, SCENARIO["seed"])


def test_a_run_folder_is_written_anew_and_what_else_it_holds_is_left(tmp_path: Path) -> None:
    result().save(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "summary.json").write_text("{}")
    result().save(tmp_path)
    assert Result.load(tmp_path) == result()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_with_other_content_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text("seed: 1\n")
    with pytest.raises(HeadwayError, match="not a run folder; use a new or an empty folder"):
        result().save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["scenario.yaml"]


def test_a_path_that_cannot_be_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadwayError, match="is a file"):
        result().save(tmp_path / "file")
    with pytest.raises(HeadwayError, match=r"cannot be written: .*file is not a folder"):
        result().save(tmp_path / "file" / "run")


def test_whether_a_run_can_be_written_is_known_before_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, wrong in ((tmp_path, "contains other files"), (tmp_path / "file", "is a file")):
        with pytest.raises(HeadwayError, match=wrong):
            store.check(folder)
    store.check(tmp_path / "deep" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    result().save(tmp_path / "run")
    store.check(tmp_path / "run")
    (tmp_path / "run" / "manifest.json").write_text("not a run's")
    with pytest.raises(HeadwayError, match="not a run folder"):
        store.check(tmp_path / "run")


def test_the_manifest_has_the_version_of_the_package(tmp_path: Path) -> None:
    result().save(tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text())["headway"] == __version__
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in settings["project"], "it stands in one place"
    assert f'__version__ = "{__version__}"' in (ROOT / settings["tool"]["hatch"]["version"]["path"]).read_text()


def test_a_folder_that_is_not_whole_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"manifest\.json is missing"):
        Result.load(tmp_path)
    result().save(tmp_path)
    (tmp_path / "requests.jsonl").write_text('{"request": 0}\n')
    with pytest.raises(HeadwayError, match="missing required field"):
        Result.load(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 99, "headway": "9"}')
    with pytest.raises(HeadwayError, match="format 99"):
        Result.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "lines", "told"),
    [
        ("requests.jsonl", 7, "requests.jsonl has 7 requests, but summary.json counts 20; run it again"),
        ("decisions.jsonl", 7, "decisions.jsonl and requests.jsonl are not from the same run; run it again"),
        ("decisions.jsonl", 0, "decisions.jsonl and requests.jsonl are not from the same run; run it again"),
        ("summary.json", 0, "summary.json: Input data was truncated"),
        ("scenario.yaml", 1, "scenario.yaml lacks keys that every run writes"),
    ],
)
def test_a_file_that_was_cut_short_is_told(tmp_path: Path, file: str, lines: int, told: str) -> None:
    scenario = {"workload": {"requests": 20, "rate": "9/s"}, "cluster": {"instances": 2}}
    simulate(scenario, trace="decisions").save(tmp_path)
    whole = (tmp_path / file).read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / file).write_text("".join(whole[:lines]), encoding="utf-8")
    with pytest.raises(HeadwayError, match=re.escape(told)):
        Result.load(tmp_path)


def test_what_is_no_folder_of_one_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="no such folder"):
        Result.load(tmp_path / "nowhere")
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(HeadwayError, match="contains several runs; name the folder of one of them"):
        Result.load(tmp_path)


@pytest.mark.parametrize("above", ["", "0001"])
def test_the_folder_above_runs_names_one_of_them(tmp_path: Path, headway: Run, above: str) -> None:
    """As a gateway's records lie: a folder a process, and in it one a stretch."""
    run = tmp_path / "0001" / "000000000"
    simulate({"workload": {"requests": 2, "rate": "9/s"}}).save(run)
    completed = headway("report", str(tmp_path / above))
    assert completed.returncode == 2 and f"name one of them, such as {run}." in " ".join(completed.stderr.split())


def test_a_run_that_is_read_has_the_same_findings(tmp_path: Path) -> None:
    workload = {"requests": 300, "rate": "60/s", "prompt_tokens": 3000, "output_tokens": 200}
    early = {"workload": workload, "cluster": {"instances": 1}, "slo": {"ttft": "100ms"}, "horizon": "3s"}
    for horizon in ("3s", "1us"):  # nothing is done yet, nobody has come yet
        built = simulate({**early, "horizon": horizon})
        built.save(tmp_path)
        assert find(Result.load(tmp_path)) == built.findings()


def test_a_run_that_breaks_an_invariant_gives_no_result() -> None:
    with pytest.raises(InvariantError):
        Result.of({}, record([{**ROWS[0], "output_tokens": 0}]), fleet(2), facts())


def test_words_are_written_as_pyyaml_writes_them() -> None:
    words = [
        "a",
        "12/s",
        "2026-11",
        "llama-3.1-8b",
        "a...",
        "a---",
        "0x1f",
        "1e3",
        "1_000",
        "null",
        "yes",
        "007",
        "a./-",
    ]
    others = ["", "-", "---", "...", "a b", "a:", "a: b", "#a", "a #b", "é", "[a", "a,b", "_", "a\n", "\t", "0\n"]
    document = {text: [text, {text: text}] for text in (*words, *others)}
    plain = yaml.dump(document, Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=True)
    assert yaml.dump(document, Dumper=store._Dumper, sort_keys=False, allow_unicode=True) == plain
    assert yaml.safe_load(plain) == document
