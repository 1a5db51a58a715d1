"""Whole searches with a real language model, which is too small to find anything: they show that the path works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from small import document
from small_model import MISSING, served, weights

from conftest import Run

pytestmark = [pytest.mark.full, pytest.mark.skipif(weights() is None, reason=MISSING)]


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        with served() as address:
            yield address


@pytest.mark.parametrize(("engine", "evaluations"), [("gepa", 2), ("openevolve", 2)])
def test_a_search_with_a_real_model_replays_from_its_transcript(
    base: str, headway: Run, tmp_path: Path, engine: str, evaluations: int
) -> None:
    parts = {"train": [{"workload": "plain", "seeds": [1]}], "validation": []}
    held_out = [{"workload": "plain", "seeds": [101]}]
    suite = tmp_path / "suite.yaml"
    suite.write_text(yaml.safe_dump(document(**parts, held_out=held_out)))
    search = ["evolve", str(suite), "--engine", engine, "--stage", "scheduler", "--template", "fcfs"]
    search += ["--evaluations", str(evaluations), "--builtins", "fcfs", "--workers", "1", "--json"]
    asked = ["--model", "smollm2", "--api-base", base, "--token-prices", "1,2", "-o", "found"]
    asked += ["--model-settings", "{temperature: 0, seed: 1}", "--model-timeout", "20m"]  # a busy machine is slow
    live = headway(*search, *asked, cwd=tmp_path)
    assert live.returncode == 0, live.stderr
    rows = [json.loads(line) for line in (tmp_path / "found" / "transcript.jsonl").read_text().splitlines()]
    counted = json.loads(live.stdout)["model"]
    assert counted["prompts"] == len(rows) >= 1 and counted["prompt_tokens"] > 500 * len(rows)
    assert 0 < counted["completion_tokens"] <= 40 * len(rows)
    assert counted["usd"] == (counted["prompt_tokens"] + 2 * counted["completion_tokens"]) / 1e6
    assert f"The model answered {len(rows)} prompts" in live.stderr
    again = headway(*search, "--token-prices", "1,2", "--replay", "found/transcript.jsonl", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, live.stdout), again.stderr
