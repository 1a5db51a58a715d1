"""Sweeps: the grid, errors before the first run, and no run twice."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

import headway
from command_line import interruptible
from conftest import COMMAND, SOURCE, Run
from headway import HeadwayError
from headway.display.progress import SweepProgress
from headway.experiment import sweep as module
from headway.experiment.grid import axes, points
from headway.experiment.paired import HEADLINE
from headway.results import store, study
from headway.results.ranking import value
from headway.scenario.scenario import Scenario
from waiting import until

SCENARIO: dict[str, Any] = {
    "name": "small",
    "seed": 5,
    "workload": {"requests": 30, "rate": "20/s", "prompt_tokens": 200, "output_tokens": 10},
    "cluster": {"instances": 2, "kv": {"gpu_blocks": 400}, "latency": {"model": "fixed"}},
    "policies": {"routing": "round-robin"},
    "slo": {"ttft": "200ms", "tpot": "50ms"},
}
GRID = ["workload.rate=20,200", "policies.routing=round-robin,least-loaded"]


def values(*vary: str, **changed: Any) -> list[Any]:
    return axes(vary, Scenario.load({**SCENARIO, **changed}))[-1].values


class Counted:
    """Counts the simulations of a sweep, and can end it at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int | None = None) -> None:
        self.runs: list[dict[str, Any]] = []
        self.last = last
        self.simulate = headway.simulate
        monkeypatch.setattr(module, "simulate", self)

    def __call__(self, resolved: dict[str, Any], trace: str, progress: bool) -> headway.Result:
        if len(self.runs) == self.last:
            raise KeyboardInterrupt
        self.runs.append(resolved)
        return self.simulate(resolved, trace=trace, progress=progress)


# --- what is varied ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("workload.rate=20/s..80/s:20/s", ["20/s", "40/s", "60/s", "80/s"]),
        ("workload.rate=20..80:30", ["20/s", "50/s", "80/s"]),  # with the scenario's own unit
        ("workload.rate=20..75:30", ["20/s", "50/s"]),
        ("workload.rate=90/min, 2/s, 3", ["90/min", "2/s", "3/s"]),
        ("workload.rate=1..2:0.25", ["1/s", "1.25/s", "1.5/s", "1.75/s", "2/s"]),
        ("slo.ttft=100ms..300ms:100ms", ["100ms", "200ms", "300ms"]),
        ("slo.ttft=0.1s..0.3s:0.1s", ["0.1s", "0.2s", "0.3s"]),
        ("cluster.instances=1,2,4..8:2", [1, 2, 4, 6, 8]),
        ("cluster.kv.utilization=0.1..0.3:0.1", [0.1, 0.2, 0.3]),
        ("policies.routing=random,{name: weighted, scorers: {queue-depth: 2}}",
         ["random", {"name": "weighted", "scorers": {"queue-depth": 2}}]),
        ("leap=true,false", [True, False]),
        ("workload.prompt_tokens=100,{dist: uniform, min: 1, max: 9}", [100, {"dist": "uniform", "min": 1, "max": 9}]),
    ],
)  # fmt: skip
def test_values_are_ranges_lists_and_mappings(text: str, expected: list[Any]) -> None:
    assert values(text) == expected


def test_a_mapping_of_keys_to_values_is_as_good_as_text() -> None:
    base = Scenario.load(SCENARIO)
    settings = {"workload.rate": [20, "40/s"], "policies.routing": ["random", {"name": "unified"}], "seed": range(2)}
    assert [axis.values for axis in axes(settings, base)] == [["20/s", "40/s"], ["random", {"name": "unified"}], [0, 1]]


