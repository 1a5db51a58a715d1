"""Fitting a profile to the recorded run of an engine."""

from __future__ import annotations

import csv
import json
from importlib import resources
from math import log
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from rich.console import Console

import headway as package
from conftest import Run
from headway.config import section
from headway.config.dated_defaults import CURRENT, SETS
from headway.errors import HeadwayError
from headway.experiment.engine_fit import EngineFit, _document, _fitted
from headway.experiment.notes import note_unmeasured
from headway.latency.engines import engines
from headway.latency.gpus import read_gpu
from headway.latency.profiles import Profile, read_profile
from headway.report import validation
from headway.results.recorded import COLUMNS
from headway.scenario.scenario import Scenario
from headway.types import PS_PER_SECOND

SEQUENCE = f"{engines().entries[SETS[CURRENT].engine].sequence_ps / 1e6:g}us"  # of the default engine
SCENARIO: dict[str, Any] = {
    "workload": {"requests": 120, "rate": "8/s", "prompt_tokens": 600, "output_tokens": 40},
    "cluster": {"instances": 1, "gpu": "h200", "latency": {"model": "hardware"}},
}


def engine(file: Path, host: str, requests: int | None = None, scenario: dict[str, Any] = SCENARIO) -> Path:
    """Return the run of the default engine with a slower host."""
    latency = {"model": "hardware", **scenario["cluster"]["latency"], "host": host, "host_sequence": SEQUENCE}
    cluster = {**scenario["cluster"], "latency": latency}
    table = package.simulate({**scenario, "cluster": cluster}).requests
    names = ("arrival_ps", "first_token_ps", "finished_ps", "prompt_tokens", "output_tokens")
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(COLUMNS)
        for row in list(zip(*map(table.column, names), strict=True))[:requests]:
            writer.writerow([*(when / PS_PER_SECOND for when in row[:3]), *row[3:]])
    return file


@pytest.mark.full
def test_a_slower_engine_is_matched_on_requests_that_the_fit_had_not_seen(tmp_path: Path) -> None:
    result = package.calibrate_run(engine(tmp_path / "engine.csv", "2ms"), SCENARIO, tmp_path / "mine.yaml")
    assert result.before.worst is not None and abs(result.before.worst[2]) > 0.1
    assert result.after.worst is not None and abs(result.after.worst[2]) < 0.03
    profile = package.hardware(str(tmp_path / "mine.yaml"))
    assert profile["host_ms"] == pytest.approx(result.host_ms, rel=1e-3)
    factor = package.hardware("h200")["constants"]["kv_tb_s"]["value"] / profile["constants"]["kv_tb_s"]["value"]
    assert factor == pytest.approx(result.scale)
    assert profile["constants"]["kv_tb_s"]["value"] <= 4.8  # the card's


def test_a_factor_for_several_gpus_changes_only_their_all_reduces() -> None:
    profile = replace(read_profile("h200", read_gpu("h200", "gpu"), "profile"), engine="vllm-0.18", host_sequence_ps=7)
    fitted = _fitted(profile, (log(8e8), log(1.5)), split=True)
    assert fitted == replace(profile, host_ps=8 * 10**8, all_reduce_times=1.5)
    text = yaml.safe_load(_document(fitted, "a run", "2026-11", {}))
    assert section.read(Profile, text, "profile") == replace(fitted, source="a run", as_of="2026-11", error={}, name="")
    single = _fitted(profile, (log(8e8), log(1.5)), split=False)
    assert single.all_reduce_times == 1.0
    assert single.constants.kv_tb_s == pytest.approx(profile.constants.kv_tb_s / 1.5)


