"""Predict recorded benchmarks of vLLM from their configuration alone.

    python benchmarks/unseen/predict.py benchmarks/unseen/runs.csv > predictions.csv
    python benchmarks/unseen/predict.py benchmarks/unseen/bursts.csv > predictions.csv

Each row of runs.csv is a benchmark with inference-perf: an engine, prompts of `prompt_min` to `prompt_max` tokens,
answers of `output_tokens` tokens, and stages as rate x seconds. The benchmark sends 100 prompts again and again: ten
groups of ten prompts, which begin with the same `system_tokens` tokens. Gaps between requests are exponential and
scaled to the stage's duration, as that tool draws them. In each row of bursts.csv, all requests arrive at once, each
with a prompt of its own. For each stage, the command prints mean, p50, p90 and p99 of TTFT, TPOT and E2E in ms.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import headway

BLOCK = 16
GROUPS, PROMPTS = 10, 10
PAUSE = 30.0  # seconds between two stages, in which the engine becomes idle
POINTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MODELS: dict[str, dict[str, Any]] = {  # shapes that Headway does not know by name
    "llama-2-7b": {
        "layers": 32, "hidden": 4096, "heads": 32, "intermediate": 11008, "vocab": 32000, "params": 6738415616,
    },
    "llama-2-70b": {
        "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "intermediate": 28672, "vocab": 32000,
        "params": 68976648192,
    },
    "codellama-34b": {
        "layers": 48, "hidden": 8192, "heads": 64, "kv_heads": 8, "intermediate": 22016, "vocab": 32000,
        "params": 33743970304,
    },
    "mistral-nemo": {
        "layers": 40, "hidden": 5120, "heads": 32, "kv_heads": 8, "head_dim": 128, "intermediate": 14336,
        "vocab": 131072, "params": 12247782400,
    },
    "llama-4-scout-fp8": {
        "layers": 48, "hidden": 5120, "heads": 40, "kv_heads": 8, "head_dim": 128, "vocab": 202048, "experts": 16,
        "experts_per_token": 1, "expert_intermediate": 8192, "shared_intermediate": 8192, "params": 107769000000,
        "active_params": 17170000000, "dtype_bytes": 1, "attention_dtype_bytes": 2, "kv_dtype_bytes": 2,
    },
}  # fmt: skip


def stages(text: str) -> list[tuple[float, float]]:
    """Return rate and seconds of each stage of a text like 8x600+20x600."""
    return [(float(rate), float(seconds)) for rate, seconds in (part.split("x") for part in text.split("+"))]


def arrivals(row: dict[str, str], draw: random.Random) -> Iterator[tuple[int, float]]:
    """Yield the stage and the time in seconds of each request."""
    begin = 0.0
    for number, (rate, seconds) in enumerate(stages(row["stages"])):
        gaps = [draw.expovariate(rate) for _ in range(round(rate * seconds))]
        scale = seconds / sum(gaps)
        now = begin
        for gap in gaps:
            now += gap * scale
            yield number, now
        begin = now + PAUSE


def write_trace(row: dict[str, str], path: Path) -> list[int]:
    """Write the workload as a Mooncake trace and return the stage of each request."""
    draw = random.Random(1)
    shared = int(row["system_tokens"]) // BLOCK
    prompts = []
    for number in range(GROUPS * PROMPTS):
        tokens = draw.randint(int(row["prompt_min"]), int(row["prompt_max"]))
        own = range(1000 + number * 1000, 1000 + number * 1000 + -(-tokens // BLOCK) - shared)
        prompts.append((tokens, [number // PROMPTS * shared + place for place in range(shared)] + list(own)))
    draw.shuffle(prompts)
    numbers = []
    with path.open("w", encoding="utf-8") as file:
        for index, (stage, second) in enumerate(arrivals(row, draw)):
            tokens, blocks = prompts[index % len(prompts)]
            line = {"timestamp": round(second * 1000, 3), "input_length": tokens}
            line |= {"output_length": int(row["output_tokens"]), "hash_ids": blocks}
            file.write(json.dumps(line) + "\n")
            numbers.append(stage)
    return numbers


def cluster(row: dict[str, str], engine: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"instances": 1, "gpu": row["gpu"], "model": MODELS.get(row["model"], row["model"])}
    settings |= {"tp": int(row["tp"]), "max_batch_size": 128, "max_batch_tokens": int(row["max_batch_tokens"])}
    blocks = row["gpu_blocks"] if row["gpu_blocks"] == "auto" else int(row["gpu_blocks"])
    settings |= {"latency": {"model": "hardware", "engine": engine}, "kv": {"gpu_blocks": blocks}}
    if row["dp"] != "1":
        settings |= {"dp": int(row["dp"]), "ep": True, "dp_balance": "vllm"}
    return settings


def figures(values: Sequence[float]) -> dict[str, float]:
    """Return the mean and percentiles between the nearest ranks."""
    ordered = sorted(values)
    found = {"mean": sum(ordered) / len(ordered)}
    for name, point in POINTS.items():
        place = point * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        found[name] = ordered[low] + (ordered[high] - ordered[low]) * (place - low)
    return found


def burst(row: dict[str, str], engine: str) -> list[dict[str, Any]]:
    """Simulate requests with prompts of their own that all arrive at once."""
    model: Any = row["model"]
    if row["dtype_bytes"]:
        model = {"like": model, "dtype_bytes": float(row["dtype_bytes"]), "kv_dtype_bytes": 2}
    requests = int(row["requests"])
    workload = {"closed_loop": {"concurrency": requests}, "requests": requests}
    workload |= {name: int(row[name]) for name in ("prompt_tokens", "output_tokens")}
    settings: dict[str, Any] = {"instances": 1, "gpu": row["gpu"], "model": model, "tp": int(row["tp"])}
    settings |= {name: int(row[name]) for name in ("max_batch_size", "max_batch_tokens")}
    settings |= {
        "latency": {"model": "hardware", "engine": engine},
        "async_scheduling": row["async_scheduling"] == "true",
    }
    result = headway.simulate({"workload": workload, "cluster": settings})
    return latencies(row["run"], 0, request_times(result))


def request_times(result: Any) -> list[tuple[int, int, int, int]]:
    """Return arrival, first token and end of each request in ps, and its output tokens."""
    columns = (result.requests[name] for name in ("arrival_ps", "first_token_ps", "finished_ps", "output_tokens"))
    return list(zip(*columns, strict=True))


def latencies(run: str, stage: int, times: Sequence[tuple[int, int, int, int]]) -> list[dict[str, Any]]:
    """Return a row for each latency of one stage."""
    values = {
        "ttft": [(first - came) / 1e9 for came, first, _, _ in times],
        "tpot": [(last - first) / 1e9 / (tokens - 1) for _, first, last, tokens in times],
        "e2e": [(last - came) / 1e9 for came, _, last, _ in times],
    }
    rows = []
    for name, sample in values.items():
        shown = {point: f"{value:.3f}" for point, value in figures(sample).items()}
        rows.append({"run": run, "stage": stage, "latency": name, **shown})
    return rows


def replay(row: dict[str, str], engine: str) -> list[dict[str, Any]]:
    """Simulate the stages of one run and return a row for each stage and latency."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        numbers = write_trace(row, path)
        trace = {"path": str(path), "format": "mooncake", "block_tokens": BLOCK}
        result = headway.simulate(
            {
                "workload": {"trace": {**trace, "replay": "timestamps", "sessions": "none"}},
                "cluster": cluster(row, engine),
            }
        )
    times = request_times(result)
    found = []
    for stage in range(numbers[-1] + 1):
        here = [time for number, time in zip(numbers, times, strict=True) if number == stage]
        found += latencies(row["run"], stage, here)
    return found


def read_rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8") as text:
        return list(csv.DictReader(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--engine", default="vllm-2025")
    parser.add_argument("--only", default="", help="part of the names of the runs to predict")
    options = parser.parse_args()
    writer = csv.DictWriter(sys.stdout, ["run", "stage", "latency", "mean", *POINTS], lineterminator="\n")
    writer.writeheader()
    for row in read_rows(options.file):
        simulate = burst if "requests" in row else replay
        if options.only in row["run"]:
            writer.writerows(simulate(row, options.engine))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
