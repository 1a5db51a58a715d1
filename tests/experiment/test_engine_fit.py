"""Fitting a profile to the recorded run of an engine."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import headway as package
from conftest import Run
from headway.errors import HeadwayError
from headway.experiment.notes import note_unmeasured
from headway.results.recorded import COLUMNS
from headway.scenario.scenario import Scenario
from headway.types import PS_PER_SECOND

SCENARIO: dict[str, Any] = {
    "workload": {"requests": 120, "rate": "8/s", "prompt_tokens": 600, "output_tokens": 40},
    "cluster": {"instances": 1, "gpu": "h200", "latency": {"model": "hardware"}},
}


def engine(file: Path, host: str, requests: int | None = None) -> Path:
    """Return the run of an engine with a slower host."""
    cluster = {**SCENARIO["cluster"], "latency": {"model": "hardware", "host": host}}
    table = package.simulate({**SCENARIO, "cluster": cluster}).requests
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
    cluster = {**SCENARIO["cluster"], "latency": {"model": "hardware", "host": "2ms"}}
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
