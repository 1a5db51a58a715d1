"""A workload written as a trace, and replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Run
from headway import HeadwayError, simulate, write_workload

CLUSTER = {"instances": 2, "gpu": "h100", "latency": {"model": "roofline"}}
OPEN: dict[str, Any] = {
    "seed": 3,
    "workload": {
        "requests": 60,
        "rate": "30/s",
        "prompt_tokens": {"dist": "uniform", "min": 100, "max": 600},
        "output_tokens": {"dist": "uniform", "min": 5, "max": 60},
        "prefix": {"groups": 4, "tokens": 128},
    },
    "cluster": CLUSTER,
    "policies": {"routing": "prefix-overlap"},
}
CHAT: dict[str, Any] = {
    **OPEN,
    "workload": {"requests": 60, "rate": "4/s", "kind": "chat", "prompt_tokens": 200, "output_tokens": 30},
}


def both(scenario: dict[str, Any], folder: Path) -> tuple[Any, Any]:
    """The requests of a run, and those of a replay of its workload."""
    file = folder / "drawn.jsonl"
    assert write_workload(scenario, file)["written"] == 60
    replayed = {**scenario, "workload": {"trace": {"path": str(file)}}}
    return simulate(scenario).requests, simulate(replayed).requests


def test_a_replay_of_an_open_loop_is_the_run_itself(tmp_path: Path) -> None:
    first, again = both(OPEN, tmp_path)
    for name in ("arrival_ps", "finished_ps", "prompt_tokens", "output_tokens", "cached_tokens", "instance"):
        assert list(first[name]) == list(again[name]), name
    assert any(first["cached_tokens"])


def test_a_replay_of_conversations_has_their_turns_and_think_times(tmp_path: Path) -> None:
    first, again = both(CHAT, tmp_path)
    turns = [sorted(zip(*(rows[name] for name in ("session", "turn", "prompt_tokens", "output_tokens")), strict=True))
             for rows in (first, again)]  # fmt: skip
    assert turns[0] == turns[1]
    thinks = []
    for rows in (first, again):
        ends = dict(zip(zip(rows["session"], rows["turn"], strict=True), rows["finished_ps"], strict=True))
        keys = zip(rows["session"], rows["turn"], rows["arrival_ps"], strict=True)
        thinks.append({(name, turn): at - ends[name, turn - 1] for name, turn, at in keys if turn})
    assert thinks[0] == thinks[1] and thinks[0]
    assert any(again["cached_tokens"])  # a turn finds the prompts before it; a trace does not have the answers' content


def test_a_run_folder_gives_the_requests_of_its_run(headway: Run, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(OPEN))
    assert headway("run", "s.json", "-o", "out", cwd=tmp_path).returncode == 0
    done = headway("workload", "write", "out", "a.jsonl", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "wrote 60 requests to a.jsonl in headway format\n")
    headway("workload", "write", "s.json", "b.jsonl", cwd=tmp_path)
    first, second = ((tmp_path / name).read_text().splitlines() for name in ("a.jsonl", "b.jsonl"))
    assert first[1:] == second[1:] and len(first) == 61


def test_other_formats_take_what_they_can(headway: Run, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(OPEN))
    done = headway("workload", "write", "s.json", "x.azure.csv", "--requests", "5", cwd=tmp_path)
    assert done.stdout == "wrote 5 requests to x.azure.csv in azure format\n" and "cannot express" in done.stderr
    wrong = headway("workload", "write", "s.json", "x.jsonl", "--requests", "0", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr) == (2, "headway: --requests: must be at least 1, got 0.\n")
    with pytest.raises(HeadwayError, match="is read-only"):
        write_workload(OPEN, tmp_path / "x", to="otel")
