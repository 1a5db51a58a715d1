"""The cards whose kernels were profiled: their profiles against those kernels, and a run of a real engine against its
simulation with constants that it had no part in, but for the host's time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from kernels import steps

import headway

DATA = Path(__file__).parents[3] / "shared" / "validation" / "llmservingsim"
RUN = DATA / "rtx4090_llama-3.1-8b_vllm-0.19.0"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the recorded run is not beside this checkout")
POINTS = (0.5, 0.9, 0.95, 0.99)


@pytest.mark.parametrize(
    ("gpu", "folder", "model", "tp", "room"),
    [
        ("rtx-4090", "RTX4090/Llama-3.1-8B/tp1", "llama-3.1-8b", 1, 41_408),
        ("rtx-pro-6000", "RTXPRO6000/Llama-3.1-8B/tp1", "llama-3.1-8b", 1, 585_000),
        ("rtx-pro-6000", "RTXPRO6000/Qwen3-32B/tp1", "qwen-3-32b", 1, 100_000),
        ("rtx-pro-6000", "RTXPRO6000/Qwen3-32B/tp2", "qwen-3-32b", 2, 400_000),
    ],
)
def test_a_profile_fits_the_kernels_of_its_card(gpu: str, folder: str, model: str, tp: int, room: int) -> None:
    constants = headway.latency(gpu, model).profile.constants
    errors: dict[str, list[float]] = {}
    for phase, step in steps(DATA / "profiles" / folder, model, tp, room):
        errors.setdefault(phase, []).append(abs(step.error(constants)))
    for phase, (median, p90) in {"decode": (0.025, 0.065), "prefill": (0.04, 0.1), "mixed": (0.04, 0.09)}.items():
        ordered = sorted(errors[phase])
        assert len(ordered) > 40
        assert ordered[len(ordered) // 2] < median, phase
        assert ordered[len(ordered) * 9 // 10] < p90, phase


def figures(values: Sequence[float]) -> list[float]:
    """Mean and percentiles, between the nearest ranks."""
    ordered = sorted(values)
    found = [sum(ordered) / len(ordered)]
    for point in POINTS:
        place = point * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        found.append(ordered[low] + (ordered[high] - ordered[low]) * (place - low))
    return found


def test_a_run_of_a_real_engine_is_met() -> None:
    lines = (RUN / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    real = [json.loads(line) for line in lines]
    trace = {"path": str(DATA / "workload_llama-3.1-8b.jsonl.gz"), "format": "mooncake", "block_tokens": 16}
    result = headway.simulate(
        {
            "workload": {"trace": {**trace, "replay": "timestamps", "sessions": "none"}},
            "cluster": {
                "instances": 1,
                "gpu": "rtx-4090",
                "kv": {"gpu_blocks": 2588, "entry": "prompt"},
                "latency": {"model": "hardware"},
            },
        }
    )
    table = result.requests
    ours = list(
        zip(
            *(table[name] for name in ("arrival_ps", "first_token_ps", "finished_ps", "output_tokens")),
            strict=True,
        )
    )
    pairs = {
        "ttft": (
            [row["first_token_ts"] - row["queued_ts"] for row in real],
            [(first - came) / 1e12 for came, first, _, _ in ours],
        ),
        "tpot": (
            [(row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1) for row in real],
            [(last - first) / 1e12 / (tokens - 1) for _, first, last, tokens in ours],
        ),
        "e2e": (
            [row["last_token_ts"] - row["queued_ts"] for row in real],
            [(last - came) / 1e12 for came, _, last, _ in ours],
        ),
    }
    for name, within in {"ttft": 0.10, "tpot": 0.03, "e2e": 0.04}.items():
        assert figures(pairs[name][1]) == pytest.approx(figures(pairs[name][0]), rel=within), name
    assert 171 <= sum(table["preemptions"]) <= 209  # about 190
