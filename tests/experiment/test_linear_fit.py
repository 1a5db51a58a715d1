"""Fitting the durations of the latency model `linear` to the recorded run of an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import headway as package
from conftest import Run
from headway.errors import HeadwayError
from headway.experiment.linear_fit import LinearFit

TRUE = {"step": "12ms", "prefill_token": "150us", "prefill_pair": "15ns", "sequence": "800us", "chunk": "20ms"}
GUESS = {"step": "8ms", "prefill_token": "300us", "prefill_pair": "15ns", "sequence": "500us", "chunk": "5ms"}


def scenario(
    latency: dict[str, str], routing: str = "round-robin", rate: str = "6/s", seed: int = 1, requests: int = 100
) -> dict[str, Any]:
    workload = {
        "requests": requests,
        "rate": rate,
        "prompt_tokens": {"dist": "uniform", "min": 400, "max": 1200},
        "output_tokens": {"dist": "uniform", "min": 8, "max": 30},
        "prefix": {"groups": 8, "tokens": 320},
    }
    cluster = {"instances": 2, "latency": {"model": "linear", "context_token": "0s", **latency}}
    return {"seed": seed, "workload": workload, "cluster": cluster, "policies": {"routing": routing}}


def run(folder: Path, what: dict[str, Any]) -> Path:
    """Return the run of an engine with these durations."""
    package.simulate(what).save(folder)
    return folder


def fitted(folder: Path, what: dict[str, Any], output: Path | None = None) -> LinearFit:
    result = package.calibrate_run(folder, what, output)
    assert isinstance(result, LinearFit)
    return result


@pytest.fixture(scope="module")
def guessed(tmp_path_factory: pytest.TempPathFactory) -> tuple[LinearFit, str]:
    """A fit that begins with wrong durations, and the file that it writes."""
    folder = tmp_path_factory.mktemp("guessed")
    result = fitted(run(folder / "run", scenario(TRUE)), scenario(GUESS), folder / "mine.yaml")
    return result, (folder / "mine.yaml").read_text()


@pytest.mark.full
def test_what_was_fitted_to_one_run_predicts_another_rate_and_policy(
    guessed: tuple[LinearFit, str], tmp_path: Path
) -> None:
    result, _ = guessed
    assert result.before.worst is not None and abs(result.before.worst[2]) > 0.2
    assert result.after.worst is not None and abs(result.after.worst[2]) < 0.15
    other = {"routing": "lmetric", "rate": "9/s", "seed": 2}
    predicted = package.simulate(scenario(result.latency, **other))
    errors = package.validate(predicted, run(tmp_path / "other", scenario(TRUE, **other)))
    assert abs(errors.latency["ttft"]["mean"]["error"]) < 0.1 and abs(errors.latency["tpot"]["mean"]["error"]) < 0.1


@pytest.mark.full
def test_the_file_is_a_scenarios_section_and_says_how_far_off_it_is(guessed: tuple[LinearFit, str]) -> None:
    result, text = guessed
    assert text == result.document and "# TTFT of held-out requests: mean " in text
    section = yaml.safe_load(text)["cluster"]["latency"]
    assert section == result.latency and section["context_token"] == "0s"  # a duration of zero stays zero
    package.simulate(scenario({key: value for key, value in section.items() if key != "model"}))


@pytest.mark.full
def test_requests_go_where_they_went_whatever_the_scenarios_policy(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", scenario(TRUE, routing="random", requests=40))
    result = fitted(folder, scenario(TRUE, routing="round-robin", requests=40))
    assert result.before.worst is not None and abs(result.before.worst[2]) < 1e-9
    assert result.latency == {"model": "linear", "context_token": "0s", **TRUE}


def test_several_kinds_of_instances_and_other_requests_get_a_sentence(tmp_path: Path) -> None:
    folder, what = run(tmp_path / "run", scenario(TRUE)), scenario(GUESS)
    with pytest.raises(HeadwayError, match="the 100 recorded requests differ from the 100 requests of the scenario"):
        package.calibrate_run(folder, {**what, "seed": 5})
    cluster = {**what["cluster"], "deployments": {"a": {"instances": 2}}}
    with pytest.raises(HeadwayError, match=r"cluster\.latency: a fit needs one kind of instance\. Remove"):
        package.calibrate_run(folder, {**what, "cluster": cluster})


@pytest.mark.full
def test_the_command_prints_the_durations(tmp_path: Path, headway: Run) -> None:
    what = scenario(TRUE, requests=40)
    run(tmp_path / "run", what)
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(what))
    line = ("calibrate", "run", "--scenario", "s.yaml", "-o", "mine.yaml")
    process = headway(*line, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "step 12ms" in process.stdout and "chunk 20ms" in process.stdout and "Largest error" in process.stdout
    assert json.loads(headway(*line, "--json", cwd=tmp_path).stdout)["latency"]["prefill_token"] == "150us"