def test_a_grid_has_every_combination_the_last_key_fastest() -> None:
    base = Scenario.load(SCENARIO)
    built = points(SCENARIO, axes([*GRID, "cluster.instances=2,3"], base))
    assert [point.label for point in built[:3]] == [
        "rate=20/s, routing=round-robin, instances=2",
        "rate=20/s, routing=round-robin, instances=3",
        "rate=20/s, routing=least-loaded, instances=2",
    ]
    assert len({point.scenario.key() for point in built}) == len(built) == 8
    last = built[-1].scenario.resolved()
    assert (last["workload"]["rate"], last["cluster"]["instances"]) == ("200/s", 3)
    assert last["policies"]["routing"]["name"] == built[-1].policy == "least-loaded"


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ("workload.rte=1,2", "vary workload.rte=1: workload.rte: there is no such key. Did you mean 'rate'?"),
        ("wrkload.rate=1/s", "wrkload: there is no such key. Did you mean 'workload'?"),
        ("policies.routing=random,rond-robin", "no routing policy is called 'rond-robin'. Did you mean 'round-robin'?"),
        ("cluster.instances=2,0", "vary cluster.instances=0: cluster.instances: expected a whole number of at least 1"),
        ("workload.rate=20..80", "vary workload.rate: the range '20..80' has no step; write it as 20..80:STEP."),
        ("workload.rate=80..20:10", "must rise, with a step above 0"),
        ("workload.rate=20..80:0", "must rise, with a step above 0"),
        ("workload.rate=20/s..80/min:10/s", "mixes /s and /min. Use one unit."),
        ("workload.rate=20/s,20", "vary workload.rate: '20/s' appears twice. Remove one."),
        ("workload.rate=", "vary workload.rate: name at least one value"),
        ("workload.rate", "vary workload.rate: write it as key.path=values, as in workload.rate=20..80:10."),
        ("seed=1..1000000:1", "has more than 100,000 values. Use a larger step."),
        ((), "vary: name at least one key and its values"),
        (["seed=1", "seed=2"], "vary seed: is given twice"),
        (["seed=1..1000:1", "warmup=1..1000:1"], "vary: the grid has 1,000,000 points; the limit is 100,000"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(vary: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "simulate", lambda *_, **__: pytest.fail("simulated"))
    with pytest.raises(HeadwayError) as caught:
        headway.sweep(SCENARIO, vary)
    assert message in str(caught.value)


# --- what comes of it -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept() -> headway.Sweep:
    return headway.sweep(SCENARIO, GRID, seeds=2, workers=1)


def test_the_figures_of_a_point_are_means_of_single_runs(swept: headway.Sweep) -> None:
    assert (swept.runs, swept.seeds, len(swept.points)) == (8, 2, 4)
    for point in swept.points:
        changes = [f"{path}={settings}" for path, settings in point.vary.items()]
        alone = [headway.simulate(SCENARIO, overrides=[*changes, f"seed={seed}"]).summary() for seed in (5, 6)]
        assert point.summaries == alone
        for figure, reply in point.figures(HEADLINE).items():
            mean = sum(value(summary, figure) or 0.0 for summary in alone) / 2
            assert reply["mean"] == pytest.approx(mean)
            assert reply["low"] <= reply["mean"] <= reply["high"]
    document = swept.summary()
    assert document["vary"] == {"workload.rate": ["20/s", "200/s"], "policies.routing": ["round-robin", "least-loaded"]}
    assert [point["vary"]["workload.rate"] for point in document["points"]] == ["20/s", "20/s", "200/s", "200/s"]


def test_workers_change_nothing(swept: headway.Sweep) -> None:
    assert headway.sweep(SCENARIO, GRID, seeds=2, workers=2).summary() == swept.summary()


def test_rows_make_a_table(swept: headway.Sweep) -> None:
    columns = swept.columns()
    assert list(columns) == ["workload.rate", "policies.routing", "policy", "slo_holds", *HEADLINE]
    assert columns["policies.routing"] == ["round-robin", "least-loaded"] * 2
    assert columns["latency.ttft.mean"] == [value(point.summary, "latency.ttft.mean") for point in swept.points]
    if find_spec("pandas") is not None:
        assert list(swept.to_pandas()["workload.rate"]) == columns["workload.rate"]
    if find_spec("polars") is not None:
        assert swept.to_polars()["workload.rate"].to_list() == columns["workload.rate"]


def verdict_of(shares: list[float], vary: list[str], monkeypatch: pytest.MonkeyPatch, **changed: Any) -> str:
    """Return the verdict of a sweep whose points have these shares within the SLO."""
    summary = headway.simulate(SCENARIO).summary()
    settings = iter(shares)

    class Told:
        def summary(self) -> dict[str, Any]:
            return {**summary, "slo": {**summary["slo"], "goodput_ratio": next(settings)}}

    monkeypatch.setattr(module, "simulate", lambda resolved, trace, progress: Told())
    return headway.sweep({**SCENARIO, **changed}, vary, workers=1).verdict


def test_the_verdict_says_up_to_which_rate_the_slo_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    # The rate varies slowest: pairs of (round-robin, random), then of three rates.
    shares = [1.0, 0.5, 0.99, 0.99, 0.98, 1.0]
    sentence = verdict_of(shares, ["workload.rate=10..30:10", "policies.routing=round-robin,random"], monkeypatch)
    assert sentence == (
        "The SLO (99 % of the requests within it) holds up to rate 20/s with round-robin and at no tested rate with "
        "random."
    )
    sentence = verdict_of([1.0, 0.995], ["workload.rate=10,20"], monkeypatch)
    assert sentence.endswith("holds up to rate 20/s (the highest tested).")


def test_the_verdict_says_from_how_many_instances_on_the_slo_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = verdict_of([0.2, 1.0, 0.5, 0.99], ["cluster.instances=2,4,6,8"], monkeypatch)
    assert sentence == "The SLO (99 % of the requests within it) holds from 8 instances on."


def test_without_a_load_or_an_slo_the_verdict_names_the_best_point(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = verdict_of([0.8, 0.9], ["policies.routing=round-robin,random"], monkeypatch)
    assert sentence.startswith("routing=random serves this best: 90.0 % within the SLO")
    sentence = verdict_of([1.0, 1.0], ["workload.rate=10,20"], monkeypatch, slo={})
    assert sentence.startswith("rate=10/s and rate=20/s are within 2 % of each other: E2E")


# --- resuming ---------------------------------------------------------------------------------------------------------


def test_a_repeated_sweep_runs_nothing(swept: headway.Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    first = headway.sweep(SCENARIO, GRID, seeds=2, workers=1, output=tmp_path / "s")
    assert (len(counted.runs), first.reused, first.summary()) == (8, 0, swept.summary())
    calls: list[tuple[int, int, int]] = []
    again = headway.sweep(
        SCENARIO, GRID, seeds=2, workers=1, output=tmp_path / "s", progress=lambda *n: calls.append(n)
    )
    assert (len(counted.runs), again.reused, again.summary()) == (8, 8, swept.summary())
    assert calls == [(8, 8, 8)]
    other = [GRID[1], "cluster.instances=2", "workload.rate=20,200,300"]  # the same points and two more
    more = headway.sweep(SCENARIO, other, seeds=3, workers=1, output=tmp_path / "s")
    assert (more.reused, more.runs, len(counted.runs)) == (8, 18, 18)


@pytest.mark.full
def test_two_points_that_are_one_run_have_a_folder_each(tmp_path: Path) -> None:
    both = ["leap=true,false"]
    swept = headway.sweep(SCENARIO, both, seeds=2, workers=2, output=tmp_path / "s")
    single, other = swept.points
    assert single.key == other.key and single.folder != other.folder and single.summaries == other.summaries
    for vary in (both, ["leap=false,true"]):
        again = headway.sweep(SCENARIO, vary, seeds=2, workers=1, output=tmp_path / "s")
        assert again.reused == 4 and {point.folder for point in again.points} == {single.folder, other.folder}


def test_a_study_of_a_sweep_tells_of_every_point(tmp_path: Path) -> None:
    swept = headway.sweep(SCENARIO, GRID, workers=1, output=tmp_path / "s")
    document = study.read(tmp_path / "s")
    assert (document["kind"], document["baseline"], document["paired"], document["stage"]) == (
        "sweep",
        None,
        None,
        "routing",
    )
    assert (document["vary"], document["verdict"]) == (swept.vary, swept.verdict)
    assert [run["label"] for run in document["runs"]] == ["round-robin", "least-loaded"] * 2
    for run, point in zip(document["runs"], swept.points, strict=True):
        assert run["vary"] == point.vary and run["folder"].endswith(point.key)
        assert headway.Result.load(tmp_path / "s" / run["folder"]).summary() == point.summaries[0]
    assert document["runs"][0]["folder"].startswith("rate=20-s,-routing=round-robin-")


@pytest.mark.parametrize("lost", ["summary.json", "requests.jsonl", "manifest.json"])
def test_a_half_written_folder_is_done_again(lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = headway.sweep(SCENARIO, GRID, workers=1, output=tmp_path / "s")
    half = tmp_path / "s" / first.points[2].folder
    (half / lost).unlink()
    shutil.copytree(half, half.with_name(f".{half.name}.part"))
    counted = Counted(monkeypatch)
    again = headway.sweep(SCENARIO, GRID, workers=1, output=tmp_path / "s")
    assert (len(counted.runs), again.reused, again.summary()) == (1, 3, first.summary())
    assert headway.Result.load(half).summary() == first.points[2].summaries[0]
    assert not list((tmp_path / "s").glob(".*"))


def test_what_another_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    removed = subprocess.Popen(["true"])
    removed.wait()
    theirs, left = (tmp_path / f".run.{pid}.part" for pid in (os.getppid(), removed.pid))
    theirs.mkdir()
    left.mkdir()
    study.clear_parts(tmp_path)
    assert theirs.exists() and not left.exists()


def test_another_version_or_another_scenario_is_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headway.sweep(SCENARIO, GRID, workers=1, output=tmp_path / "s")
    assert headway.sweep({**SCENARIO, "seed": 6}, GRID, workers=1, output=tmp_path / "s").reused == 0
    assert headway.sweep(SCENARIO, GRID, workers=1, output=tmp_path / "s").reused == 4
    assert headway.sweep(SCENARIO, GRID, workers=1, output=tmp_path / "s", trace="decisions").reused == 0
    assert headway.sweep(SCENARIO, GRID, workers=1, output=tmp_path / "s").reused == 4
    monkeypatch.setattr(store, "__version__", "9.9")
    assert headway.sweep(SCENARIO, GRID, workers=1, output=tmp_path / "s").reused == 0


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Counted(monkeypatch, last=3)
    with pytest.raises(KeyboardInterrupt):
        headway.sweep(SCENARIO, GRID, workers=1, output=tmp_path / "s")
    document = study.read(tmp_path / "s")
    assert document["verdict"] == study.UNFINISHED and len(document["runs"]) == 3
    counted = Counted(monkeypatch)
    swept = headway.sweep(SCENARIO, GRID, workers=1, output=tmp_path / "s")
    assert (len(counted.runs), swept.reused) == (1, 3)


@pytest.mark.full
def test_ctrl_c_leaves_whole_folders_only(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCENARIO))
    with interruptible():
        process = subprocess.Popen(
            [*COMMAND, "sweep", "s.yaml", "--vary", "seed=1..400:1", "-o", "out", "--workers", "2"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": SOURCE},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    out = tmp_path / "out"
    until(lambda: process.poll() is not None or len(list(out.glob("seed=*"))) >= 5)
    os.killpg(process.pid, signal.SIGINT)  # to all processes, as a terminal does
    _, sentence = process.communicate()
    assert process.returncode == 130
    assert re.search(rb"interrupted; \d+/400 runs.*\. Finished runs are in out; the same command continues\.", sentence)
    assert not list(out.glob(".*"))
    there = sorted(out.glob("seed=*"))
    assert 5 <= len(there) < 400
    for folder in there:
        headway.Result.load(folder)
    assert study.read(out)["verdict"] == study.UNFINISHED
    assert headway.sweep(SCENARIO, f"seed=1..{len(there)}:1", workers=1, output=out).reused >= len(there) - 2


def test_any_figure_can_be_a_column(headway: Run, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCENARIO))
    arguments = ["sweep", "s.yaml", "--vary", "workload.rate=20,200", "--show", "balance.cv, latency.itl.p99"]
    lines = headway(*arguments, cwd=tmp_path).stdout.splitlines()
    place = next(place for place, line in enumerate(lines) if line.split()[:1] == ["rate"])
    assert lines[place - 1].split() == ["balance", "itl", "ms"] and lines[place].split() == ["rate", "cv", "p99"]
    points = json.loads(headway(*arguments, "--json", cwd=tmp_path).stdout)["points"]
    assert [list(point["figures"]) for point in points] == [["balance.cv", "latency.itl.p99"]] * 2
    wrong = headway("sweep", "s.yaml", "--vary", "seed=1,2", "--show", "balance.cvv", cwd=tmp_path)
    assert wrong.stderr == "headway: show: unknown figure 'balance.cvv'. Did you mean 'balance.cv'?\n"


def test_rows_have_the_figures_that_python_asks_for() -> None:
    grid = module.sweep(SCENARIO, "workload.rate=20,200", show=["requests.arrived", "balance.jain"], workers=1)
    assert list(grid.rows[0]) == ["workload.rate", "policy", "slo_holds", "requests.arrived", "balance.jain"]
    assert [row["requests.arrived"] for row in grid.rows] == [
        point.summary["requests"]["arrived"] for point in grid.points
    ]


def test_a_grid_may_have_a_weight_of_0() -> None:
    changed = {**SCENARIO, "policies": {"routing": {"name": "weighted", "scorers": {"queue-depth": 1}}}}
    grid = module.sweep(changed, "policies.routing.scorers.prefix-affinity=0,1", workers=1)
    assert grid.points[0].summary == headway.simulate(changed).summary()
    assert "prefix_index_blocks" in grid.points[1].summary["policy_metrics"]


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_command_line_prints_a_table_with_the_best_marked(headway: Run, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCENARIO))
    arguments = ["sweep", "s.yaml", *(word for vary in GRID for word in ("--vary", vary))]
    process = headway(*arguments, cwd=tmp_path)
    assert (process.returncode, process.stderr) == (0, "")
    lines = [line for line in process.stdout.splitlines() if "round-robin " in line or "least-loaded " in line]
    assert len(lines) == 4 and lines[0].startswith(" 20/s") and lines[2].startswith(" 200/s")
    assert "▸" in process.stdout and "The SLO (99 % of the requests within it) holds" in process.stdout
    assert max(map(len, process.stdout.splitlines())) <= 80
    document = json.loads(headway(*arguments, "--json", "--seeds", "2", "--workers", "1", cwd=tmp_path).stdout)
    assert (document["seeds"], document["runs"], len(document["points"])) == (2, 8, 4)


def test_the_command_line_says_how_many_runs_there_are_and_were(headway: Run, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCENARIO))
    arguments = ["sweep", "s.yaml", "--vary", "seed=1,2,3", "-o", "out"]
    first = headway(*arguments, cwd=tmp_path)
    assert first.stderr.splitlines()[0] == "headway: 3 runs"
    second = headway(*arguments, "--vary", "leap=true", cwd=tmp_path)
    again = headway(*arguments, cwd=tmp_path)
    assert again.stderr.splitlines()[0] == "headway: 3 runs, 3 of them already done"
    assert again.stdout == first.stdout and second.returncode == 0
    wrong = headway("sweep", "s.yaml", "--vary", "wrkload.rate=3", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Did you mean 'workload'?" in wrong.stderr


def test_progress_tells_what_was_reused_and_how_long_the_rest_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("headway.display.progress.time.monotonic", lambda: clock[0])
    sentence: list[str] = []
    progress = SweepProgress(sentence.append, Path("out"))
    progress(4, 20, 4)
    assert sentence == ["20 runs, 4 of them already done"] and progress._text() == "4/20 runs, 4 reused"
    clock[0] = 130.0
    progress(6, 20, 4)
    assert progress._text() == "6/20 runs, 4 reused, about 0:03:30 left"
    assert len(sentence) == 1