def on_two_gpus(**latency: Any) -> dict[str, Any]:
    """Return a scenario with few requests on two GPUs."""
    cluster = {**SCENARIO["cluster"], "tp": 2, "latency": {"model": "hardware", **latency}}
    return {"workload": {**SCENARIO["workload"], "requests": 40, "output_tokens": 8}, "cluster": cluster}


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[EngineFit, Path]:
    """A fit to a run on two GPUs whose all-reduces take three times as long, and the file that it writes."""
    folder = tmp_path_factory.mktemp("split")
    slow = folder / "slow.yaml"
    shipped = (resources.files("headway") / "presets" / "profiles" / "h200.yaml").read_text(encoding="utf-8")
    slow.write_text(shipped.replace("constants:", "all_reduce_times: 3.0\nconstants:"), encoding="utf-8")
    recorded = engine(folder / "engine.csv", "500us", scenario=on_two_gpus(profile=str(slow)))
    fit = package.calibrate_run(recorded, on_two_gpus(), folder / "mine.yaml")
    assert isinstance(fit, EngineFit)
    return fit, folder / "mine.yaml"


@pytest.mark.full
def test_a_run_on_two_gpus_fits_the_all_reduces_and_says_so(split: tuple[EngineFit, Path]) -> None:
    fit, file = split
    assert fit.before.worst is not None and fit.after.worst is not None
    assert abs(fit.after.worst[2]) < 0.02 < abs(fit.before.worst[2])
    assert fit.scale == 1.0 and fit.all_reduce_times == pytest.approx(3.0, rel=0.3)
    text = file.read_text(encoding="utf-8")
    profile = yaml.safe_load(text)
    assert profile["all_reduce_times"] == fit.all_reduce_times == fit.summary()["all_reduce_times"]
    assert "all-reduces between 2 GPUs ×" in profile["source"] and "all times of the GPU" not in text
    with Console(width=80) as console, console.capture() as captured:
        console.print(validation.of_run(fit))
    assert f"all-reduces × {fit.all_reduce_times:.4f}" in captured.get() and "all GPU times" not in captured.get()


@pytest.mark.full
def test_a_profile_fitted_to_two_gpus_leaves_the_times_of_one_gpu_as_they_are(
    split: tuple[EngineFit, Path], tmp_path: Path
) -> None:
    _, file = split
    named = tmp_path / "h200.yaml"  # the times of steps of 8 bits follow the engine that the fitted profile names
    text = (resources.files("headway") / "presets" / "profiles" / "h200.yaml").read_text(encoding="utf-8")
    named.write_text(text.replace("constants:", "engine: vllm-0.18\nconstants:"), encoding="utf-8")
    for model in ("llama-3.1-8b", "qwen-3-30b-a3b", {"like": "llama-3.1-8b", "dtype_bytes": 1}):
        ours, shipped = (package.latency(gpu, model) for gpu in (str(file), str(named)))
        for decode in ([], [700], [900] * 40):
            for chunks in ([], [(512, 0)], [(2048, 8192)]):
                assert ours.step_ms(decode, chunks) == shipped.step_ms(decode, chunks)
    assert package.latency(str(file), "llama-3.1-8b", 2).step_ms([700]) > package.latency(
        "h200", "llama-3.1-8b", 2
    ).step_ms([700])


@pytest.mark.full
def test_the_fitted_profile_keeps_the_engine_and_what_it_covers(split: tuple[EngineFit, Path], tmp_path: Path) -> None:
    covers = read_profile(str(split[1]), read_gpu("h200", "gpu"), "profile").covers
    assert covers == ("experts", "fp8", "packed")
    own = tmp_path / "own.yaml"
    own.write_text(split[1].read_text(encoding="utf-8"), encoding="utf-8")
    scenario = on_two_gpus(profile=str(own), engine="vllm-0.18")
    host = engines().entries["vllm-0.18"]
    step, sequence = (f"{ps / 1e6:g}us" for ps in (host.step_ps, host.sequence_ps))
    fit = package.calibrate_run(engine(tmp_path / "engine.csv", step, scenario=scenario), scenario)
    assert isinstance(fit, EngineFit) and fit.before.worst is not None and fit.before.worst[2] == pytest.approx(0)
    profile = yaml.safe_load(fit.profile)
    assert (profile["engine"], profile["host"], profile["host_sequence"]) == ("vllm-0.18", step, sequence)
    assert profile["all_reduce_times"] == split[0].all_reduce_times


