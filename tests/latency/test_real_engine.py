"""The cards whose kernels were profiled: their profiles against those kernels, and a run of a real engine against its
simulation with constants that it had no part in, but for the host's time."""

from __future__ import annotations

import csv
import gzip
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    """Decodes of the RTX 4090 have equal contexts, and those of the RTX PRO 6000 unequal ones, as in engines."""
    constants = headway.latency(gpu, model).profile.constants
    errors: dict[str, list[float]] = {}
    for phase, step, _ in steps(DATA / "profiles" / folder, model, tp, room, gpu == "rtx-pro-6000"):
        errors.setdefault(phase, []).append(abs(step.error(constants)))
    for phase, (median, p90) in {"decode": (0.03, 0.065), "prefill": (0.04, 0.11), "mixed": (0.04, 0.09)}.items():
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


@pytest.mark.parametrize("engine", ["auto", "vllm-0.19"])
def test_a_run_of_a_real_engine_is_met(engine: str) -> None:
    """Without a named engine it schedules synchronously, with it asynchronously."""
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
                "latency": {"model": "hardware", "engine": engine},
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


OTHER_RUNS = Path(__file__).parent / "recorded_runs"


@pytest.mark.parametrize(
    ("run", "model", "cluster", "within"),
    [
        ("llama-3.1-8b-tp1", "llama-3.1-8b", {}, {"ttft": 0.1, "tpot": 0.03, "e2e": 0.04}),
        ("qwen3-32b-tp2", "qwen-3-32b", {"tp": 2}, {"ttft": 0.1, "tpot": 0.03, "e2e": 0.04}),
        # As that engine did, the ranks schedule asynchronously. It queues requests between two steps, so TTFT counts
        # from their arrival.
        (
            "qwen3-30b-a3b-dp2-ep",
            "qwen-3-30b-a3b",
            {"dp": 2, "ep": True, "dp_balance": "vllm", "latency": {"engine": "vllm-0.19"}},
            {"ttft_arrival": 0.1, "tpot": 0.03, "e2e": 0.04},
        ),
    ],
)
def test_runs_on_two_cards_are_met(run: str, model: str, cluster: dict[str, Any], within: dict[str, float]) -> None:
    """No time was fitted to these runs."""
    with (OTHER_RUNS / f"{run}.csv").open(encoding="utf-8") as file:
        real = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    prompts = "llama-3.1-8b" if "llama" in run else "qwen3-32b"  # both Qwen runs had the same requests
    trace = {"path": str(DATA / f"workload_{prompts}.jsonl.gz"), "format": "mooncake", "block_tokens": 16}
    limits = {"max_batch_size": 128, "max_batch_tokens": 2048, "kv": {"gpu_blocks": "auto", "entry": "prompt"}}
    result = headway.simulate(
        {
            "workload": {"trace": {**trace, "replay": "timestamps", "sessions": "none"}},
            "cluster": {"instances": 1, "gpu": "rtx-pro-6000", "model": model, **limits, **cluster},
        }
    )
    table = result.requests
    ours = list(
        zip(*(table[name] for name in ("arrival_ps", "first_token_ps", "finished_ps", "output_tokens")), strict=True)
    )
    pairs = {
        "ttft": (
            [row["first_token_s"] - row["queued_s"] for row in real],
            [(first - came) / 1e12 for came, first, _, _ in ours],
        ),
        "ttft_arrival": (
            [row["first_token_s"] - row["arrival_s"] for row in real],
            [(first - came) / 1e12 for came, first, _, _ in ours],
        ),
        "tpot": (
            [(row["last_token_s"] - row["first_token_s"]) / (row["output_tokens"] - 1) for row in real],
            [(last - first) / 1e12 / (tokens - 1) for _, first, last, tokens in ours],
        ),
        "e2e": (
            [row["last_token_s"] - row["queued_s"] for row in real],
            [(last - came) / 1e12 for came, _, last, _ in ours],
        ),
    }
    for name, most in within.items():
        assert figures(pairs[name][1]) == pytest.approx(figures(pairs[name][0]), rel=most), name


def test_the_engine_formed_its_steps_ahead() -> None:
    """While the first 41 requests arrive, every step has an event that shows when it ends. Each of these requests but
    the very first gets its first token two boundaries or more after the step was formed that begins its prompt."""
    real = [json.loads(line) for line in (RUN / "requests.jsonl").read_text(encoding="utf-8").splitlines()]
    ends = sorted({row[name] for row in real for name in ("scheduled_ts", "first_token_ts", "last_token_ts")})
    between = [
        any(row["scheduled_ts"] + 0.001 < end < row["first_token_ts"] - 0.001 for end in ends) for row in real[:41]
    ]
    assert sum(between) == 40


def test_the_first_requests_of_a_real_engine_wait_as_long_from_their_arrival(tmp_path: Path) -> None:
    """The median of TTFT from arrival over the first 45 requests. The time of arrival has another clock; the request
    that the engine queued soonest gives the difference. The first steps of that engine took two to five times as long
    as later steps with as many tokens, which the simulation does not know."""
    real = [json.loads(line) for line in (RUN / "requests.jsonl").read_text(encoding="utf-8").splitlines()]
    with gzip.open(DATA / "workload_llama-3.1-8b.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    header = {"headway_trace": 1, "origin": "LLMServingSim", "block_tokens": 16}
    lines = [json.dumps(header)]
    for row, recorded in zip(rows, real, strict=True):
        at_ps = round((recorded["arrival_time"] - real[0]["arrival_time"]) * 1e6) * 10**6
        sizes = {"prompt_tokens": row["input_length"], "output_tokens": row["output_length"]}
        blocks = [[block, 1] for block in row["hash_ids"]]
        lines.append(json.dumps({"at_ps": at_ps, **sizes, "max_tokens": row["output_length"], "blocks": blocks}))
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(lines))
    result = headway.simulate(
        {
            "workload": {
                "trace": {"path": str(trace), "format": "headway", "replay": "timestamps", "sessions": "none"}
            },
            "cluster": {
                "instances": 1,
                "gpu": "rtx-4090",
                "kv": {"gpu_blocks": 2588, "entry": "prompt"},
                "latency": {"engine": "vllm-0.19"},
            },
        }
    )
    clocks = min(row["queued_ts"] - row["arrival_time"] for row in real)
    recorded = [row["first_token_ts"] - row["arrival_time"] - clocks for row in real[:45]]
    table = result.requests
    times = [
        (first - came) / 1e12
        for came, first in zip(table["arrival_ps"][:45], table["first_token_ps"][:45], strict=True)
    ]
    assert statistics.median(times) == pytest.approx(statistics.median(recorded), rel=0.05)