@pytest.mark.full
def test_the_order_of_the_rows_changes_no_fit(tmp_path: Path) -> None:
    scenario = on_two_gpus()
    file = engine(tmp_path / "engine.csv", "800us", scenario=scenario)
    head, *lines = file.read_text(encoding="utf-8").splitlines()
    lines = [f"{line},bench-{at}" for at, line in enumerate(lines)]
    fits = []
    for seed in (1, 2):
        Random(seed).shuffle(lines)
        file.write_text("\n".join([f"{head},request_id", *lines]), encoding="utf-8")
        fits.append(package.calibrate_run(file, scenario))
    assert fits[0].summary() == fits[1].summary()


@pytest.mark.full
def test_a_spec_sheet_that_was_matched_counts_as_measured_up_to_the_longest_request(
    tmp_path: Path, headway: Run
) -> None:
    scenario = {**SCENARIO, "cluster": {**SCENARIO["cluster"], "gpu": "h100"}}
    assert "not calibrated" in str(note_unmeasured(Scenario.load(scenario)))
    mine = tmp_path / "mine.yaml"
    package.calibrate_run(engine(tmp_path / "engine.csv", "1ms"), scenario, mine)
    result = package.hardware(str(mine))
    assert result["calibrated"] and "matched with the run of an engine (engine.csv)" in result["source"]
    assert result["measured"] == "one run of an engine, no steps of the GPU alone"
    assert {each["origin"] for each in result["constants"].values()} == {"assumed"}
    assert result["range"] == {"tokens": [1, 640], "context": [1, 640]} and result["shapes"] == ["llama-3.1-8b"]
    assert "mine: measured" in headway("hardware", "show", str(mine)).stdout

    def said(tokens: int) -> str | None:
        latency = {"model": "hardware", "profile": str(mine)}
        cluster = {**scenario["cluster"], "latency": latency, "max_batch_tokens": tokens}
        return note_unmeasured(Scenario.load({**scenario, "cluster": cluster}))

    assert said(640) is None
    assert said(641) == "mine was measured up to 640 tokens in a step; 641 is outside that range."


@pytest.mark.full
def test_a_host_that_the_scenario_names_is_where_the_fit_starts(tmp_path: Path) -> None:
    cluster = {**SCENARIO["cluster"], "latency": {"model": "hardware", "host": "2ms", "host_sequence": SEQUENCE}}
    result = package.calibrate_run(engine(tmp_path / "engine.csv", "2ms"), {**SCENARIO, "cluster": cluster})
    assert result.before.worst is not None and abs(result.before.worst[2]) < 1e-6
    assert (result.host_ms, result.scale) == (pytest.approx(2.0), 1.0)


def test_other_requests_too_few_and_another_model_get_a_sentence(tmp_path: Path) -> None:
    file = engine(tmp_path / "engine.csv", "1ms", 100)
    with pytest.raises(HeadwayError, match="the 100 recorded requests differ from the 120 requests of the scenario"):
        package.calibrate_run(file, SCENARIO)
    few = engine(tmp_path / "few.csv", "1ms", 20)
    with pytest.raises(HeadwayError, match="20 requests are too few; a fit needs at least 40"):
        package.calibrate_run(few, SCENARIO)
    with pytest.raises(HeadwayError, match=r"with \{model: hardware\}"):
        package.calibrate_run(file, {**SCENARIO, "cluster": {"instances": 1, "latency": {"model": "fixed"}}})


@pytest.mark.full
def test_the_command_matches_a_run_and_refuses_what_the_scenario_says(tmp_path: Path, headway: Run) -> None:
    engine(tmp_path / "engine.csv", "1ms")
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCENARIO))
    line = ("calibrate", "engine.csv", "--scenario", "s.yaml", "-o", "mine.yaml")
    process = headway(*line, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "TTFT" in process.stdout and "Largest error" in process.stdout and (tmp_path / "mine.yaml").exists()
    document = json.loads(headway(*line, "--json", cwd=tmp_path).stdout)
    assert set(document["held_out"]) == {"before", "after"}
    wrong = headway(*line, "--gpu", "h200", cwd=tmp_path)
    assert wrong.returncode != 0 and wrong.stderr == (
        "headway: --gpu: cannot be combined with --scenario. The scenario sets this value.\n"
    )
